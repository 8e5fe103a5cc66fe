"""The estimators at their defaults beside scikit-learn's SVC: accuracy over seeds, and what a fit costs.

Usage:
    python benchmarks/estimators.py --out results.json [--seeds 5] [--only italy digits]

ItalyPowerDemand at its own split; 200 of the 5,000 shipped digits, drawn anew for each seed, and the other 4,800 for
the test. The SVC has its defaults, with and without a StandardScaler: `svc` is the better of the two on the test set.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

import pstn
from pstn.data import balanced_indices, load_digits, load_italy_power_demand
from recording import Stopwatch, write

Array = np.ndarray[Any, Any]
Task = tuple[Array, Array, Array, Array]


def italy(seed: int) -> Task:
    parts = load_italy_power_demand(validation=0.0)
    assert parts.test is not None
    return parts.train.x[:, 0].numpy(), parts.train.y.numpy(), parts.test.x[:, 0].numpy(), parts.test.y.numpy()


def digits(seed: int) -> Task:
    pool, test = load_digits("train"), load_digits("test")
    x, y = torch.cat([pool.x, test.x])[:, 0], torch.cat([pool.y, test.y])
    train = balanced_indices(y, 200, fold=seed)
    rest = torch.ones(len(y), dtype=torch.bool)
    rest[train] = False
    return x[train].numpy(), y[train].numpy(), x[rest].numpy(), y[rest].numpy()


def svc(task: Task) -> float:
    x, y, test_x, test_y = (a.reshape(len(a), -1) if a.ndim == 3 else a for a in task)
    return max(m.fit(x, y).score(test_x, test_y) for m in (SVC(), make_pipeline(StandardScaler(), SVC())))


def measure(classifier: ClassifierMixin, task: Task) -> dict[str, Any]:
    x, y, test_x, test_y = task
    wall, cpu = time.perf_counter(), time.process_time()
    classifier.fit(x, y)
    seconds = {"fit_s": time.perf_counter() - wall, "fit_cpu_s": time.process_time() - cpu}
    wall = time.perf_counter()
    proba = classifier.predict_proba(test_x)
    seconds["predict_s"] = time.perf_counter() - wall
    scores = {
        "accuracy": float((classifier.classes_[proba.argmax(1)] == test_y).mean()),
        "nll": float(-np.log(np.maximum(proba[np.arange(len(test_y)), test_y], 1e-12)).mean()),
        "ece": float(pstn.calibration_error(torch.from_numpy(proba), torch.from_numpy(test_y))),
    }
    chosen = {"kl_weight": classifier.kl_weight_} if hasattr(classifier, "kl_weight_") else {}
    return {**scores, **chosen, **{k: round(v, 2) for k, v in seconds.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=["italy", "digits"], default=["italy", "digits"])
    parser.add_argument("--models", nargs="+", default=["PSTNClassifier", "STNClassifier", "CNNClassifier"])
    options = parser.parse_args()
    watch, rows = Stopwatch(), list[dict[str, Any]]()
    for name in options.only:
        for seed in range(options.seeds):
            task = {"italy": italy, "digits": digits}[name](seed)
            rows.append({"data": name, "seed": seed, "model": "SVC", "accuracy": svc(task)})
            for model in options.models:
                rows.append({"data": name, "seed": seed, "model": model})
                rows[-1] |= measure(getattr(pstn, model)(random_state=seed), task)
                print(rows[-1], flush=True)
    figures = {"load": os.getloadavg()[0], "rows": rows}
    write(options.out, figures, seed=0, watch=watch, packages=("scikit-learn",))


if __name__ == "__main__":
    main()
