"""Write the tables of docs/experiments/claims.md from the committed results: python docs/make_claims_table.py.

Every row is a statement of the paper that can be checked: what it says, what became of it here, the number, and the
result file. The verdicts are computed, by the tests that the report makes.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache, partial
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

from pstn.experiments import EXPERIMENTS, calibration
from pstn.experiments.time_series import MEAN
from pstn.report import Claim, Line, Result, equivalence, paired, read_results
from pstn.report.statistics import summarise
from pstn.report.tables import Finding, check_claims

ROOT = Path(__file__).parents[1]
PAGE, RESULTS = ROOT / "docs" / "experiments" / "claims.md", ROOT / "results"

YES, PART, NO, SHORT, OUT, LATER = (
    "**reproduced**", "in part", "**not reproduced**", "not shown", "not testable here", "not run yet"
)  # fmt: skip


class Row(NamedTuple):
    """A statement of the paper, what became of it, the number, and the experiment whose file has it."""

    says: str
    verdict: str
    number: str
    experiment: str


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


def name_of(line: Line) -> str:
    """The heading of its column."""
    return line.heading[1]


def orders(experiment: str, says: str, wanted: Callable[[Claim], bool] = lambda claim: True) -> Row:
    """A claim that one model is ahead of another, at one or several places."""
    study = EXPERIMENTS[experiment]
    every = [f for f in check_claims(study, results_of(experiment)) if wanted(f.claim)]
    assert every, says
    found = [f for f in every if f.ahead is not None]

    several = len({(name_of(f.claim.better), name_of(f.claim.worse)) for f in every}) > 1

    def tell(finding: Finding) -> str:
        metric, place = finding.claim.better.metric, finding.claim.better.heading[0]
        place += f", {name_of(finding.claim.better)} against {name_of(finding.claim.worse)}" * several
        return f"{place}: {signed(finding.difference, metric.digits)} ({p_text(finding.p)}, {finding.words})"

    words = [finding.words for finding in found]
    if not words:
        verdict = LATER
    elif set(words) == {"holds"}:
        verdict = YES
    elif "holds" in words:
        verdict = f"{PART}: {words.count('holds')} of {len(words)}"
    else:
        verdict = NO if "reversed" in words else SHORT
    return Row(says, _so_far(verdict, len(every) - len(found)), "; ".join(map(tell, found)), experiment)


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
    tested = [kind for kind in kinds if kind != "other data"]
    if not kinds:
        verdict_text = LATER
    elif not tested:
        verdict_text = OUT
    elif set(tested) == {"agrees"}:
        verdict_text = YES
    elif "agrees" in tested:
        verdict_text = f"{PART}: {tested.count('agrees')} of {len(tested)} agree"
    elif "worse" in tested:
        verdict_text = NO
    else:
        verdict_text = "better than the paper's" if set(tested) == {"better"} else "undecided"
    return Row(says, _so_far(verdict_text, missing), "; ".join(told), experiment)


def checked(says: str, experiment: str, holds: bool | None, number: str) -> Row:
    """A statement that is true or false of our numbers; None where they are missing."""
    return Row(says, {True: YES, False: NO, None: LATER}[holds], number, experiment)


def not_here(says: str, why: str, experiment: str) -> Row:
    """A statement that cannot be tested here, and why."""
    return Row(says, OUT, why, experiment)


def means(label: str, *numbers: tuple[str, Iterable[float]], scale: float = 1.0, digits: int = 2) -> str:
    """Means by name, in words."""
    told = [f"{name} {scale * fmean(runs):.{digits}f}" for name, values in numbers if (runs := list(values))]
    return f"{label}: {', '.join(told)}" if told else ""


def is_order(
    better: str, worse: str, metric: str = "accuracy", places: tuple[str, ...] = ()
) -> Callable[[Claim], bool]:
    """Whether a claim is this order."""

    def wanted(claim: Claim) -> bool:
        ahead, behind = claim.better, claim.worse
        same = (ahead.model, behind.model, ahead.metric.name) == (better, worse, metric)
        return same and claim.claimed and (not places or ahead.heading[0] in places)

    return wanted


# Folds of our own, all sizes of which were run.
OWN, _OWN = "mnist-own-folds", " (folds of our own)"
SIZES = (30, 100, 1000, 3000, 10_000)


def vanishing(experiment: str = "mnist-subsets", where: str = "") -> Row:
    """CNN and P-STN at the two largest sizes: less than two of the paper's standard deviations apart?"""
    says = f"On the larger sets (3,000 and 10,000 images) the differences vanish{where}"
    told, ps = [], []
    for data, margin in (("MNIST3000", 0.42), ("MNIST10000", 0.68)):
        cnn, pstn = ([100 * v for v in values(experiment, m, data, "accuracy")] for m in ("CNN", "P-STN"))
        if cnn and pstn:
            p = equivalence(summarise(pstn), summarise(cnn), margin)
            ps.append(p)
            difference = signed(fmean(pstn) - fmean(cnn), 2)
            told.append(f"{data}: P-STN − CNN {difference}, less than {margin} apart: {p_text(p)}")
    verdict = LATER if not ps else YES if all(p < 0.05 for p in ps) else PART if any(p < 0.05 for p in ps) else SHORT
    return Row(says, verdict, "; ".join(told), experiment)


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
    says = "The optimal w, searched on validation data, is larger for smaller sets"
    return checked(says, "mnist-subsets-search", falls, number)


def best_weights() -> Row:
    """The best w on MNIST100, by accuracy and by calibration."""
    found = [r for r in results_of("mnist-subsets-search") if r.data == "MNIST100" and "accuracy" in r.metrics]
    scores = {
        w: {m: fmean(r.metrics[m] for r in found if float(r.variant[2:]) == w) for m in ("accuracy", "nll", "ece10")}
        for w in sorted({float(r.variant[2:]) for r in found})
    }
    learned = {w: s for w, s in scores.items() if s["accuracy"] > 0.5}
    accurate, calibrated = (
        max(learned, key=lambda w: learned[w]["accuracy"]),
        min(learned, key=lambda w: learned[w]["ece10"]),
    )
    number = (
        f"validation: best accuracy at w = {accurate:g} ({100 * scores[accurate]['accuracy']:.2f}%; at 0.0003 "
        f"{100 * scores[3e-4]['accuracy']:.2f}%), smallest calibration error of the weights that learn at w = "
        f"{calibrated:g} ({scores[calibrated]['ece10']:.4f}; at 3e-05 {scores[3e-5]['ece10']:.4f}, at 0.0001 "
        f"{scores[1e-4]['ece10']:.4f})"
    )
    right = (accurate == 3e-4) + (calibrated == 1e-4)
    return Row("On MNIST100, w = 0.0003 gives the best accuracy and w = 0.0001 the best calibration",
               YES if right == 2 else NO if not right else PART, number, "mnist-subsets-search")  # fmt: skip


def calibrated_everywhere(experiment: str = "mnist-subsets", where: str = "") -> Row:
    """P-STN against CNN at every size."""
    told, better = [], []
    for size in SIZES:
        cnn, pstn = (values(experiment, m, f"MNIST{size}", "ece") for m in ("CNN", "P-STN"))
        if cnn and pstn:
            p = paired(pstn, cnn)
            better.append(fmean(pstn) < fmean(cnn) and p is not None and p < 0.05)
            told.append(f"{size}: {fmean(pstn):.4f} against {fmean(cnn):.4f} ({p_text(p)})")
    verdict = (
        LATER if not told else YES if all(better) else f"{PART}: {sum(better)} of {len(better)}" if any(better) else NO
    )
    says = f"The ensemble of predictions is better calibrated than common classifiers{where}"
    number = f"calibration error of P-STN and CNN by number of images: {'; '.join(told)}" if told else ""
    return Row(says, _so_far(verdict, len(SIZES) - len(told)), number, experiment)


def priors() -> list[Row]:
    """The sweep of the prior."""
    from pstn.experiments import prior

    says = "With w tuned on validation data the model is robust to the choice of the prior"
    chosen, fixed = {}, {}
    for beta0, weights in prior.WEIGHTS.items():

        def of(w: float, metric: str, beta0: float = beta0) -> list[float]:
            return values("prior", f"beta0={beta0:g}", prior.DATA, metric, f"w={w:g}")

        if not all(of(w, "valid_nll") for w in weights):
            return [checked(says, "prior", None, "")]
        w = min(weights, key=lambda w: fmean(of(w, "valid_nll")))
        chosen[beta0], fixed[beta0] = (w, of(w, "accuracy"), of(w, "nll")), of(prior.FIXED, "accuracy")
    reference, told, agree = summarise([100 * v for v in chosen[1.0][1]]), [], []
    for beta0, (w, accuracy, nll) in chosen.items():
        ours = summarise([100 * v for v in accuracy])
        p = None if beta0 == 1.0 else equivalence(ours, reference, 1.48)
        agree += [] if p is None else [p < 0.05]
        told.append(
            f"beta0 = {beta0:g}: w = {w:g}, {ours.mean:.2f}%, NLL {fmean(nll):.3f}"
            + (f" ({p_text(p)})" if p is not None else "")
        )
    number = f"{'; '.join(told)} (p: less than 1.48 points from beta0 = 1)"
    verdict = YES if all(agree) else f"{PART}: {sum(agree)} of {len(agree)}" if any(agree) else NO
    spread = max(map(fmean, fixed.values())) - min(map(fmean, fixed.values()))
    unturned = means("accuracy (%)", *((f"beta0 = {b:g}", runs) for b, runs in fixed.items()), scale=100)
    return [
        Row(says, verdict, number, "prior"),
        checked("(implied) without tuning w the prior matters", "prior", spread > 0.0148, f"w = 0.0003; {unturned}"),
    ]


DEPTHS = (1, 2, 3, 4, 5)


Medians = dict[str, dict[int, float]]


def depth_row(says: str, holds: Callable[[Medians], bool], metric: str, *models: str) -> Row:
    """Medians by the depth of the classifier; a model is "STN", or "NN, upright"."""
    scale, digits = (100, 2) if metric == "accuracy" else (1, 3)
    held: Medians = {}
    for name in models:
        model, _, data = name.partition(", ")
        runs = {d: values("failure-mode", model, data or "rotated", metric, f"depth={d}") for d in DEPTHS}
        held[name] = {d: scale * median(own) for d, own in runs.items()}
    told = [f"{name}: {', '.join(f'{v:.{digits}f}' for v in own.values())}" for name, own in held.items()]
    what = "accuracy" if metric == "accuracy" else "variance of the angle"
    return checked(says, "failure-mode", holds(held), f"median {what} for 1 to 5 layers: {'; '.join(told)}")


def sections() -> dict[str, list[Row]]:
    """The rows by section of the paper."""
    rotated, placed = "rotated-mnist", "placed-fashion"
    larger = values(rotated, "P-STN", "rotated", "larger_variance")
    errors = [values(placed, m, "placed", "position_error") for m in ("STN", "P-STN")]
    parameters = {
        "CNN of MNIST": ("mnist-own-folds", "CNN", "MNIST100"), "STN": ("mnist-own-folds", "STN", "MNIST100"),
        "P-STN": ("mnist-own-folds", "P-STN", "MNIST100"), "series CNN": ("time-series", "CNN", "FaceAll"),
        "series P-STN": ("time-series", "P-STN", "FaceAll"),
    }  # fmt: skip
    sizes = {
        name: next(r.settings["parameters"] for r in results_of(e) if (r.model, r.data, r.variant) == (m, d, ""))
        for name, (e, m, d) in parameters.items()
    }
    uneven = values("time-series", "P-STN", "FaceAll", "unevenness", "by time")
    chosen = EXPERIMENTS["time-series"].search
    assert chosen
    searched = results_of("time-series-search")
    best = {data: chosen.best(data, chosen.metrics[0], searched) for data in chosen.published}
    hits = [data for data, w in chosen.published.items() if w in best[data]]
    near_zero = 0.01
    five = means(
        "the means are (%)",
        *((line.model, line.values(results_of("time-series"))) for line in MEAN.values()),
    )
    still = {
        model: sum(
            v < near_zero
            for d in DEPTHS
            for v in values("failure-mode", model, "rotated", "angle_variance", f"depth={d}")
        )
        for model in ("STN", "P-STN")
    }
    return {
        "Figure 1, section 4.3: the loss, samples and the prior": [
            orders(
                "loss-landscape",
                "Averaging over transformations makes the loss smoother, with fewer local minima: minima per image",
                lambda c: c.better.metric.name == "minima",
            ),
            orders(
                "loss-landscape", "The same: ups and downs of the loss", lambda c: c.better.metric.name == "roughness"
            ),
            *priors(),
            orders("ablations", "One sample in training, S = 1, often suffices", lambda c: c.claimed),
        ],
        "5.1.1 Rotated MNIST": [
            cells(
                rotated, "The frozen CNN has 99.4% on upright and 41.2% on rotated digits", lambda li: li.model == "CNN"
            ),
            cells(
                rotated,
                "STN and P-STN reach 76.13% and 82.98%",
                lambda li: li.model != "CNN" and li.metric.name == "accuracy",
            ),
            cells(rotated, "Their error of the angle is 0.76 and 0.59", lambda li: li.metric.name == "error_mod_pi"),
            orders(rotated, "Both learn to undo rotations: the STN is ahead of the CNN", is_order("STN", "CNN")),
            orders(rotated, "The P-STN is ahead of the STN in accuracy", is_order("P-STN", "STN")),
            orders(rotated, "The P-STN localises better than the STN", is_order("P-STN", "STN", "error_mod_pi")),
            cells(
                rotated,
                "Badly localised images have 17% larger variances",
                lambda li: li.metric.name == "larger_variance",
            ),
            checked(
                "The variance is larger for difficult images",
                rotated,
                min(larger) > 0 if larger else None,
                f"larger in {sum(v > 0 for v in larger)} of {len(larger)} runs, by {100 * min(larger):.1f} to "
                f"{100 * max(larger):.1f}%",
            ),
        ],
        "5.1.2 Random placement FashionMNIST": [
            cells(placed, "The CNN has 90.63% on the garments themselves", lambda li: li.model == "CNN"),
            cells(placed, "STN and P-STN reach 84.41% and 84.99% on placed garments", lambda li: li.model != "CNN"),
            checked(
                "Both localizers recover the transformation",
                placed,
                all(max(runs) < 4.8 for runs in errors) if all(errors) else None,
                means(
                    "mean error of the position in pixels of a canvas of 96 (a twentieth is 4.8)",
                    *zip(("STN", "P-STN"), errors, strict=True),
                ),
            ),
            orders(placed, "The P-STN does slightly better than the STN", is_order("P-STN", "STN")),
            not_here(
                "The samples look visually pleasing, as candidates for augmentation",
                "a matter of looking: the figure on the page shows them",
                placed,
            ),
        ],
        "5.1.3 Traffic signs (MTSD)": [
            not_here(
                "The subset of MTSD has 4,698 training and 500 test images of ten classes",
                "MTSD cannot be passed on; the loader makes the subset where it is present",
                "traffic-signs",
            ),
            not_here(
                "Accuracies of 76.0, 90.6 and 92.2% and NLLs of 0.49, 0.31 and 0.29 for CNN, STN and P-STN",
                "other photos, other classes: nothing is tested against these numbers",
                "traffic-signs",
            ),
            *signs(),
        ],
        "5.2.1 MNIST and subsets": [
            checked(
                "All models have about 28 thousand parameters",
                "mnist-own-folds",
                all(26_000 < sizes[m] < 29_000 for m in ("CNN of MNIST", "STN", "P-STN")),
                ", ".join(f"{m} {sizes[m]:,}" for m in ("CNN of MNIST", "STN", "P-STN")),
            ),
            cells("mnist-subsets", "Table 1: the P-STN's five accuracies", lambda li: li.model == "P-STN"),
            cells("mnist-subsets", "Table 1: the CNN's five accuracies", lambda li: li.model == "CNN"),
            cells("mnist-subsets", "Table 1: the STN's five accuracies", lambda li: li.model == "STN"),
            orders(
                "mnist-subsets",
                "The P-STN is significantly ahead of the CNN on the small sets (30, 100 and 1,000 images)",
                is_order("P-STN", "CNN"),
            ),
            orders("mnist-subsets", "The P-STN is significantly ahead of the STN", is_order("P-STN", "STN")),
            vanishing(),
            orders(
                OWN, f"The P-STN is significantly ahead of the CNN on the small sets{_OWN}", is_order("P-STN", "CNN")
            ),
            orders(OWN, f"The P-STN is significantly ahead of the STN{_OWN}", is_order("P-STN", "STN")),
            orders(OWN, f"The STN performs less well than the CNN{_OWN}", is_order("CNN", "STN")),
            cells(OWN, f"Table 1: the P-STN's five accuracies{_OWN}", lambda li: li.model == "P-STN"),
            vanishing(OWN, _OWN),
            weights_by_size(),
            orders("mnist-subsets", "The STN performs less well than the CNN", is_order("CNN", "STN")),
            not_here(
                "That might be because the digits are upright already and wrong transformations do harm",
                "offered as a possible explanation; no run isolates it",
                "mnist-subsets",
            ),
            orders(
                "ablations",
                "The gain comes from augmentation that is learned per image (against one posterior for all images)",
                lambda c: c.worse.variant == "posterior=global" and c.better.metric.name == "accuracy",
            ),
        ],
        "5.2.2 UCR time series": [
            checked(
                "All models have about a million parameters",
                "time-series",
                all(0.9e6 < sizes[m] < 1.3e6 for m in ("series CNN", "series P-STN")),
                ", ".join(f"{m} {sizes[m]:,}" for m in ("series CNN", "series P-STN")),
            ),
            cells(
                "time-series",
                "Table 2: the P-STN's accuracies",
                lambda li: li.model == "P-STN" and not li.is_mean and li.data != "UWaveGestureLibraryX",
            ),
            cells(
                "time-series",
                "Table 2: the accuracies of CNN and STN",
                lambda li: li.model != "P-STN" and not li.is_mean and li.data != "UWaveGestureLibraryX",
            ),
            not_here(
                "Table 2: the accuracies on uWaveGestureLibrary, and so the means over five sets",
                f"its test part could not be had; with a part of its training part in its place, {five}",
                "time-series",
            ),
            orders(
                "time-series",
                "The P-STN's mean accuracy is higher than the STN's, and that higher than the CNN's (with our own test "
                "part of one set)",
                lambda c: c.claimed and c.better.is_mean,
            ),
            orders("time-series", "The same without that set", lambda c: not c.claimed),
            orders(
                "time-series",
                "Table 2's significance marks: each bold number is significantly ahead of the best that is not",
                lambda c: not c.better.is_mean and c.comparable,
            ),
            checked(
                "The optimal weights, searched on validation data, are 0.0001, 1e-05, 0.001, 0 and 0.0001",
                "time-series-search",
                len(hits) == len(best),
                "by NLL in our search: "
                + ", ".join(
                    f"{data} {'/'.join(f'{w:g}' for w in found)} (paper {chosen.published[data]:g})"
                    for data, found in best.items()
                ),
            ),
            checked(
                "The learned augmentation differs between intervals of time (FaceAll)",
                "time-series",
                min(uneven) > 1.2 if uneven else None,
                f"the most augmented fifth of a series is displaced {fmean(uneven):.2f} times as much as the least, "
                f"against the initial noise ({min(uneven):.2f} to {max(uneven):.2f} in {len(uneven)} runs; 1 is even)"
                if uneven
                else "",
            ),
        ],
        "5.3 Calibration on MNIST100": [
            cells(
                "calibration",
                "Calibration errors of 0.0743 (CNN), 0.1160 (STN), 0.0567 and 0.0271 (P-STN, w = 0.0003 and 0.0001)",
                lambda li: li.data == "MNIST100" and li.variant != "w=3e-05",
            ),
            cells(
                "calibration",
                "The P-STN's best calibration is 0.0271 (w chosen on validation images, as in the paper; ours: 3e-05)",
                lambda li: li.data == "MNIST100" and li.variant == "w=3e-05",
            ),
            orders(
                "calibration",
                "Both P-STNs are better calibrated than the CNN",
                lambda c: c.better.data == "MNIST100" and c.worse.model == "CNN" and c.better.variant != "w=3e-05",
            ),
            orders(
                "calibration",
                "Both P-STNs are better calibrated than the STN",
                lambda c: c.better.data == "MNIST100" and c.worse.model == "STN" and c.better.variant != "w=3e-05",
            ),
            orders(
                "calibration",
                "The P-STN with the best calibration by validation is better calibrated than CNN and STN",
                lambda c: c.better.data == "MNIST100" and c.better.variant == "w=3e-05",
            ),
            cells(
                "calibration",
                f"The four calibration errors{_OWN}",
                lambda li: li.data == calibration.OWN_FOLDS and li.variant != "w=3e-05",
            ),
            cells(
                "calibration",
                f"The P-STN's best calibration is 0.0271 (w by validation, ours 3e-05){_OWN}",
                lambda li: li.data == calibration.OWN_FOLDS and li.variant == "w=3e-05",
            ),
            orders(
                "calibration",
                f"Both P-STNs are better calibrated than CNN and STN{_OWN}",
                lambda c: c.better.data == calibration.OWN_FOLDS and c.better.variant != "w=3e-05",
            ),
            orders(
                "calibration",
                f"The P-STN with the best calibration by validation is better calibrated than CNN and STN{_OWN}",
                lambda c: c.better.data == calibration.OWN_FOLDS and c.better.variant == "w=3e-05",
            ),
            best_weights(),
        ],
        "5.4 A typical failure mode": [
            depth_row(
                "The STN behaves like the network without a localizer in most runs",
                lambda h: all(abs(h["STN"][d] - h["NN, rotated"][d]) < 1 for d in DEPTHS),
                "accuracy",
                "STN",
                "NN, rotated",
            ),
            orders("failure-mode", "The P-STN is ahead of the STN at every depth"),
            depth_row(
                "The P-STN is closer to the network on upright digits",
                lambda h: all(
                    abs(h["P-STN"][d] - h["NN, upright"][d]) < abs(h["NN, rotated"][d] - h["NN, upright"][d])
                    for d in DEPTHS
                ),
                "accuracy",
                "P-STN",
                "NN, rotated",
                "NN, upright",
            ),
            depth_row(
                "The STN learns the identity for deeper classifiers",
                lambda h: all(h["STN"][d] < near_zero for d in (3, 4, 5)),
                "angle_variance",
                "STN",
            ),
            depth_row(
                "More complex classifiers make the STN more prone to it",
                lambda h: h["STN"][1] > near_zero > h["STN"][5],
                "angle_variance",
                "STN",
            ),
            depth_row(
                "The P-STN localises when the classifier is simple",
                lambda h: all(h["P-STN"][d] > 0.1 for d in (1, 2)),
                "angle_variance",
                "P-STN",
            ),
            depth_row(
                "For bigger classifiers the P-STN predicts the identity as well",
                lambda h: all(h["P-STN"][d] < 0.1 for d in (4, 5)),
                "angle_variance",
                "P-STN",
            ),
            depth_row(
                "Decent accuracies are reached all the same",
                lambda h: all(h[m][d] > 85 for m in ("STN", "P-STN") for d in (2, 3, 4, 5)),
                "accuracy",
                "STN",
                "P-STN",
            ),
        ],
        "6 Conclusion": [
            orders(
                rotated,
                "Marginalisation improves the localizer (rotated MNIST; placed garments and signs are above)",
                lambda c: is_order("P-STN", "STN")(c) or is_order("P-STN", "STN", "error_mod_pi")(c),
            ),
            orders(
                "mnist-subsets",
                "The sampled transformations act as augmentation and improve the overall performance (few digits)",
                is_order("P-STN", "CNN", places=("MNIST30", "MNIST100")),
            ),
            calibrated_everywhere(),
            calibrated_everywhere(OWN, _OWN),
            checked(
                "The STN is often brittle to train, and marginalisation makes training more robust",
                "failure-mode",
                still["P-STN"] < still["STN"],
                f"runs that end at the identity: STN {still['STN']} of 25, P-STN {still['P-STN']} of 25",
            ),
        ],
    }


def _is(order: tuple[str, str, str], claim: Claim) -> bool:
    return (claim.better.model, claim.worse.model, claim.better.metric.name) == order


def signs() -> list[Row]:
    """The order of the models on the stand-in photos, of whatever claims the experiment makes."""
    study = EXPERIMENTS["traffic-signs"]
    found = []
    for better, worse, says in (
        ("STN", "CNN", "The STN clearly outperforms the classifier of the full crops (on stand-in photos)"),
        ("P-STN", "CNN", "The P-STN clearly outperforms the classifier of the full crops (on stand-in photos)"),
        ("P-STN", "STN", "The P-STN outperforms the STN, thanks to its ensemble (on stand-in photos)"),
    ):
        for metric in ("accuracy", "nll"):
            wanted = partial(_is, (better, worse, metric))
            if any(map(wanted, study.claims)):
                found.append(orders("traffic-signs", f"{says}: {metric if metric == 'accuracy' else 'NLL'}", wanted))
    return found


def table(rows: Iterable[Row]) -> str:
    """Rows as Markdown."""
    lines = ["| the paper says | here | our number | file |", "| --- | --- | --- | --- |"]
    for row in rows:
        page = row.experiment.removesuffix("-search")
        file = f"`{row.experiment}.jsonl`, [page]({page}.md)"
        lines.append(f"| {row.says} | {row.verdict} | {row.number.replace('|', '/')} | {file} |")
    return "\n".join(lines)


def with_tables(text: str) -> str:
    """The page with its tables as they should be."""
    found = sections()
    tally = Counter(re.sub(r"[*]|[:,].*", "", row.verdict) for rows in found.values() for row in rows)
    count = f"{sum(tally.values())} statements: {', '.join(f'{n} {word}' for word, n in tally.most_common())}."
    body = "\n\n".join([count, *(f"## {title}\n\n{table(rows)}" for title, rows in found.items())])
    return re.sub(
        r"(<!-- claims: begin -->\n).*?(<!-- claims: end -->)",
        lambda m: f"{m[1]}\n{body}\n\n{m[2]}",
        text,
        flags=re.DOTALL,
    )


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
