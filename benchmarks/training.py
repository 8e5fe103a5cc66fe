"""How fast the population trainer is, and that the fast ways compute the same: one script, one JSON file.

Usage:
    python benchmarks/training.py --data FOLDER --out results.json [--quick] [--only NAME ...]

FOLDER holds mnist/, fashion-mnist/ (IDX .gz files) and ucr/ (FaceAll .tsv.gz).
"""

from __future__ import annotations

import argparse
import gzip
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import pstn
from pstn.data import RandomPlacement, RandomRotation
from pstn.training import Population, RandomWarp, Recipe, make_members
from recording import Stopwatch, write

Data = tuple[Tensor, Tensor]
Row = dict[str, Any]
FILL = -0.1307 / 0.3081


def read_idx(folder: Path, part: str) -> Data:
    def load(kind: str, offset: int) -> np.ndarray[Any, Any]:
        with gzip.open(folder / f"{part}-{kind}-ubyte.gz") as stream:
            return np.frombuffer(stream.read(), np.uint8, offset=offset).copy()

    x = torch.from_numpy(load("images-idx3", 16)).reshape(-1, 1, 28, 28).float() / 255
    return x, torch.from_numpy(load("labels-idx1", 8)).long()


def read_tsv(path: Path) -> Data:
    with gzip.open(path) as stream:
        table = torch.from_numpy(np.loadtxt(stream, dtype=np.float32))
    return table[:, 1:][:, None].contiguous(), table[:, 0].long() - 1


def rate(population: Population, seconds: float, most: int) -> Row:
    """Model-steps per second once everything has been captured: the median of three stretches."""
    started = time.perf_counter()
    population.fit(until=60)
    ready = time.perf_counter() - started
    if seconds == 0:  # only to fill the compiler's cache
        return {"ready_s": round(ready, 2)}
    rates: list[float] = []
    stretch = 60
    for _ in range(4):
        started, step = time.perf_counter(), population.progress.step
        population.fit(until=step + stretch)
        rates.append(stretch / (time.perf_counter() - started))
        stretch = max(60, min(most, int(seconds * rates[0])))
    assert all(population.alive), population.progress.failures
    rates, models = sorted(rates[1:]), len(population.members)
    return {
        "models": models, "groups": len(population.stacks), "ready_s": round(ready, 2),
        "ms_per_step": round(1000 / rates[1], 4), "model_steps_per_s": round(rates[1] * models, 1),
        "spread": round(rates[2] / rates[0] - 1, 3),
    }  # fmt: skip


def several(make: Callable[[], nn.Module], count: int) -> list[nn.Module]:
    torch.manual_seed(0)
    return [make() for _ in range(count)]


def mnist_pstn() -> nn.Module:
    return pstn.nn.mnist_pstn(fill=FILL)


def mnist_stn() -> nn.Module:
    return pstn.nn.mnist_stn(fill=FILL)


def rotated_pstn() -> nn.Module:
    localizer = pstn.nn.ConvLocalizer(1, (28, 28), filters=(28, 53))
    layer = pstn.SpatialTransformer(pstn.Rotation(), localizer, (28, 28), hidden=20, var_init=-3.0)
    classifier = pstn.nn.mnist_cnn().requires_grad_(False)  # its dropout stays active, as in the authors' set-up
    return pstn.PSTN(layer, classifier, train_samples=10)


def placed_pstn() -> nn.Module:
    localizer = pstn.nn.ConvLocalizer(1, (96, 96), filters=(11, 21), kernel=7)
    layer = pstn.SpatialTransformer(pstn.Similarity(), localizer, (28, 28), hidden=12)
    return pstn.PSTN(layer, pstn.nn.mnist_cnn().requires_grad_(False), train_samples=10)


def series_pstn(classes: int = 14, length: int = 131) -> nn.Module:
    localizer = pstn.nn.SeriesLocalizer(1, padded=False)
    layer = pstn.SpatialTransformer(pstn.CPAB(tess=10), localizer, (length,), padding_mode="border")
    classifier = pstn.nn.SeriesClassifier(1, classes, filters=(196, 256, 256, 256, 64), padded=False)
    return pstn.PSTN(layer, classifier, train_samples=10)


class Bench:
    """The measurements, each under its own name."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.folder, self.device, self.quick = options.data, options.device, options.quick
        self.compiled, self.plans, self.variations = options.compiled, options.plans, options.variants
        self.seconds, self.most = (0.2, 60) if self.quick else (0.7, 4000)
        self.seconds = 0 if options.warm else self.seconds

    def mnist(self, size: int | None = None) -> Data:
        """Training images, normalised."""
        x, y = read_idx(self.folder / "mnist", "train")
        return ((x - 0.1307) / 0.3081)[:size], y[:size]

    def population(self, models: list[nn.Module], data: Data, recipe: Recipe, **options: Any) -> Population:
        """Models with noise seeds 0, 1, 2, ..."""
        values = {"kl_weight": 1e-3, "weight_decay": 0.01, **options.pop("values", {})}
        return Population(models, *data, make_members(len(models), **values), recipe, device=self.device, **options)

    def correctness(self) -> Row:
        """Largest difference of any weight: this device against the CPU, stacked against alone."""
        data, count = self.mnist(100), 3
        models, found = several(mnist_pstn, count), {}
        start = self.population(models, data, Recipe(600, 8), groups=1).tensors()["rows"]
        for steps in (5, 20):
            rows = {}
            for name, device, groups in (("cpu", "cpu", 1), ("stacked", self.device, 1), ("alone", self.device, 3)):
                members = make_members(count, kl_weight=1e-3, weight_decay=0.01)
                with Population(
                    models, *data, members, Recipe(600, 8), device=device, groups=groups, workers=False
                ) as p:
                    p.fit(until=steps)
                    rows[name] = p.tensors()["rows"]
            found[f"after_{steps}_steps"] = {
                "device_against_cpu": float((rows["stacked"] - rows["cpu"]).abs().max()),
                "stacked_against_alone": float((rows["stacked"] - rows["alone"]).abs().max()),
                "median_stacked_against_alone": float((rows["stacked"] - rows["alone"]).abs().median()),
                "largest_change_by_training": float((rows["stacked"] - start).abs().max()),
            }
        print(found, flush=True)
        return found

    def subsets(self) -> list[Row]:
        """MNIST100 P-STN, batch 8, S = 1: models stacked, on streams (or in processes), and in between."""
        data, rows = self.mnist(100), []
        for plan in self.plans:
            count, groups, conv = int(plan.split(":")[0]), int(plan.split(":")[1]), plan.split(":")[2]
            models = several(mnist_pstn, count)
            options: Row = {"groups": groups, "compile": self.compiled, "conv": conv, "workers": groups > 1}
            with self.population(models, data, Recipe(epochs=10**6, batch_size=8), **options) as p:
                rows.append({"compile": self.compiled, "conv": conv, **rate(p, self.seconds, self.most)})
                print(rows[-1], flush=True)
        return rows

    def variants(self, make: Callable[[], nn.Module], data: Data, values: Row, **recipe: Any) -> list[Row]:
        """One model in each precision, with each kind of convolution."""
        (model,), rows = several(make, 1), []
        for variant in self.variations:
            precision, conv = variant.split(":")
            used = Recipe(epochs=10**6, precision=precision, **recipe)
            with self.population([model], data, used, compile=self.compiled, conv=conv, values=values) as p:
                found = {"compile": self.compiled, "precision": precision, "conv": conv}
                rows.append({**found, **rate(p, self.seconds, self.most)})
            print(rows[-1], flush=True)
        return rows

    def rotated(self) -> list[Row]:
        """Rotated MNIST P-STN, batch 64, S = 10, images rotated afresh on the device."""
        x, y = read_idx(self.folder / "mnist", "train")
        count, values = (
            640 if self.quick else 50_000,
            {"kl_weight": 3e-5, "weight_decay": 1e-5, "localizer_factor": 1.0},
        )
        return self.variants(
            rotated_pstn, (x[:count], y[:count]), values, batch_size=64, augment=RandomWarp(RandomRotation())
        )

    def placed(self) -> list[Row]:
        """Random placement FashionMNIST P-STN, batch 64, S = 10, images placed afresh on the device."""
        x, y = read_idx(self.folder / "fashion-mnist", "train")
        count, augment = 640 if self.quick else 50_000, RandomWarp(RandomPlacement())
        return self.variants(
            placed_pstn,
            (x[:count], y[:count]),
            {"kl_weight": 3e-5, "weight_decay": 0.0},
            batch_size=64,
            augment=augment,
        )

    def faceall(self) -> list[Row]:
        """FaceAll P-STN, batch 16, S = 10, in each precision."""
        data = read_tsv(self.folder / "ucr" / "FaceAll_TRAIN.tsv.gz")
        return self.variants(series_pstn, data, {"kl_weight": 1e-4, "weight_decay": 0.0}, batch_size=16)

    def faceall_accuracy(self) -> list[Row]:
        """Test accuracy of FaceAll P-STN after 200 epochs, the same three seeds in each precision."""
        data, test = (read_tsv(self.folder / "ucr" / f"FaceAll_{part}.tsv.gz") for part in ("TRAIN", "TEST"))
        rows = []
        for variant in self.variations:
            precision, conv = variant.split(":")
            recipe = Recipe(epochs=1 if self.quick else 200, batch_size=16, precision=precision)
            values = {"kl_weight": 1e-4, "weight_decay": 0.0}
            options: Row = {"values": values, "groups": 3, "conv": conv, "compile": self.compiled}
            with self.population(several(series_pstn, 3), data, recipe, **options) as p:
                started = time.perf_counter()
                p.fit()
                seconds = round(time.perf_counter() - started, 2)
                scores = {k: [round(v, 4) for v in vs] for k, vs in p.evaluate(*test, batch=169).items()}
            rows.append({"precision": precision, "epochs": recipe.epochs, "train_s": seconds, **scores})
            print(rows[-1], flush=True)
        return rows

    def folds(self) -> Row:
        """Five folds of MNIST100 for CNN, STN and P-STN, 600 epochs: from data in memory to scores on the test set."""
        (x, y), test = self.mnist(), read_idx(self.folder / "mnist", "t10k")
        test = ((test[0] - 0.1307) / 0.3081, test[1])
        order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
        per_class = [order[y[order] == k] for k in range(10)]
        subsets = [torch.cat([c[10 * f : 10 * f + 10] for c in per_class]) for f in range(5)]
        kinds = {"cnn": (pstn.nn.mnist_cnn, 1e-3), "stn": (mnist_stn, 1e-4), "pstn": (mnist_pstn, 1e-3)}
        found: Row = {"epochs": 2 if self.quick else 600}
        limit = 200 if self.quick else len(test[1])
        started = time.perf_counter()
        for name, (make, lr) in kinds.items():
            begun, values = time.perf_counter(), {"lr": lr, "train": subsets}
            with self.population(several(make, 5), (x, y), Recipe(found["epochs"], 8), values=values) as p:
                p.fit()
                trained = time.perf_counter() - begun
                scores = p.evaluate(test[0][:limit], test[1][:limit])
            found[name] = {"train_s": round(trained, 2), "with_test_s": round(time.perf_counter() - begun, 2)}
            found[name] |= {k: [round(v, 4) for v in vs] for k, vs in scores.items()}
            print(name, found[name], flush=True)
        found["total_s"] = round(time.perf_counter() - started, 2)
        return found


def main() -> None:
    """Run what was asked for; write after each measurement, so that a stopped run keeps what it has."""
    names = ["correctness", "subsets", "rotated", "placed", "faceall", "folds", "faceall_accuracy"]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--quick", action="store_true", help="a smoke test, not a measurement")
    parser.add_argument("--compiled", action="store_true", help="fuse small kernels with torch.compile first")
    parser.add_argument("--warm", action="store_true", help="only capture and compile, to fill the caches")
    parser.add_argument("--only", nargs="*", default=names)
    parser.add_argument("--plans", nargs="*", default=["1:1:library", "5:2:library"], help="MODELS:GROUPS:CONV")
    parser.add_argument("--variants", nargs="*", default=["float32:library"], help="PRECISION:CONV")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", message=".*padding='same'.*")  # torch's remark that an even kernel copies
    bench = Bench(arguments)
    results: Row = {}
    watch = Stopwatch()
    for name in arguments.only:
        started, found = time.perf_counter(), None
        print(f"--- {name}", flush=True)
        try:
            found = getattr(bench, name)()
        except Exception:  # the other measurements are worth having
            found = traceback.format_exc()[-1500:]
            print(found, flush=True)
        results[name] = {"wall_s": round(time.perf_counter() - started, 1), "found": found}
        write(arguments.out, results, seed=0, watch=watch)


if __name__ == "__main__":
    main()
