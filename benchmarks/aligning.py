"""How well series are aligned: `pstn.SeriesAligner` beside a point posterior and soft-DTW barycenters.

Usage:
    python benchmarks/aligning.py align --out results.json [--seeds 0 1 2] [--only GunPoint ...]
    python benchmarks/aligning.py tune --out results.json [--only GunPoint ...]
    python benchmarks/aligning.py augment --out results.json [--seeds 0 1 2 3 4] [--only GunPoint ...]

Needs aeon and tslearn, whose wheels hold most of the sets, and for the others `PSTN_DATA`; `--models difw` needs difw,
which compiles its extension at the first call. `warped` is made here: four prototypes under random CPAB warps, with
noise. Test parts above 1,000 series and training parts above 600 are cut by a fixed draw. Nothing is chosen on test
data: the aligner has its defaults, which were compared on halves of the training parts, and so were the settings of the
point (`tune`); gamma of soft-DTW is that with the best accuracy on the training part.

`align`: the variance within classes of the test part before and after: as it is, as a share of the whole variance, and
between each series and the average of its class that is brought to the time of that series;
the accuracy of the nearest class average, of the aligner in units of the spread of the classes and by the Euclidean
distance; seconds of processor time for the fit. difw is the point with the same warps as difw computes them.
`tune`: the accuracy of the point on either half of at most 300 training series, after a fit on the other.
`augment`: the accuracy of other classifiers trained on a few series of each class, on those and on 10 versions of each:
by a `pstn.Augmenter` with a `SeriesAligner` or with the fixed random warps of `pstn.data.RandomCPAB`.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from sklearn.base import clone
from sklearn.ensemble import RandomForestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from torch.utils import cpp_extension

import pstn
from pstn.data.split import stratified_indices
from pstn.estimators.aligning import SmoothCPAB
from pstn.estimators.arrays import equalise
from recording import Stopwatch, write

Array = np.ndarray[Any, Any]
Task = tuple[Array, Array, Array, Array]

ALIGN = [
    "warped", "GunPoint", "ItalyPowerDemand", "Trace", "BasicMotions", "ArrowHead", "JapaneseVowels", "FaceAll",
    "TwoPatterns", "OSULeaf",
]  # fmt: skip
AUGMENT = ["warped", "GunPoint", "Trace", "ArrowHead"]
_UCR = {"FaceAll", "TwoPatterns"}
_LARGEST_TRAIN, _LARGEST_TEST = 600, 1000


def make_warped(seed: int, count: int, length: int = 128) -> tuple[Array, Array]:
    """Four sums of bumps, each series of them under a warp of its own, with noise."""
    rng, t = np.random.default_rng(1), np.linspace(0, 1, length)
    bumps = [[rng.normal() * np.exp(-(((t - rng.uniform(0.15, 0.85)) / rng.uniform(0.02, 0.06)) ** 2) / 2)
              for _ in range(4)] for _ in range(4)]  # fmt: skip
    prototypes = np.sum(bumps, axis=1)
    prototypes = (prototypes - prototypes.mean(1, keepdims=True)) / prototypes.std(1, keepdims=True)
    y = np.arange(count) % 4
    warp = pstn.data.RandomCPAB(pstn.CPAB(tess=8), scale=0.8)
    theta = warp.draw(count, generator=torch.Generator().manual_seed(seed))
    x = warp.make(torch.tensor(prototypes[y], dtype=torch.float32)[:, None], theta, padding_mode="border")[:, 0]
    return x.numpy() + np.random.default_rng(seed).normal(0, 0.05, x.shape), y


def load(name: str) -> Task:
    """Series of one length, (N, L) or (N, C, L), and classes from 0, for training and test."""
    if name == "warped":
        x, y, test_x, test_y = *make_warped(10, 40), *make_warped(11, 400)
    elif name == "Trace":
        from tslearn.datasets import CachedDatasets

        x, y, test_x, test_y = CachedDatasets().load_dataset("Trace")
        x, test_x = x[..., 0], test_x[..., 0]
    elif name in _UCR:
        folder = Path(os.environ["PSTN_DATA"]) / "ucr"
        tables = [np.loadtxt(folder / f"{name}_{part}.tsv.gz") for part in ("TRAIN", "TEST")]
        x, y, test_x, test_y = (part for table in tables for part in (table[:, 1:], table[:, 0]))
    else:
        from aeon.datasets import load_classification

        (x, y), (test_x, test_y) = (load_classification(name, split=part) for part in ("train", "test"))
        x = equalise(list(x))
        test_x = equalise(list(test_x), x.shape[-1])
        x, test_x = (part[:, 0] if part.shape[1] == 1 else part for part in (x, test_x))
    rng = np.random.default_rng(0)
    at, test_at = rng.permutation(len(x))[:_LARGEST_TRAIN], rng.permutation(len(test_x))[:_LARGEST_TEST]
    y, test_y = np.unique(y, return_inverse=True)[1], np.unique(test_y, return_inverse=True)[1]
    return x[at].astype(np.float32), y[at], test_x[test_at].astype(np.float32), test_y[test_at]


def variance_within(x: Array, y: Array) -> float:
    """The mean square distance of series from the average of their class, per value."""
    return float(sum(np.square(x[y == k] - x[y == k].mean(0)).sum() for k in np.unique(y)) / x.size)


def nearest_average(x: Array, y: Array, test_x: Array, test_y: Array) -> float:
    means = np.stack([x[y == k].mean(0) for k in np.unique(y)])
    distances = np.square(test_x[:, None] - means).sum(tuple(range(2, test_x.ndim + 1)))
    return float((distances.argmin(1) == test_y).mean())


def aligned(task: Task, **options: Any) -> dict[str, Any]:
    x, y, test_x, test_y = task
    start = time.process_time()
    aligner = pstn.SeriesAligner(axes="auto" if x.ndim == 2 else "NCL", device="cpu", **options).fit(x, y)
    seconds = time.process_time() - start
    after = aligner.transform(test_x)
    # The average of its class in the time of each series: compressed parts count as much as they did before.
    means = np.stack([after[test_y == k].mean(0) for k in np.unique(test_y)])[test_y]
    own_time = float(np.square(aligner.inverse_transform(means, test_x) - test_x).mean())
    before, within = variance_within(test_x, test_y), variance_within(after, test_y)
    accuracies = [
        float((aligner.set_params(distance=each).predict(test_x) == test_y).mean()) for each in ("scaled", "euclidean")
    ]
    return {
        "accuracy": accuracies[0], "accuracy_euclidean": accuracies[1], "fit_cpu_s": round(seconds, 1),
        "own_time_reduction": 1 - own_time / before,
        "within": within, "reduction": 1 - within / before, "share": within / float(after.var()),
        "share_reduction": 1 - (within / float(after.var())) / (before / float(test_x.var())),
    }  # fmt: skip


def soft_dtw(task: Task, gammas: tuple[float, ...] = (0.1, 1.0)) -> dict[str, Any]:
    """The class of the barycenter that is nearest by soft-DTW; gamma by the accuracy on the training part."""
    from tslearn.barycenters import softdtw_barycenter
    from tslearn.metrics import cdist_soft_dtw

    x, y, test_x, test_y = (part if part.ndim != 3 else part.transpose(0, 2, 1) for part in task)
    start, found = time.process_time(), list[tuple[float, float, Any]]()
    for gamma in gammas:
        centres = [softdtw_barycenter(x[y == k], gamma=gamma, max_iter=30) for k in np.unique(y)]
        hits = (cdist_soft_dtw(x, np.stack(centres), gamma=gamma).argmin(1) == y).mean()
        found.append((float(hits), gamma, np.stack(centres)))
    _, gamma, centres = max(found, key=lambda each: each[0])
    seconds = round(time.process_time() - start, 1)
    accuracy = float((cdist_soft_dtw(test_x, centres, gamma=gamma).argmin(1) == test_y).mean())
    return {"accuracy": accuracy, "gamma": gamma, "fit_cpu_s": seconds}


# In the style of DTAN (Weber et al. 2019): a point in place of a posterior, and the variance within classes alone. The
# weight of the prior is what `tune` found, among _SMOOTHNESS.
POINT: dict[str, Any] = {
    "probabilistic": False, "objective": "variance", "separation": 0.0, "augment": 0.0, "smoothness": 0.3,
}  # fmt: skip
_SMOOTHNESS = (0.01, 0.03, 0.1, 0.3, 1.0)


class DifwLine(pstn.Transform):
    """CPAB of one axis by difw: the velocity fields of `cpab` for the same theta."""

    change: torch.Tensor

    def __init__(self, cpab: pstn.CPAB) -> None:
        import difw

        super().__init__()
        self.ndim, self.dim, self.names = 1, cpab.dim, cpab.names
        options = {"backend": "pytorch", "device": "cpu", "zero_boundary": True, "basis": "qr"}
        # It compiles here. Its own flags, -Ofast with fast mathematics, give points outside the domain with g++ 12.
        load = cpp_extension.load
        with patch.object(cpp_extension, "load", lambda **given: load(**given | {"extra_cflags": ["-O3"]})):
            self.peer = difw.Cpab(tess_size=cpab.dim + 1, **options)
        points = (torch.arange(200) + 0.5) / 200
        ours = cpab.velocity(torch.eye(cpab.dim), 2 * points[:, None] - 1)[..., 0] / 2
        theirs = self.peer.calc_velocity(points, torch.eye(cpab.dim))
        # Velocities are linear in theta, so that least squares finds difw's theta exactly.
        self.register_buffer("change", torch.linalg.lstsq(theirs.double().T, ours.double().T).solution.T.float())

    def initial(self) -> torch.Tensor:
        """The identity."""
        return torch.zeros(self.dim)

    def inverse(self, theta: torch.Tensor, *, aspect: Any = None) -> torch.Tensor:
        """Theta of the inverse map."""
        return -theta

    def _unmap(self, theta: torch.Tensor, points: torch.Tensor, aspect: Any) -> torch.Tensor:
        return self._map(-theta, points, aspect)

    def _map(self, theta: torch.Tensor, points: torch.Tensor, aspect: Any) -> torch.Tensor:
        shape = torch.broadcast_shapes(theta.shape[:-1], points.shape[:-2])
        theirs = (theta @ self.change).expand(*shape, self.dim).reshape(-1, self.dim).contiguous()
        at = (points[..., 0] + 1) / 2
        if at.dim() > 1:
            at = at.expand(*shape, at.shape[-1]).reshape(len(theirs), -1).contiguous()
        moved = self.peer.transform_grid(at, theirs)
        return 2 * moved.view(*shape, -1, 1) - 1


def by_difw() -> SmoothCPAB:
    """The aligner's own family and prior, warped by difw."""
    family = SmoothCPAB(pstn.CPAB(tess=16))
    family.cpab = DifwLine(family.cpab)  # type: ignore[assignment]
    return family


def tune(names: list[str]) -> list[dict[str, Any]]:
    """The accuracy of the point on halves of training parts, by the Euclidean distance, for weights of the prior."""
    rows = list[dict[str, Any]]()
    halves = list[tuple[str, Task]]()
    for name in names:
        x, y = (part[:300] for part in load(name)[:2])
        first, second = (part.numpy() for part in stratified_indices(torch.from_numpy(y), 0.5, seed=0))
        halves += [(name, (x[a], y[a], x[b], y[b])) for a, b in ((first, second), (second, first))]

    for smoothness in _SMOOTHNESS:
        found: dict[str, list[float]] = {}
        for name, task in halves:
            scores = aligned(task, random_state=0, **{**POINT, "smoothness": smoothness})
            found.setdefault(name, []).append(scores["accuracy_euclidean"])
        accuracies = {name: float(np.mean(both)) for name, both in found.items()}
        mean = float(np.mean(list(accuracies.values())))
        rows.append({"smoothness": smoothness, "mean": mean, "accuracies": accuracies})
        print(rows[-1], flush=True)
    return rows


def align(names: list[str], seeds: list[int], models: list[str]) -> list[dict[str, Any]]:
    rows = list[dict[str, Any]]()
    for seed in seeds:
        for name in names:
            task = load(name)
            made: dict[str, Any] = {
                "aligner": lambda task=task, seed=seed: aligned(task, random_state=seed),
                "point": lambda task=task, seed=seed: aligned(task, random_state=seed, **POINT),
                "difw": lambda task=task, seed=seed: aligned(task, random_state=seed, **POINT, transform=by_difw()),
            }
            if seed == 0:
                made["none"] = lambda task=task: {
                    "accuracy": nearest_average(*task), "within": variance_within(*task[2:]),
                    "share": variance_within(*task[2:]) / float(task[2].var()),
                }  # fmt: skip
                made["soft-DTW"] = lambda task=task: soft_dtw(task)
            for model in models:
                if model in made:
                    rows.append({"data": name, "model": model, "seed": seed, **made[model]()})
                    print(rows[-1], flush=True)
    return rows


def few(task: Task, per_class: int, seed: int) -> Task:
    x, y, test_x, test_y = task
    rng = np.random.default_rng(seed)
    at = np.concatenate([rng.permutation(np.flatnonzero(y == k))[:per_class] for k in np.unique(y)])
    return x[at], y[at], test_x, test_y


def classifiers(seed: int) -> dict[str, Any]:
    from aeon.classification.convolution_based import MiniRocketClassifier

    return {
        "SVC": make_pipeline(StandardScaler(), SVC(C=10.0)),
        "random forest": RandomForestClassifier(200, random_state=seed),
        "MiniRocket": MiniRocketClassifier(n_kernels=2000, random_state=seed),
    }


def augment(names: list[str], seeds: list[int], per_class: int = 5, samples: int = 10) -> list[dict[str, Any]]:
    rows = list[dict[str, Any]]()
    for seed in seeds:
        for name in names:
            x, y, test_x, test_y = few(load(name), per_class, seed)
            aligner = pstn.SeriesAligner(random_state=seed, device="cpu").fit(x, y)
            fixed = pstn.data.RandomCPAB(pstn.CPAB(tess=16))
            for model, classifier in classifiers(seed).items():
                row = {"data": name, "seed": seed, "model": model, "labels": len(y)}
                row["alone"] = float(clone(classifier).fit(x, y).score(test_x, test_y))
                for way, warp in (("learned", aligner), ("random", fixed)):
                    with_it = pstn.Augmenter(warp, clone(classifier), samples=samples, random_state=seed)
                    row[way] = float(with_it.fit(x, y).score(test_x, test_y))
                rows.append(row)
                print(row, flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["align", "tune", "augment"])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--only", nargs="+", choices=ALIGN)
    models = ["none", "aligner", "point", "soft-DTW", "difw"]
    parser.add_argument("--models", nargs="+", default=models[:-1], choices=models)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    watch = Stopwatch()
    if options.what == "align":
        rows = align(options.only or ALIGN, options.seeds, options.models)
    elif options.what == "tune":
        rows = tune(options.only or ALIGN)
    else:
        rows = augment(options.only or AUGMENT, options.seeds)
    packages = ("scikit-learn", "aeon", "tslearn", "difw")
    write(options.out, {"load": os.getloadavg()[0], "rows": rows}, seed=0, watch=watch, packages=packages)


if __name__ == "__main__":
    main()
