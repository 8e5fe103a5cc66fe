"""Write the tables of docs/experiments/claims.md from the committed results: python docs/make_claims_table.py.

Every row is a statement of the paper that can be checked: what it says, what became of it here, the number, and the
result file. The verdicts are computed, by the tests that the report makes.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

from pstn.experiments import EXPERIMENTS, calibration, time_series, traffic_signs
from pstn.report import Claim, Line, Result, holm, paired, read_results
from pstn.report.statistics import LEVEL, equivalence_by_fold, summarise, welch
from pstn.report.tables import Finding, check_claims

ROOT = Path(__file__).parents[1]
PAGE, RESULTS = ROOT / "docs" / "experiments" / "claims.md", ROOT / "results"

YES, PART, NO, SHORT, OUT, LATER = (
    "**reproduced**", "in part", "**not reproduced**", "not shown", "not testable here", "not run yet"
)  # fmt: skip


# The p-values of the orders that the rows tell, in their order, for Holm's correction; each row marks its place in it.
TESTED: list[float | None] = []
_MARK = re.compile(r"\0(\d+)\0")


class Row(NamedTuple):
    """A statement of the paper, what became of it, the number, the experiment, and its file if it is not the usual."""

    says: str
    verdict: str
    number: str
    experiment: str
    file: str = ""


@cache
def results_of(experiment: str) -> list[Result]:
    """The committed results of an experiment."""
    return read_results(RESULTS, experiment)


def values(experiment: str, model: str, data: str, metric: str, variant: str = "") -> list[float]:
    """A number of every run, by seed."""
    found = [r for r in results_of(experiment) if (r.model, r.data, r.variant) == (model, data, variant)]
    return [r.metrics[metric] for r in sorted(found, key=lambda r: r.seed) if metric in r.metrics]


def p_text(p: float | None) -> str:
    """A p-value in words."""
    return "–" if p is None else "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def signed(value: float, digits: int) -> str:
    """A difference with its sign."""
    return f"{value:+.{digits}f}".replace("-", "−")


def share(held: Sequence[bool], none: str = NO) -> str:
    """The verdict on several numbers: all of them, some, or `none`."""
    return LATER if not held else YES if all(held) else none if not any(held) else f"{PART}: {sum(held)} of {len(held)}"


def name_of(line: Line) -> str:
    """The heading of its column."""
    return line.heading[1]


def orders(experiment: str, says: str, wanted: Callable[[Claim], bool] = lambda claim: True) -> Row:
    """A claim that one model is ahead of another, at one or several places."""
    study = EXPERIMENTS[experiment]
    every = [f for f in check_claims(study, results_of(experiment)) if wanted(f.claim)]
    if not every:
        raise ValueError(f"{experiment} declares no claim for the row {says!r}")
    found = [f for f in every if f.ahead is not None]

    several = len({(name_of(f.claim.better), name_of(f.claim.worse)) for f in every}) > 1

    def tell(finding: Finding) -> str:
        metric, place = finding.claim.better.metric, finding.claim.better.heading[0]
        place += f", {name_of(finding.claim.better)} against {name_of(finding.claim.worse)}" * several
        found_so = f"{p_text(finding.p)}, {finding.words}{tested(finding.p)}"
        return f"{place}: {signed(finding.difference, metric.digits)} ({found_so})"

    words = [finding.words for finding in found]
    reversed_ = words.count("reversed")
    verdict = share([word == "holds" for word in words], NO if reversed_ else SHORT)
    verdict += f", {reversed_} reversed" * (verdict.startswith(PART) and reversed_ > 0)
    return Row(says, _so_far(verdict, len(every) - len(found)), "; ".join(map(tell, found)), experiment)


def tested(p: float | None) -> str:
    """Count a test of an order among those to correct for, if no row has told it, and mark where the page names it."""
    if p not in TESTED:
        TESTED.append(p)
    return f"\0{TESTED.index(p)}\0"


def _so_far(verdict: str, missing: int) -> str:
    """A verdict that some numbers are missing for says so."""
    return verdict if verdict == LATER or not missing else f"{verdict}, as far as it was run"


def cells(experiment: str, says: str, wanted: Callable[[Line], bool]) -> Row:
    """Published numbers, tested for agreement."""
    study, results, told, kinds, missing = EXPERIMENTS[experiment], results_of(experiment), [], [], 0
    for table in study.tables:
        for line in (line for line in table.lines if line.paper and wanted(line)):
            verdict, reason = table.judge(line, results)
            if verdict is None:
                missing += 1
                continue
            ours, digits = summarise(line.values(results)), line.metric.digits
            kinds.append("other data" if reason else verdict.kind)
            spread = "" if ours.std is None else f" ± {ours.std:.{digits}f}"
            end = "not tested" if reason else verdict.words.partition(";")[0]
            told.append(
                f"{name_of(line)}, {line.heading[0]}: {ours.mean:.{digits}f}{spread} ({line.paper.text}; {end})"
            )
    judged = [kind for kind in kinds if kind != "other data"]
    if not kinds:
        verdict_text = LATER
    elif not judged:
        verdict_text = OUT
    elif set(judged) == {"agrees"}:
        verdict_text = YES
    elif "agrees" in judged:
        verdict_text = f"{PART}: {judged.count('agrees')} of {len(judged)} agree"
    elif "worse" in judged:
        verdict_text = NO
    else:
        verdict_text = "better than the paper's" if set(judged) == {"better"} else "undecided"
    for kind in ("worse", "better"):
        if kind in judged and verdict_text.startswith((PART, "undecided")):
            verdict_text += f"{',' if ':' in verdict_text else ':'} {judged.count(kind)} {kind}"
    return Row(says, _so_far(verdict_text, missing), "; ".join(told), experiment)


def checked(
    says: str, experiment: str, held: Sequence[bool] | bool, number: str, rule: str = "", none: str = NO
) -> Row:
    """A statement that is true or false of our numbers, one or several; `rule` is what we take for true."""
    number += f" (true if {rule})" * bool(rule)
    return Row(says, share(held if isinstance(held, Sequence) else [held], none), number, experiment)


def not_here(says: str, why: str, experiment: str) -> Row:
    """A statement that cannot be tested here, and why."""
    return Row(says, OUT, why, experiment)


def is_order(
    better: str, worse: str, metric: str = "accuracy", places: tuple[str, ...] = (), *, claimed: bool = True
) -> Callable[[Claim], bool]:
    """Whether a claim is this order; `claimed`: of those that the paper makes."""

    def wanted(claim: Claim) -> bool:
        ahead, behind = claim.better, claim.worse
        same = (ahead.model, behind.model, ahead.metric.name) == (better, worse, metric)
        return same and claim.claimed >= claimed and (not places or ahead.heading[0] in places)

    return wanted


# Folds of our own, all sizes of which were run.
OWN, _OWN = "mnist-own-folds", " (folds of our own)"
SIZES = (30, 100, 1000, 3000, 10_000)


def vanishing(experiment: str = "mnist-subsets", where: str = "") -> Row:
    """The models at the two largest sizes: less than two of the CNN's published standard deviations apart?"""
    says = f"On the larger sets (3,000 and 10,000 images) the differences vanish{where}"
    told, held = [], []
    for data, margin in (("MNIST3000", 0.42), ("MNIST10000", 0.68)):
        runs = {m: [100 * v for v in values(experiment, m, data, "accuracy")] for m in ("CNN", "STN", "P-STN")}
        for first, second in (("P-STN", "CNN"), ("STN", "CNN"), ("P-STN", "STN")):
            p = equivalence_by_fold(runs[first], runs[second], margin)
            held.append(p is not None and p < 0.05)
            difference = signed(fmean(runs[first]) - fmean(runs[second]), 2)
            told.append(f"{data}: {first} − {second} {difference}, less than {margin} apart: {p_text(p)}")
    return checked(says, experiment, held, "; ".join(told), "p < 0.05", SHORT)


def scarce(experiment: str = "mnist-subsets", where: str = "") -> Row:
    """The P-STN's lead over the CNN by the number of images."""
    from scipy import stats

    pairs = []
    for size in SIZES:
        cnn, pstn = (values(experiment, m, f"MNIST{size}", "accuracy") for m in ("CNN", "P-STN"))
        pairs += [(size, a - b) for a, b in zip(pstn, cnn, strict=True)]
    found = stats.spearmanr(*zip(*pairs, strict=True))
    leads = ", ".join(signed(100 * fmean(lead for n, lead in pairs if n == size), 2) for size in SIZES)
    number = (
        f"the P-STN's lead over the CNN for {', '.join(map(str, SIZES))} images: {leads}; Spearman's correlation with "
        f"the number of images over {len(pairs)} folds {signed(found.statistic, 2)} ({p_text(found.pvalue)})"
    )
    says = f"Data augmentation is especially useful when data are limited{where}"
    return checked(says, experiment, found.pvalue < 0.05 and found.statistic < 0, number,
                   "the correlation is negative, p < 0.05")  # fmt: skip


def ensemble() -> list[Row]:
    """One sample of the posterior in testing against ten, or the mean against ten, of the same trained models."""
    runs = [r for r in results_of("ablations") if r.variant == "test-samples"]
    by_count = [dict(zip(r.figure["samples"], r.figure["accuracy"], strict=True)) for r in runs]
    one, ten = ([100 * run[count] for run in by_count] for count in (1, 10))
    p = paired(ten, one)
    way = "21 epochs"
    at_mean, sampled = (
        [100 * v for v in values("placed-fashion", "P-STN", "placed", m, way)] for m in ("mean_accuracy", "accuracy")
    )
    q = paired(sampled, at_mean)
    return [
        checked(
            f"The ensemble of ten samples is what makes the P-STN better: against one sample of the same models{_OWN}",
            "ablations", p is not None and p < 0.05 and fmean(ten) > fmean(one),
            f"MNIST100: {fmean(ten):.2f} against {fmean(one):.2f}% ({p_text(p)}{tested(p)}); with one sample it is "
            "behind the CNN's "
            f"{100 * fmean(values(OWN, 'CNN', 'MNIST100', 'accuracy')):.2f}", "p < 0.05",
        ),
        checked(
            "The same on placed garments: against the mean of the posterior", "placed-fashion",
            q is not None and q < 0.05 and fmean(sampled) > fmean(at_mean),
            f"{way}: {fmean(sampled):.2f} against {fmean(at_mean):.2f}% ({p_text(q)}{tested(q)})", "p < 0.05", SHORT,
        ),
    ]  # fmt: skip


def best_by_fold(data: str, metric: str = "valid_nll") -> list[float]:
    """The weight with the best validation score in each fold that was searched."""
    found = [r for r in results_of("mnist-subsets-search") if r.data == data and metric in r.metrics]
    best = []
    for seed in sorted({r.seed for r in found}):
        trials = {float(r.variant[2:]): r.metrics[metric] for r in found if r.seed == seed}
        best.append(min(trials, key=trials.__getitem__))
    return best


def weights_by_size() -> Row:
    """The best w by the number of images, over all folds that were searched."""
    from scipy import stats

    pairs = [(size, w) for size in SIZES for w in best_by_fold(f"MNIST{size}")]
    folds = Counter(size for size, _ in pairs)
    found = stats.spearmanr(*zip(*pairs, strict=True))
    typical = [math.exp(fmean(math.log(w) for n, w in pairs if n == size)) for size in folds]
    told = ", ".join(f"{w:.1e} ({folds[size]})" for size, w in zip(folds, typical, strict=True))
    number = (
        f"best w by validation NLL, geometric mean over folds (their number), for {', '.join(map(str, folds))} images: "
        f"{told}; Spearman's correlation with the number of images over all {len(pairs)} folds "
        f"{found.statistic:.2f} ({p_text(found.pvalue)})".replace("-0.", "−0.")
    )
    falls = found.pvalue < 0.05 and found.statistic < 0
    says = f"The optimal w, searched on validation data, is larger for smaller sets{_OWN}"
    return checked(says, "mnist-subsets-search", falls, number, "the correlation is negative, p < 0.05")


def optimal_weights(experiment: str, says: str) -> Row:
    """The paper's choice of w on each data set beside that of our search, by NLL."""
    search = EXPERIMENTS[experiment].search
    assert search
    results = results_of(search.experiment)
    best = {data: search.best(data, search.metrics[0], results) for data in search.published}
    told = [f"{data} {'/'.join(f'{w:g}' for w in best[data])} (paper {search.published[data]:g})" for data in best]
    held = [search.published[data] in best[data] for data in best]
    return checked(says, search.experiment, held, f"by mean validation NLL in our search: {', '.join(told)}")


def best_weights() -> Row:
    """The best w on MNIST100, by accuracy and by calibration."""
    found = [r for r in results_of("mnist-subsets-search") if r.data == "MNIST100" and "accuracy" in r.metrics]
    scores = {
        w: {m: fmean(r.metrics[m] for r in found if float(r.variant[2:]) == w) for m in ("accuracy", "nll", "ece10")}
        for w in sorted({float(r.variant[2:]) for r in found})
    }
    learned = {w: s for w, s in scores.items() if s["accuracy"] > 0.5}
    accurate = max(learned, key=lambda w: learned[w]["accuracy"])
    calibrated = min(learned, key=lambda w: learned[w]["ece10"])
    number = (
        f"validation: best accuracy at w = {accurate:g} ({100 * scores[accurate]['accuracy']:.2f}%; at 0.0003 "
        f"{100 * scores[3e-4]['accuracy']:.2f}%), smallest calibration error of the weights that learn at w = "
        f"{calibrated:g} ({scores[calibrated]['ece10']:.4f}; at 3e-05 {scores[3e-5]['ece10']:.4f}, at 0.0001 "
        f"{scores[1e-4]['ece10']:.4f})"
    )
    says = f"On MNIST100, w = 0.0003 gives the best accuracy and w = 0.0001 the best calibration{_OWN}"
    return checked(says, "mnist-subsets-search", [accurate == 3e-4, calibrated == 1e-4], number)


def chosen_weight() -> str:
    """How w was chosen for calibration, in words: 1e-5 has a smaller error on validation images than 3e-5."""
    found = [r for r in results_of("mnist-subsets-search") if r.data == "MNIST100" and "ece10" in r.metrics]
    least, ours = (
        [r.metrics["ece10"] for r in sorted(found, key=lambda r: r.seed) if float(r.variant[2:]) == w]
        for w in (1e-5, 3e-5)
    )
    return (
        f"with w chosen on validation images (ours 3e-05; the smallest error there is that of 1e-05, "
        f"{fmean(least):.4f} against {fmean(ours):.4f}, {p_text(paired(least, ours))}; of the two, 3e-05 is the more "
        "accurate)"
    )


def everywhere(rival: str, metric: str = "ece", experiment: str = "mnist-subsets", where: str = "") -> Row:
    """P-STN against another model at every size."""
    told, better, worse = [], [], 0
    scale, digits, sign = (100, 2, 1) if metric == "accuracy" else (1, 4, -1)
    for size in SIZES:
        other, pstn = ([scale * v for v in values(experiment, m, f"MNIST{size}", metric)] for m in (rival, "P-STN"))
        p, lead = paired(pstn, other), sign * (fmean(pstn) - fmean(other))
        sure = p is not None and p < 0.05
        better.append(sure and lead > 0)
        worse += sure and lead < 0
        told.append(f"{size}: {fmean(pstn):.{digits}f} against {fmean(other):.{digits}f} ({p_text(p)}{tested(p)})")
    than = {"CNN": "common classifiers", "STN": "the original spatial transformer"}[rival]
    what = "accuracy (%)" if metric == "accuracy" else "calibration error, 15 bins,"
    number = f"{what} of P-STN and {rival} by number of images: {'; '.join(told)}"
    kind = "more accurate" if metric == "accuracy" else "better calibrated"
    row = checked(f"The ensemble of predictions is {kind} than {than}{where}", experiment, better, number)
    return row._replace(verdict=row.verdict + f", {worse} reversed" * (worse > 0))


def priors() -> list[Row]:
    """The sweep of the prior."""
    from pstn.experiments import prior

    def of(beta0: float, w: float, metric: str) -> list[float]:
        return values("prior", f"beta0={beta0:g}", prior.DATA, metric, f"w={w:g}")

    def near(beta0: float, w: float) -> float | None:
        ours, tuned = ([100 * v for v in of(*cell, "accuracy")] for cell in ((beta0, w), (1.0, chosen[1.0])))
        return equivalence_by_fold(ours, tuned, 1.48)

    def tell(beta0: float, w: float) -> str:
        text = f"beta0 = {beta0:g}: w = {w:g}, {100 * fmean(of(beta0, w, 'accuracy')):.2f}%"
        text += f", NLL {fmean(of(beta0, w, 'nll')):.3f}"
        return text if (beta0, w) == (1.0, chosen[1.0]) else f"{text} ({p_text(near(beta0, w))})"

    chosen = {b: min(grid, key=lambda w: fmean(of(b, w, "valid_nll"))) for b, grid in prior.WEIGHTS.items()}
    found = [near(beta0, w) for beta0, w in chosen.items() if beta0 != 1.0]
    rule = "p < 0.05: the accuracy is less than 1.48 points from that of beta0 = 1 with its w"
    fixed = {beta0: 100 * fmean(of(beta0, prior.FIXED, "accuracy")) for beta0 in prior.WEIGHTS}
    unturned = ", ".join(f"beta0 = {beta0:g} {mean:.2f}" for beta0, mean in fixed.items())
    searched = min(fixed, key=lambda beta0: fmean(of(beta0, prior.FIXED, "valid_nll")))
    alone = near(searched, prior.FIXED)
    return [
        checked(
            f"With w tuned on validation data the model is robust to the choice of the prior{_OWN}",
            "prior", [p is not None and p < 0.05 for p in found],
            "; ".join(tell(beta0, w) for beta0, w in chosen.items()), rule,
        ),
        checked(
            f"(implied) without tuning w the prior matters{_OWN}", "prior",
            max(fixed.values()) - min(fixed.values()) > 1.48, f"w = 0.0003; accuracy (%): {unturned}",
            "they differ by more than 1.48 points",
        ),
        checked(
            f"Instead of w one could search beta0{_OWN}", "prior", alone is not None and alone < 0.05,
            f"at w = 0.0003 validation chooses {tell(searched, prior.FIXED).replace(': w = 0.0003', '')}", rule,
        ),
    ]  # fmt: skip


DEPTHS = (1, 2, 3, 4, 5)


Medians = dict[str, dict[int, float]]


def depth_row(says: str, holds: Callable[[Medians], bool], rule: str, metric: str, *models: str) -> Row:
    """Medians by the depth of the classifier; a model is "STN", or "NN, upright"."""
    scale, digits = (100, 2) if metric == "accuracy" else (1, 3)
    held: Medians = {}
    for name in models:
        model, _, data = name.partition(", ")
        runs = {d: values("failure-mode", model, data or "rotated", metric, f"depth={d}") for d in DEPTHS}
        held[name] = {d: scale * median(own) for d, own in runs.items()}
    told = [f"{name}: {', '.join(f'{v:.{digits}f}' for v in own.values())}" for name, own in held.items()]
    what = "accuracy" if metric == "accuracy" else "variance of the angle"
    return checked(says, "failure-mode", holds(held), f"median {what} for 1 to 5 layers: {'; '.join(told)}", rule)


def weights(experiment: str, about: int, says: str, data: str, *others: str, note: str = "") -> Row:
    """How many weights the models train."""
    models = (*others, "STN", "P-STN")
    found = {
        r.model: r.settings["trained_parameters"] for r in results_of(experiment) if r.data == data and not r.variant
    }
    held = [abs(found[model] / about - 1) < 0.1 for model in models]
    row = checked(says, experiment, held, ", ".join(f"{m} {found[m]:,}" for m in models), "within a tenth of it")
    return row._replace(number=row.number + note)


def harder() -> Row:
    """The same CNN on upright garments and on upright digits."""
    garments = [100 * v for v in values("placed-fashion", "CNN", "upright", "accuracy", "as the authors ran it")]
    digits = [100 * v for v in values("rotated-mnist", "CNN", "upright", "accuracy")]
    p = welch(summarise(garments), summarise(digits))
    return checked(
        "FashionMNIST is slightly more challenging than MNIST", "placed-fashion",
        p is not None and p < 0.05 and fmean(garments) < fmean(digits),
        f"the CNN, upright: {fmean(garments):.2f} against {fmean(digits):.2f}% ({p_text(p)})", "p < 0.05",
    )  # fmt: skip


def failed() -> Row:
    """STN and P-STN runs that end near guessing, of all on ten classes with the settings of an experiment."""
    told, ended = [], {}
    for model in ("STN", "P-STN"):
        runs = [
            r for name in ("rotated-mnist", "placed-fashion", "mnist-subsets", OWN, "calibration", "failure-mode")
            for r in results_of(name) if r.model == model
        ]  # fmt: skip
        lost = [r for r in runs if r.metrics.get("accuracy", 0.0) < 0.2]
        ended[model] = len(lost)
        where = Counter(f"{r.experiment} {r.variant}".strip() for r in lost)
        told.append(f"{model} {len(lost)} of {len(runs)} ({', '.join(f'{n} of {w}' for w, n in where.items())})")
    return checked(
        "STN training may diverge, as a wrong transformation leaves no gradient, and marginalisation helps",
        "placed-fashion", ended["P-STN"] < ended["STN"],
        f"runs on ten classes that end below 20%: {', '.join(told)}; in none did a loss cease to be finite",
        "the P-STN's are fewer",
    )  # fmt: skip


def recovered() -> Row:
    """The mean errors of position and scale of placed garments, in our setting and in the authors'."""
    told, held = [], []
    for variant, garment in (("", 48), ("as the authors ran it", 28)):
        for model in ("STN", "P-STN"):
            names = ("position_error", "scale_error")
            position, scale = (fmean(values("placed-fashion", model, "placed", name, variant)) for name in names)
            held.append(position < 4.8 and scale < 0.1 * garment / 96)
            told.append(f"{model} {variant or 'in our setting'} {position:.2f} pixels and {scale / (garment / 96):.0%}")
    return checked(
        "Both localizers recover the transformation", "placed-fashion", held,
        f"mean errors of position (canvas of 96 pixels) and scale: {'; '.join(told)}",
        "the position is less than 4.8 pixels, a twentieth of the canvas, and the scale less than 10% off",
    )  # fmt: skip


def by_time() -> list[Row]:
    """Where in time FaceAll is augmented."""
    profiles = time_series.profiles_of(results_of("time-series"))
    p, ratios = time_series.uneven(profiles), time_series.left_out_ratios(profiles)
    edge = len(profiles[0]) // 10
    (first, last), (begin, end) = time_series.INTERVALS
    told, means, ps = [], [], []
    for start in (max(first, edge), first + 1):
        pairs = [(fmean(f[begin : end + 1]), fmean(f[start : last + 1])) for f in profiles]
        logs = [math.log(more / less) for more, less in pairs]
        ps.append(paired(logs, [0.0] * len(logs)))
        means.append(math.exp(fmean(logs)))
        told.append(f"{means[-1]:.2f} times that in [{start}; {last}] ({p_text(ps[-1])})")
    return [
        checked(
            "The learned augmentation differs between intervals of time (FaceAll)", "time-series",
            p is not None and p < 0.05,
            "the fifth that the other four runs displace most over the one they displace least: "
            f"{', '.join(f'{ratio:.2f}' for ratio in ratios)}; above {time_series.UNEVEN}: {p_text(p)}",
            "p < 0.05, one-sided, of the logarithms", SHORT,
        ),
        checked(
            "It augments more in [60; 110] and less in [0; 50]", "time-series",
            means[0] > 1 and ps[0] is not None and ps[0] < 0.05,
            f"in [60; 110] the displacement is {told[0]}; with the end, where all displacements tend to 0, {told[1]}",
            "the first p < 0.05", SHORT,
        ),
    ]  # fmt: skip


def by_ranks(row: Row) -> Row:
    """The row of P-STN against STN on rotated digits, with the test of ranks, which one run far off sways less."""
    from scipy import stats

    stn, pstn = (values("rotated-mnist", m, "rotated", "accuracy") for m in ("STN", "P-STN"))
    p = float(stats.wilcoxon(pstn, stn).pvalue)
    note = (
        f"; it is the t-test that one STN, of {100 * min(stn):.1f}%, keeps from significance: by Wilcoxon's test of "
        f"signed ranks {p_text(p)}. The verdict is the t-test's, as everywhere"
    )
    return row._replace(number=row.number + note)


def trained_first() -> Row:
    """Runs of rotated MNIST whose localizer is well ahead of the frozen classifier alone."""
    alone, told, held = values("rotated-mnist", "CNN", "rotated", "accuracy"), [], []
    for model in ("STN", "P-STN"):
        own = [v > c + 0.05 for v, c in zip(values("rotated-mnist", model, "rotated", "accuracy"), alone, strict=True)]
        told.append(f"{model} {sum(own)} of {len(own)}")
        held += own
    says = "It is avoided by a classifier that is trained beforehand and frozen (rotated MNIST)"
    rule = "every run is more than 5 points ahead of its classifier alone"
    return checked(says, "rotated-mnist", held, f"runs that learn to turn: {', '.join(told)}", rule)


def sections() -> dict[str, list[Row]]:
    """The rows by section of the paper."""
    rotated, placed = "rotated-mnist", "placed-fashion"
    larger = values(rotated, "P-STN", "rotated", "larger_variance")
    near_zero = 0.01
    of_five = {model: fmean(line.values(results_of("time-series"))) for model, line in time_series.MEAN.items()}
    five = ", ".join(f"{model} {mean:.2f}" for model, mean in of_five.items())
    still = {}
    for model in ("STN", "P-STN"):
        found = (values("failure-mode", model, "rotated", "angle_variance", f"depth={d}") for d in DEPTHS)
        still[model] = sum(v < near_zero for own in found for v in own)
    return {
        "Figure 1, section 4.3: the loss, samples and the prior": [
            orders(
                "loss-landscape",
                "Averaging over transformations makes the loss smoother, with fewer local minima: minima per image",
                lambda c: c.better.metric.name == "minima",
            ),
            orders(
                "loss-landscape", "The same: ups and downs of the loss", lambda c: c.better.metric.name == "roughness",
            ),
            *priors(),
            orders("ablations", f"One sample in training, S = 1, often suffices{_OWN}", lambda c: c.claimed),
        ],
        "5.1.1 Rotated MNIST": [
            weights(rotated, 72_000, "The localizers of rotated MNIST have about 72 thousand parameters", "rotated"),
            cells(
                rotated, "The frozen CNN has 99.4% on upright and 41.2% on rotated digits",
                lambda li: li.model == "CNN",
            ),
            cells(
                rotated, "STN and P-STN reach 76.13% and 82.98%",
                lambda li: li.model != "CNN" and li.metric.name == "accuracy",
            ),
            cells(rotated, "Their error of the angle is 0.76 and 0.59", lambda li: li.metric.name == "error_mod_pi"),
            orders(
                rotated, "Both learn to undo rotations: STN and P-STN are ahead of the CNN",
                lambda c: c.worse.model == "CNN",
            ),
            by_ranks(orders(rotated, "The P-STN is ahead of the STN in accuracy", is_order("P-STN", "STN"))),
            orders(rotated, "The P-STN localises better than the STN", is_order("P-STN", "STN", "error_mod_pi")),
            cells(
                rotated, "Badly localised images have 17% larger variances",
                lambda li: li.metric.name == "larger_variance",
            ),
            checked(
                "The variance is larger for difficult images", rotated, min(larger) > 0,
                f"larger in {sum(v > 0 for v in larger)} of {len(larger)} runs, by {100 * min(larger):.1f} to "
                f"{100 * max(larger):.1f}%", "larger in every run",
            ),
        ],
        "5.1.2 Random placement FashionMNIST": [
            weights(placed, 193_000, "The localizers of placed garments have about 193 thousand parameters", "placed"),
            cells(placed, "The CNN has 90.63% on the garments themselves", lambda li: li.model == "CNN"),
            harder(),
            cells(placed, "STN and P-STN reach 84.41% and 84.99% on placed garments", lambda li: li.model != "CNN"),
            recovered(),
            orders(placed, "The P-STN does slightly better than the STN", is_order("P-STN", "STN")),
            not_here(
                "The samples look visually pleasing, as candidates for augmentation",
                "a matter of looking: the figure on the page shows them", placed,
            ),
        ],
        "5.1.3 Traffic signs (MTSD)": [
            not_here(
                "The subset of MTSD has 4,698 training and 500 test images of ten classes",
                "MTSD cannot be passed on; the loader makes the subset where it is present", "traffic-signs",
            ),
            not_here(
                "Accuracies of 76.0, 90.6 and 92.2% and NLLs of 0.49, 0.31 and 0.29 for CNN, STN and P-STN",
                "other photos, other classes: nothing is tested against these numbers", "traffic-signs",
            ),
            *signs(),
        ],
        "5.2.1 MNIST and subsets": [
            weights("mnist-subsets", 28_000, "All models have about 28 thousand parameters", "MNIST100", "CNN"),
            cells("mnist-subsets", "Table 1: the P-STN's five accuracies", lambda li: li.model == "P-STN"),
            cells("mnist-subsets", "Table 1: the CNN's five accuracies", lambda li: li.model == "CNN"),
            cells("mnist-subsets", "Table 1: the STN's five accuracies", lambda li: li.model == "STN"),
            cells(
                "mnist-stn-start", "The same up to 1,000 images, from the authors' start at scale 0.5 (on a CPU)",
                lambda li: True,
            ),
            orders(
                "mnist-subsets",
                "The P-STN is significantly ahead of the CNN on the small sets (30, 100 and 1,000 images)",
                is_order("P-STN", "CNN"),
            ),
            orders(
                "mnist30-seeds", "The same on 30 images, with four seeds on each fold (on a CPU); p over seeds",
                is_order("P-STN", "CNN"),
            ),
            orders("mnist-subsets", "The P-STN is significantly ahead of the STN", is_order("P-STN", "STN")),
            vanishing(),
            scarce(),
            scarce(OWN, _OWN),
            *ensemble(),
            orders(
                OWN, f"The P-STN is significantly ahead of the CNN on the small sets{_OWN}", is_order("P-STN", "CNN"),
            ),
            orders(OWN, f"The P-STN is significantly ahead of the STN{_OWN}", is_order("P-STN", "STN")),
            orders(OWN, f"The STN performs less well than the CNN{_OWN}", is_order("CNN", "STN")),
            cells(OWN, f"Table 1: the P-STN's five accuracies{_OWN}", lambda li: li.model == "P-STN"),
            vanishing(OWN, _OWN),
            optimal_weights(
                "mnist-subsets", f"The optimal w for 30 to 10,000 images are 0.001, 3e-4, 1e-4, 3e-5 and 1e-5{_OWN}",
            ),
            weights_by_size(),
            orders("mnist-subsets", "The STN performs less well than the CNN", is_order("CNN", "STN")),
            not_here(
                "That might be because the digits are upright already and wrong transformations do harm",
                "offered as a possible explanation; no run isolates it", "mnist-subsets",
            ),
            orders(
                "ablations",
                f"The gain comes from augmentation that is learned per image, against one posterior for all{_OWN}",
                lambda c: c.worse.variant == "posterior=global" and c.better.metric.name == "accuracy",
            ),
        ],
        "5.2.2 UCR time series": [
            not_here(
                "The UCR archive has 108 data sets of one variable",
                "a statement about the archive, of which five sets are used", "time-series",
            ),
            weights(
                "time-series", 1_000_000, "All models have about a million parameters", "FaceAll", "CNN",
                note="; the layers are those of the authors' settings",
            ),
            cells(
                "time-series", "Table 2: the P-STN's accuracies",
                lambda li: li.model == "P-STN" and not li.is_mean and li.data != "UWaveGestureLibraryX",
            ),
            cells(
                "time-series", "Table 2: the accuracies of CNN and STN",
                lambda li: li.model != "P-STN" and not li.is_mean and li.data != "UWaveGestureLibraryX",
            ),
            not_here(
                "Table 2: the accuracies on uWaveGestureLibrary, and so the means over five sets",
                "its test part was unavailable; with a part of its training part in its place, the means are (%): "
                f"{five}", "time-series",
            ),
            orders(
                "time-series",
                "The P-STN's mean accuracy is higher than those of STN and CNN, and the STN's than the CNN's (with our "
                "own test part of one set)", lambda c: c.claimed and c.better.is_mean,
            ),
            orders("time-series", "The same without that set", lambda c: not c.claimed),
            orders(
                "time-series",
                "Table 2's significance marks: each bold number is significantly ahead of the best that is not",
                lambda c: not c.better.is_mean and c.comparable,
            ),
            optimal_weights(
                "time-series",
                "The optimal weights, searched on validation data, are 0.0001, 1e-05, 0.001, 0 and 0.0001",
            ),
            *by_time(),
        ],
        "5.3 Calibration on MNIST100": [
            cells(
                "calibration",
                "Calibration errors of 0.0743 (CNN), 0.1160 (STN), 0.0567 and 0.0271 (P-STN, w = 0.0003 and 0.0001)",
                lambda li: li.data == "MNIST100" and li.variant != "w=3e-05",
            ),
            cells(
                "calibration", f"The P-STN's best calibration is 0.0271, {chosen_weight()}",
                lambda li: li.data == "MNIST100" and li.variant == "w=3e-05",
            ),
            orders(
                "calibration", "Both P-STNs are better calibrated than the CNN",
                lambda c: c.better.data == "MNIST100" and c.worse.model == "CNN" and c.better.variant != "w=3e-05",
            ),
            orders(
                "calibration", "Both P-STNs are better calibrated than the STN",
                lambda c: c.better.data == "MNIST100" and c.worse.model == "STN" and c.better.variant != "w=3e-05",
            ),
            orders(
                "calibration", "With w chosen as above (3e-05) the P-STN is better calibrated than CNN and STN",
                lambda c: c.better.data == "MNIST100" and c.better.variant == "w=3e-05",
            ),
            cells(
                "calibration", f"The four calibration errors{_OWN}",
                lambda li: li.data == calibration.OWN_FOLDS and li.variant != "w=3e-05",
            ),
            cells(
                "calibration", f"The P-STN's best calibration is 0.0271, with w chosen as above (3e-05){_OWN}",
                lambda li: li.data == calibration.OWN_FOLDS and li.variant == "w=3e-05",
            ),
            orders(
                "calibration", f"Both P-STNs are better calibrated than CNN and STN{_OWN}",
                lambda c: c.better.data == calibration.OWN_FOLDS and c.better.variant != "w=3e-05",
            ),
            orders(
                "calibration", f"With w chosen as above (3e-05) the P-STN is better calibrated than CNN and STN{_OWN}",
                lambda c: c.better.data == calibration.OWN_FOLDS and c.better.variant == "w=3e-05",
            ),
            best_weights(),
        ],
        "5.4 A typical failure mode": [
            depth_row(
                "The STN behaves like the network without a localizer in most runs",
                lambda h: all(abs(h["STN"][d] - h["NN, rotated"][d]) < 1 for d in DEPTHS),
                "the medians are less than a point apart at every depth", "accuracy", "STN", "NN, rotated",
            ),
            orders("failure-mode", "The P-STN is ahead of the STN at every depth"),
            depth_row(
                "The P-STN is closer to the network on upright digits",
                lambda h: all(
                    abs(h["P-STN"][d] - h["NN, upright"][d]) < abs(h["NN, rotated"][d] - h["NN, upright"][d])
                    for d in DEPTHS
                ),
                "it is closer at every depth than the network on rotated digits", "accuracy", "P-STN", "NN, rotated",
                "NN, upright",
            ),
            depth_row(
                "The STN learns the identity for deeper classifiers",
                lambda h: all(h["STN"][d] < near_zero for d in (3, 4, 5)), "below 0.01 from 3 layers on",
                "angle_variance", "STN",
            ),
            depth_row(
                "More complex classifiers make the STN more prone to it",
                lambda h: h["STN"][1] > near_zero > h["STN"][5], "above 0.01 for 1 layer and below it for 5",
                "angle_variance", "STN",
            ),
            depth_row(
                "The P-STN localises when the classifier is simple",
                lambda h: all(h["P-STN"][d] > 0.1 for d in (1, 2)), "above 0.1 for 1 and 2 layers", "angle_variance",
                "P-STN",
            ),
            depth_row(
                "For bigger classifiers the P-STN predicts the identity as well",
                lambda h: all(h["P-STN"][d] < 0.1 for d in (4, 5)), "below 0.1 for 4 and 5 layers", "angle_variance",
                "P-STN",
            ),
            depth_row(
                "Decent accuracies are reached all the same",
                lambda h: all(h[m][d] > 85 for m in ("STN", "P-STN") for d in (2, 3, 4, 5)),
                "above 85% from 2 layers on", "accuracy", "STN", "P-STN",
            ),
            trained_first(),
        ],
        "6 Conclusion": [
            orders(
                rotated, "Marginalisation improves the localizer (rotated MNIST; placed garments and signs are above)",
                lambda c: is_order("P-STN", "STN")(c) or is_order("P-STN", "STN", "error_mod_pi")(c),
            ),
            orders(
                "mnist-subsets",
                "The sampled transformations act as augmentation and improve the overall performance (few digits)",
                is_order("P-STN", "CNN", places=("MNIST30", "MNIST100")),
            ),
            *(
                everywhere(rival, metric, experiment, where)
                for metric in ("accuracy", "ece")
                for rival in ("CNN", "STN")
                for experiment, where in (("mnist-subsets", ""), (OWN, _OWN))
            ),
            checked(
                "The STN is often brittle to train, and marginalisation makes training more robust", "failure-mode",
                still["P-STN"] < still["STN"],
                f"runs that end at the identity, with a variance of the angle below 0.01: STN {still['STN']} of 25, "
                f"P-STN {still['P-STN']} of 25", "the P-STN's are fewer",
            ),
            failed(),
        ],
    }  # fmt: skip


SIGN_INTERVALS = ROOT / "benchmarks" / "results" / "sign_intervals.json"


def sign_order(better: str, worse: str, says: str, metric: str) -> Row:
    """The order of two models on both tasks of the stand-in photos, by the intervals over seeds and signs."""
    held: dict[str, Any] = json.loads(SIGN_INTERVALS.read_text(encoding="utf-8"))
    told, words, digits = [], [], 2 if metric == "accuracy" else 3
    for task in (traffic_signs.TEN, traffic_signs.ALL):
        found = held[task][f"{better} - {worse}, {metric}"]
        low, high = found["interval"]
        ahead = low > 0 if metric == "accuracy" else high < 0
        behind = high < 0 if metric == "accuracy" else low > 0
        words.append("holds" if ahead else "reversed" if behind else "tie")
        interval = f"{signed(low, digits)} to {signed(high, digits)}"
        TESTED.append(found["p"])  # of so many draws that different tests may share it
        mark = f"\0{len(TESTED) - 1}\0"
        told.append(f"{task}: {signed(found['difference'], digits)} ({interval}, {words[-1]}{mark})")
    verdict = share([word == "holds" for word in words], NO if "reversed" in words else SHORT)
    file = SIGN_INTERVALS.relative_to(ROOT).as_posix()
    return Row(f"{says} {_STAND_IN}: {metric}", verdict, "; ".join(told), "traffic-signs", file)


_STAND_IN = "(on stand-in photos)"


def signs() -> list[Row]:
    """The order of the models on the stand-in photos."""
    cnn, outperforms = traffic_signs.CNN, "clearly outperforms the classifier of the full crops"
    orders_told = (
        ("STN", cnn, f"The STN {outperforms}"), ("P-STN", cnn, f"The P-STN {outperforms}"),
        ("P-STN", "STN", "The P-STN outperforms the STN"),
        ("P-STN", traffic_signs.CONSTANT, "The P-STN learns to localize the signs, against one constant window"),
        ("P-STN", traffic_signs.AROUND, "The same, against a window of 1.5 times the true box"),
    )  # fmt: skip
    return [
        *(sign_order(*order, metric) for order in orders_told for metric in ("accuracy", "NLL")),
        orders(
            "traffic-signs",
            f"The same, overlap with the box, against one constant window {_STAND_IN}; p over seeds alone",
            is_order("P-STN", traffic_signs.CONSTANT, "iou", claimed=False),
        ),
        not_here(
            "It is the ensemble that makes the P-STN better than the STN",
            "it is not significantly better here, and what one sample scores was not recorded; digits and garments are "
            "in section 5.2.1",
            "traffic-signs",
        ),
    ]


def table(rows: Iterable[Row]) -> str:
    """Rows as Markdown."""
    lines = ["| the paper says | here | our number | file |", "| --- | --- | --- | --- |"]
    for row in rows:
        page = row.experiment.removesuffix("-search")
        file = f"`{row.file or row.experiment + '.jsonl'}`, [page]({page}.md)"
        lines.append(f"| {row.says} | {row.verdict} | {row.number.replace('|', '/')} | {file} |")
    return "\n".join(lines)


def with_tables(text: str) -> str:
    """The page with its tables as they should be."""
    TESTED.clear()
    found = sections()
    pairs = list(zip(TESTED, holm(TESTED), strict=True))
    lost = [p is not None and p < LEVEL <= (corrected or 0.0) for p, corrected in pairs]
    significant = sum(p is not None and p < LEVEL for p in TESTED)
    tally = Counter(re.sub(r"[*]|[:,].*", "", row.verdict) for rows in found.values() for row in rows)
    count = f"{sum(tally.values())} statements: {', '.join(f'{n} {word}' for word, n in tally.most_common())}."
    count += (
        f" Of {len(pairs)} tests of an order, {significant} find a difference at p < 0.05, as the paper tests, one by "
        f"one; {significant - sum(lost)} of them after Holm's correction for all {len(pairs)}. † marks the other "
        f"{sum(lost)}."
    )
    body = "\n\n".join([count, *(f"## {title}\n\n{table(rows)}" for title, rows in found.items())])
    body = _MARK.sub(lambda found: "†" * lost[int(found[1])], body)
    return re.sub(
        r"(<!-- claims: begin -->\n).*?(<!-- claims: end -->)",
        lambda m: f"{m[1]}\n{body}\n\n{m[2]}",
        text,
        flags=re.DOTALL,
    )


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
