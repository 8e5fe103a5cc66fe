"""Classifiers of series beside each other: 1-NN DTW, MiniRocket, InceptionTime, CNN, STN, P-STN and ours as chosen.

Usage, one step after the other, each with the same folder:
    python benchmarks/series_peers.py prepare --out runs/series-peers    # packs the data into data.npz; needs aeon
    python benchmarks/series_peers.py networks --out runs/series-peers   # on a GPU if there is one; needs torch
    python benchmarks/series_peers.py peers --out runs/series-peers      # DTW and MiniRocket on the CPU; needs aeon
    python benchmarks/series_peers.py table --out runs/series-peers      # writes the CSV and the page's tables

Every step leaves out what the folder holds already; `table` keeps the rows of the CSV that the folder has nothing for,
and writes the provenance of those it has into series_peers.json. Sets: those of the UCR archive in $PSTN_DATA/ucr, and
the labelled ones in aeon's package. Series of unequal length are resampled to the longest training series, for all
models.
A seed draws the part of the training series, at least two of each class, and the networks' weights and noise. All
networks have the estimators' settings: about 1,500 steps of Adam, a learning rate of 3e-3 (1e-3 for InceptionTime's
network and the P-STN with it), a tenth of it in the last third.

MiniRocket's biases come from the whole training part, without labels. Both of its classifiers, on series as they are
and on ten samples of a P-STN for each, have a ridge regression calibrated by leaving out one at a time.

Three quarters of the training part also train each network for half the epochs. The last quarter then gives each a
temperature, with the likelihood of `fit_ridge`, which reckons with one wrong prediction more than there are; and it
says which candidate is ours. Seconds are of a processor, for one seed, and for MiniRocket with the features of the
training part.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import one_hot

from pstn.data import stratified_indices
from pstn.data.split import Scaling, fit_scaling
from pstn.files import write_atomically
from pstn.nn import RocketFeatures, TransformerModel, make_model
from pstn.provenance import provenance
from pstn.training import Member, Population, Recipe
from pstn.training.evaluate import find_temperature, predict_all, score
from pstn.training.linear import fit_ridge
from pstn.transforms import CPAB

UCR = ("FaceAll", "PhalangesOutlinesCorrect", "TwoPatterns", "UWaveGestureLibraryX", "Wafer")
AEON = (
    "ACSF1", "ArrowHead", "BasicMotions", "Covid3Month_disc", "GunPoint", "ItalyPowerDemand", "JapaneseVowels",
    "OSULeaf", "PickupGestureWiimoteZ",
)  # fmt: skip
FRACTIONS = (1.0, 0.3, 0.1)
SEEDS = 5
# name: kind and networks, of `pstn.nn.make_model`
NETWORKS = {
    "CNN": ("cnn", "auto"), "STN": ("stn", "auto"), "P-STN": ("pstn", "auto"),
    "Inception": ("cnn", "inception"), "P-STN Inception": ("pstn", "inception"),
}  # fmt: skip
# Made from the P-STN: the features of series as they are, and of ten samples, each with a linear head.
ROCKETS = ("MiniRocket", "P-STN MiniRocket")
# What ours is chosen from.
CANDIDATES = ("P-STN", "P-STN Inception", "P-STN MiniRocket")
FIELDS = (
    "data", "fraction", "model", "seed", "seconds", "accuracy", "nll", "ece", "temperature", "calibrated_nll",
    "calibrated_ece",
)  # fmt: skip
SAMPLES = 10
COLUMNS = ("1-NN DTW", *ROCKETS, *NETWORKS)
_BEGIN, _END = "<!-- tables: written by series_peers.py -->", "<!-- end of tables -->"
HELD_OUT = 0.25


@dataclass(frozen=True)
class Job:
    """Networks of one kind on one set, one for each seed."""

    data: str
    fraction: float
    model: str
    choosing: bool
    """On three quarters of the series, to be asked about the others."""

    @property
    def file(self) -> str:
        """Where its predictions are kept."""
        return "-".join(map(str, (self.data, self.fraction, self.model.replace(" ", "_"), int(self.choosing)))) + ".pt"


@cache
def load_rocket(path: Path, name: str) -> RocketFeatures:
    """The features that `prepare` has found for a set."""
    with np.load(path) as held:
        found = {part: held[f"{name}/{part}"] for part in ("dilations", "counts", "channels", "biases")}
    features = RocketFeatures(found["channels"].shape[-1], found["dilations"].tolist(), found["counts"].tolist())
    features.channels.copy_(torch.from_numpy(found["channels"]))
    features.biases.copy_(torch.from_numpy(found["biases"]))
    return features


@cache
def load(
    path: Path,
) -> dict[str, tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]]]:
    """Training series (N, C, L), their classes, and those to test on."""
    with np.load(path) as held:
        names = sorted({name.split("/")[0] for name in held.files})
        parts = ("x_train", "y_train", "x_test", "y_test")
        return {name: tuple(held[f"{name}/{part}"] for part in parts) for name in names}


def subset(y: NDArray[np.int64], fraction: float, seed: int) -> NDArray[np.int64]:
    """Ascending positions of a share of each class, at least two where there are as many."""
    rng = np.random.default_rng(seed)
    chosen = []
    for label in np.unique(y):
        members = np.flatnonzero(y == label)
        count = min(len(members), max(2, round(fraction * len(members))))
        chosen.append(rng.permutation(members)[:count])
    return np.sort(np.concatenate(chosen))


def prepare(folder: Path, sets: Sequence[str]) -> None:
    """Read sets and write them into one file."""
    from aeon.datasets import load_classification
    from aeon.transformations.collection.convolution_based import MiniRocket

    from pstn.data import load_ucr
    from pstn.data.files import DataWarning
    from pstn.estimators.aeon import rocket_features
    from pstn.estimators.arrays import equalise

    arrays: dict[str, NDArray[Any]] = {}
    for name in [name for name in UCR if name in sets]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DataWarning)
            parts = load_ucr(name, validation=0.0, need_test=False, fetch=False)
        x, y = parts.train.x.numpy(), parts.train.y.numpy()
        if parts.test is None:  # its test part is not in every copy of the archive
            kept, tested = (part.numpy() for part in stratified_indices(parts.train.y, HELD_OUT))
            found = x[kept], y[kept], x[tested], y[tested]
        else:
            found = x, y, parts.test.x.numpy(), parts.test.y.numpy()
        arrays |= dict(zip(_keys(name), found, strict=True))
    for name in [name for name in AEON if name in sets]:
        (x, y), (test_x, test_y) = (
            load_classification(name, split, load_equal_length=False) for split in ("train", "test")
        )
        classes = np.unique(y)
        series = equalise([np.asarray(one, np.float64) for one in x])
        tested = equalise([np.asarray(one, np.float64) for one in test_x], series.shape[-1])
        found = series, np.searchsorted(classes, y), tested, np.searchsorted(classes, test_y)
        arrays |= dict(zip(_keys(name), found, strict=True))
    for name in sets:
        features = rocket_features(MiniRocket(random_state=0).fit(arrays[f"{name}/x_train"].astype(np.float32)))
        arrays |= {
            f"{name}/{part}": np.asarray(getattr(features, part))
            for part in ("dilations", "counts", "channels", "biases")
        }
    kept_as = {name: a.astype(np.float32 if a.dtype.kind == "f" else np.int64) for name, a in arrays.items()}
    np.savez_compressed(folder / "data.npz", **kept_as)  # type: ignore[arg-type]
    for name, (x, y, test_x, _) in load(folder / "data.npz").items():
        print(f"{name:26} {len(x):5} and {len(test_x):5} series {x.shape[1:]}, {y.max() + 1} classes")
    print(f"{(folder / 'data.npz').stat().st_size / 1e6:.1f} MB in {folder / 'data.npz'}")


def _keys(name: str) -> list[str]:
    return [f"{name}/{part}" for part in ("x_train", "y_train", "x_test", "y_test")]


def fitted_part(job: Job, y: NDArray[np.int64], seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Positions of the series to train on, and of those to choose by, which are none where the test part follows."""
    part = subset(y, job.fraction, seed)
    kept, held = stratified_indices(torch.from_numpy(y[part]), HELD_OUT if job.choosing else 0.0, seed=seed)
    return part[kept.numpy()], part[held.numpy()]


def seen_part(job: Job, folder: Path, seed: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """What the classifiers of a job are asked about: the test part, or the series to choose by."""
    x, y, test_x, test_y = load(folder / "data.npz")[job.data]
    held = fitted_part(job, y, seed)[1]
    return (x[held], y[held]) if job.choosing else (test_x, test_y)


def make_networks(job: Job, folder: Path, seeds: int) -> list[torch.nn.Module]:
    """One untrained network for each seed."""
    x, y = load(folder / "data.npz")[job.data][:2]
    kind, networks = NETWORKS[job.model]
    options: dict[str, Any] = {} if kind == "cnn" else {"transform": CPAB(tess=10), "fill": None}
    # A large network that reads four samples takes four times as long.
    options |= {"samples": 1} if networks == "inception" else {}
    size, classes = x.shape[2:], int(y.max()) + 1
    kinds: Any = (kind, networks)
    return [make_model(kinds[0], x.shape[1], size, classes, networks=kinds[1], seed=s, **options) for s in range(seeds)]


def train(job: Job, folder: Path, device: str, seeds: int, quick: bool) -> None:
    """Train the networks of a job and keep what they predict, and the layers of the P-STN."""
    x, y = load(folder / "data.npz")[job.data][:2]
    parts = [fitted_part(job, y, seed)[0] for seed in range(seeds)]
    scalings = [fit_scaling(x[part], "border") for part in parts]
    inputs = torch.cat([scaling.apply(x[part]) for scaling, part in zip(scalings, parts, strict=True)])
    lr, examples = 3e-3 if NETWORKS[job.model][1] == "auto" else 1e-3, len(parts[0])
    own = torch.arange(seeds * examples).reshape(seeds, examples)
    members = [Member(seed, lr, weight_decay=1e-4, train=own[seed]) for seed in range(seeds)]
    recipe = Recipe(precision="tf32" if device == "cuda" else "float32").for_examples(examples)
    epochs = 1 if quick else math.ceil(recipe.epochs / 2) if job.choosing else recipe.epochs
    recipe = replace(recipe, epochs=epochs, lr_step=math.ceil(2 * epochs / 3))
    models, labels = make_networks(job, folder, seeds), torch.from_numpy(np.concatenate([y[part] for part in parts]))
    start = time.process_time()
    with Population(models, inputs, labels, members, recipe, device=device, workers=False) as population:
        population.fit()
        models = population.models()
    seconds = time.process_time() - start
    found = []
    for seed, (model, scaling) in enumerate(zip(models, scalings, strict=True)):
        seen_x, seen_y = seen_part(job, folder, seed)
        data = scaling.apply(seen_x).to(device), torch.from_numpy(seen_y).to(device)
        generator = torch.Generator(device).manual_seed(seed)
        found.append(predict_all(model.to(device), data, samples=None, batch_size=500, generator=generator)[0].cpu())
    if job.model == "P-STN":
        classify_features(job, folder, device, models, scalings, seconds / seeds)
    keep(job, folder, torch.stack(found), seconds / seeds)


@torch.no_grad()
def classify_features(
    job: Job, folder: Path, device: str, models: Sequence[torch.nn.Module], scalings: Sequence[Scaling], trained: float
) -> None:
    """MiniRocket with a calibrated head, on the series as they are and on what the P-STN samples of each."""
    x, y = load(folder / "data.npz")[job.data][:2]
    features = load_rocket(folder / "data.npz", job.data).to(device)
    found, seconds = {name: list[Tensor]() for name in ROCKETS}, dict.fromkeys(ROCKETS, 0.0)

    def read(seed: int, series: NDArray[np.float32], warps: bool) -> Tensor:
        """(S, N, F)."""
        layer, scaling = cast(TransformerModel, models[seed]).layer, scalings[seed]
        mean, std = (torch.tensor(values, device=device)[:, None] for values in (scaling.mean, scaling.std))
        generator, parts = torch.Generator(device).manual_seed(seed), list[Tensor]()
        for part in scaling.apply(series).to(device).split(64):
            versions = layer(part, SAMPLES, generator=generator).warped if warps else part[None]
            parts.append(torch.stack([features(version * std + mean) for version in versions]))
        return torch.cat(parts, 1)

    for seed, (name, warps) in product(range(len(models)), zip(ROCKETS, (False, True), strict=True)):
        start, part = time.process_time(), fitted_part(job, y, seed)[0]
        labels = torch.from_numpy(y[part]).to(device)
        head = fit_ridge(read(seed, x[part], warps).mean(0), labels, int(y.max()) + 1)
        seconds[name] += (time.process_time() - start) / len(models)
        seen, log_probs = seen_part(job, folder, seed)[0], list[Tensor]()
        for block in np.array_split(seen, -(-len(seen) // 500)):
            log_probs.append(head(read(seed, block, warps)).log_softmax(-1))
        found[name].append((torch.cat(log_probs, 1).logsumexp(0) - math.log(SAMPLES if warps else 1)).cpu())
    for name, extra in zip(ROCKETS, (0.0, trained), strict=True):
        keep(replace(job, model=name), folder, torch.stack(found[name]), seconds[name] + extra)


def keep(job: Job, folder: Path, log_probs: Tensor, seconds: float) -> None:
    """Write log-probabilities (seeds, N, K) and the seconds that training took for one seed, whole or not at all."""
    made = {"made_by": json.dumps(provenance(("scikit-learn", "aeon"))), "load": round(os.getloadavg()[0], 1)}
    with write_atomically(folder / job.file) as draft:
        torch.save({"log_probs": log_probs.clamp(min=-100).half(), "seconds": seconds, **made}, draft)
    print(f"{job.file[:-3]}: {seconds:.1f} s for one", flush=True)


def peers(folder: Path, names: Sequence[str]) -> None:
    """1-NN DTW with a window of a tenth of the length, and MiniRocket with a calibrated head."""
    from aeon.distances import pairwise_distance
    from aeon.transformations.collection.convolution_based import MiniRocket

    held = load(folder / "data.npz")
    for name in sorted(names, key=lambda name: held[name][0].size * len(held[name][2])):
        x, y, test_x, _ = held[name]
        waiting = [
            job
            for fraction in FRACTIONS
            for job in (Job(name, fraction, "MiniRocket", False), Job(name, fraction, "1-NN DTW", False))
            if not (folder / job.file).exists()
        ]
        models = {job.model for job in waiting}
        if "MiniRocket" in models:
            rocket, start = MiniRocket(random_state=0).fit(x), time.process_time()
            rocket.transform(x)
            read = time.process_time() - start
            features, test_features = (torch.from_numpy(np.asarray(rocket.transform(part))) for part in (x, test_x))
        if "1-NN DTW" in models:
            start = time.process_time()
            distances = pairwise_distance(test_x.astype(np.float64), x.astype(np.float64), method="dtw", window=0.1)
            took = time.process_time() - start
        for job in waiting:
            found, classes, start = list[Tensor](), int(y.max()) + 1, time.process_time()
            for seed in range(SEEDS):
                part = fitted_part(job, y, seed)[0]
                if job.model == "1-NN DTW":
                    nearest = torch.from_numpy(y[part][distances[:, part].argmin(1)])
                    found.append(100 * (one_hot(nearest, classes).float() - 1))
                elif seed and job.fraction == 1:
                    found.append(found[0])  # nothing in it is drawn
                else:
                    head = fit_ridge(features[part], torch.from_numpy(y[part]), classes)
                    found.append(head(test_features).log_softmax(1).detach())
            seconds = (time.process_time() - start) / (1 if job.fraction == 1 else SEEDS) + job.fraction * read
            keep(job, folder, torch.stack(found), took if job.model == "1-NN DTW" else seconds)


def jobs(options: argparse.Namespace) -> list[Job]:
    """What is still to do: the longest first on a GPU, where all is to be done; the fewest labels first on a CPU."""
    held, made = load(options.out / "data.npz"), list[Job]()
    for data, fraction, model, choosing in product(options.sets, options.fractions, options.models, (False, True)):
        job = Job(data, fraction, model, choosing)
        # Where there is none to choose by, there is no choice and no temperature.
        wanted = not choosing or len(fitted_part(job, held[data][1], 0)[1])
        if wanted and not (options.out / job.file).exists():
            made.append(job)

    def cost(job: Job) -> tuple[float, float]:
        """Of a series and of all: there are about as many steps whatever the set, and a P-STN takes four samples."""
        series = held[job.data][0][0].size
        return series, series * (4 if "P-STN" in job.model else 1) * (10 if "Inception" in job.model else 1)

    if options.device == "cuda":
        return sorted(made, key=lambda job: -cost(job)[1])
    return sorted(made, key=lambda job: (job.fraction, *cost(job)))


def networks(options: argparse.Namespace) -> None:
    """Train all networks, several jobs side by side; no job starts after so many minutes."""
    waiting, end, failed = jobs(options), time.monotonic() + 60 * options.minutes, 0
    print(f"{len(waiting)} jobs of {options.seeds} networks on {options.device}", flush=True)
    rest = options.out, options.device, options.seeds, options.quick
    with ProcessPoolExecutor(options.workers, get_context("spawn")) as pool:
        running = {pool.submit(_train_before, end, job, *rest): job for job in waiting}
        for future in as_completed(running):
            if error := future.exception():
                failed += 1
                print(f"{running[future].file} failed: {error!r}", flush=True)
    left = len(jobs(options))
    print(f"{failed} failed, {left} left: the same command goes on with them" if left else "all done")


def _train_before(end: float, job: Job, *rest: Any) -> None:
    torch.set_num_threads(1)
    torch.backends.cudnn.allow_tf32 = False  # but in training: features are shares of values above a bias
    if time.monotonic() < end:
        train(job, *rest)


def table(folder: Path, rows_file: Path, page: Path) -> None:
    """Write the scores of every run as CSV, and their means into the page, between its two marks."""
    held, rows, runs = load(folder / "data.npz"), dict[tuple[str, float, str], list[dict[str, Any]]](), dict[str, Any]()
    for row in csv.DictReader(rows_file.open(encoding="utf-8")):
        values = {name: float(row.get(name) or math.nan) for name in FIELDS[4:]}
        cell = row["data"], float(row["fraction"]), row["model"]
        rows.setdefault(cell, []).append({**dict(zip(FIELDS, cell, strict=False)), "seed": int(row["seed"]), **values})
    for data, fraction in product(held, FRACTIONS):
        found = {}
        for model in COLUMNS:
            job = Job(data, fraction, model, False)
            if (folder / job.file).exists():
                found[model] = torch.load(folder / job.file, weights_only=True)
                runs.setdefault(found[model]["made_by"], {})[job.file[:-3]] = found[model]["load"]
        if "Inception" in found and fraction == 1:
            several = found["Inception"]["log_probs"].float()
            mean = several.logsumexp(0, keepdim=True) - math.log(len(several))
            found["InceptionTime"] = {"log_probs": mean, "seconds": SEEDS * found["Inception"]["seconds"]}
        tried = {name: _held_out(folder, Job(data, fraction, name, True)) for name in found}
        for name, result in found.items():
            result["temperatures"] = [temperature for temperature, _ in tried[name]]
        if sum(bool(tried.get(name)) for name in CANDIDATES) > 1:
            found["Ours"] = _choose({name: tried[name] for name in CANDIDATES if tried.get(name)}, found)
        labels = torch.from_numpy(held[data][3])
        for name, result in found.items():
            rows[data, fraction, name] = []
            for seed, log_probs in enumerate(result["log_probs"].float()):
                scores = dict(zip(("accuracy", "nll", "ece"), score(log_probs, labels), strict=True))
                if result["temperatures"]:
                    scores["temperature"] = result["temperatures"][seed]
                    _, nll, ece = score((log_probs / scores["temperature"]).log_softmax(1), labels)
                    scores |= {"calibrated_nll": nll, "calibrated_ece": ece}
                if name == "1-NN DTW":  # its answers have no probabilities
                    scores |= {"nll": math.nan, "ece": math.nan}
                values = {"seconds": round(result["seconds"], 1), **{k: round(v, 4) for k, v in scores.items()}}
                start = {"data": data, "fraction": fraction, "model": name, "seed": seed}
                rows[data, fraction, name].append({**dict.fromkeys(FIELDS, math.nan), **start, **values})
    order = [*COLUMNS, "InceptionTime", "Ours"]
    cells = sorted(rows, key=lambda cell: (cell[0], -cell[1], order.index(cell[2])))
    with write_atomically(rows_file) as draft, draft.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(row for cell in cells for row in rows[cell])
    with write_atomically(rows_file.with_suffix(".json")) as draft:
        made = [{**json.loads(made_by), "load_after_each": loads} for made_by, loads in runs.items()]
        draft.write_text(json.dumps({"seeds": list(range(SEEDS)), "runs": made}, indent=1) + "\n", encoding="utf-8")
    before, _, rest = page.read_text(encoding="utf-8").partition(_BEGIN)
    text = "\n".join(_lines([row for cell in cells for row in rows[cell]]))
    with write_atomically(page) as draft:
        draft.write_text(f"{before}{_BEGIN}\n\n{text}\n{_END}{rest.partition(_END)[2]}", encoding="utf-8")


def _held_out(folder: Path, job: Job) -> list[tuple[float, float]]:
    """For each seed the temperature for what was held out, and the loss with it; none where nothing was."""
    if not (folder / job.file).exists():
        return []
    found = list[tuple[float, float]]()
    for seed, log_probs in enumerate(torch.load(folder / job.file, weights_only=True)["log_probs"].float()):
        y = torch.from_numpy(seen_part(job, folder, seed)[1])
        # The ridge regression of MiniRocket's features is calibrated as it is.
        calibrated = job.model in ROCKETS
        temperature = 1.0 if calibrated else find_temperature(log_probs, y, smoothing=1 / (len(y) + 2))
        found.append((temperature, score((log_probs / temperature).log_softmax(1), y).nll))
    return found


def _choose(tried: dict[str, list[tuple[float, float]]], found: dict[str, Any]) -> dict[str, Any]:
    """For each seed, what the candidate found that predicts best what was held out; it took what all of them take."""
    best = [min(tried, key=lambda name: tried[name][seed][1]) for seed in range(len(next(iter(tried.values()))))]
    return {
        "log_probs": torch.stack([found[name]["log_probs"][seed] for seed, name in enumerate(best)]),
        "temperatures": [tried[name][seed][0] for seed, name in enumerate(best)],
        "seconds": math.nan,
    }


def _lines(rows: list[dict[str, Any]]) -> Iterator[str]:
    """A table for each share of the training part: means over seeds, and over the sets that all models have seen."""
    for fraction in FRACTIONS:
        cells: dict[tuple[str, str], list[float]] = {}
        for model, data in product((*COLUMNS, "InceptionTime", "Ours"), dict.fromkeys(row["data"] for row in rows)):
            runs = [row for row in rows if (row["model"], row["data"], row["fraction"]) == (model, data, fraction)]
            if runs:
                columns = ("accuracy", "nll", "ece", "calibrated_nll", "calibrated_ece", "seconds")
                cells[model, data] = [sum(run[k] for run in runs) / len(runs) for k in columns]
        models = list(dict.fromkeys(model for model, _ in cells))
        names = list(dict.fromkeys(data for _, data in cells))
        complete = [data for data in names if all((model, data) in cells for model in models)]
        if len(names) > 1:
            names.append("mean of all")
            for model in models:
                if all((model, data) in cells for data in names[:-1]):
                    cells[model, names[-1]] = _mean([cells[model, data] for data in names[:-1]])
        if 1 < len(complete) < len(names) - 1:
            names.append(f"mean of {', '.join(complete)}")
            cells |= {(model, names[-1]): _mean([cells[model, data] for data in complete]) for model in models}
        share = "All training series" if fraction == 1 else f"{fraction:.0%} of the training series"
        yield f"{share}: accuracy in percent, NLL, calibration error and seconds.\n"
        yield f"| | {' | '.join(models)} |\n| --- |{' --- |' * len(models)}"
        for data in names:
            shown = [_cell(cells.get((model, data))) for model in models]
            yield f"| {data} | {' | '.join(shown)} |"
        yield ""


def _mean(cells: list[list[float]]) -> list[float]:
    return [sum(values) / len(values) for values in zip(*cells, strict=True)]


def _cell(values: list[float] | None) -> str:
    """Scores with the temperature, where there is one."""
    if values is None:
        return ""
    accuracy, nll, ece, calibrated_nll, calibrated_ece, seconds = values
    if not math.isnan(calibrated_nll):
        nll, ece = calibrated_nll, calibrated_ece
    shown = f"{100 * accuracy:.1f}" + ("" if math.isnan(nll) else f", {nll:.2f}, {ece:.3f}")
    return shown + ("" if math.isnan(seconds) else f", {seconds:.0f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=["prepare", "networks", "peers", "table"])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--workers", type=int, default=1, help="processes side by side")
    parser.add_argument("--minutes", type=float, default=1e9, help="start nothing after that")
    parser.add_argument("--sets", nargs="+", default=[*UCR, *AEON])
    parser.add_argument("--models", nargs="+", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--fractions", nargs="+", type=float, default=FRACTIONS, choices=FRACTIONS)
    parser.add_argument("--quick", action="store_true", help="one epoch, to try it")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.step == "prepare":
        prepare(options.out, options.sets)
    elif options.step == "networks":
        networks(options)
    elif options.step == "peers":
        peers(options.out, options.sets)
    else:
        here = Path(__file__).parent
        page = here.parent / "docs" / "series-peers.md"
        table(options.out, here / "results" / "series_peers.csv", page)


if __name__ == "__main__":
    main()
