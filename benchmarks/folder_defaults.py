"""`pstn train FOLDER --compare` with defaults on three folders and several seeds, scored on images it never saw.

    python benchmarks/folder_defaults.py WORK OUT.json [--seeds 10] [--folders shapes signs mixed] [--processes 1]

Three questions: how many models end at chance; whether the P-STN on a pretrained network is at least as accurate as
what a sceptic would try, and has a lower NLL; and whether the sentence of each comparison is right.

The sceptic takes scikit-learn's logistic regression on the frozen features of the same network, its penalty and the
images' size chosen by cross-validation on the images that the models learned from and were validated on. These are the
same for every seed. The P-STN is not inferior if the 95% interval of the difference in accuracy lies above -2 points;
its NLL is lower if the interval of that difference lies below 0. Intervals are of a bootstrap over images and seeds,
paired in both; p-values are of a paired t-test over images, of means over seeds.

A sentence is right if the model that it names is, over all seeds and unseen images, not significantly worse in accuracy
or in NLL than any other, by as much as the comparison says matters (half a point, 0.01), and if a difference that it
calls real is significant there as well.

Needs efficientnet-lite0 and scikit-learn. A finished seed is not run again, and sentences are made anew of its answers.
`--train-only` stops before scikit-learn and scipy are needed: for a machine without them, whose WORK/*.json are copied.
`--again pstn` trains only the P-STNs anew, and takes all else from OUT.json.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import pstn
from folders import make_mixed, make_shapes, make_signs
from pstn.comparison import LABELS, RELEVANT, Scored, judge
from pstn.files import read_json, to_json
from pstn.nn.backbones import find_pretrained
from pstn.predict import predict_files, read_items
from pstn.provenance import provenance
from pstn.training.runs.run import predict_models, prepare
from pstn.training.runs.settings import TrainSettings

Floats = npt.NDArray[np.float64]
MAKERS: dict[str, Any] = {"shapes": make_shapes, "signs": make_signs, "mixed": make_mixed}
KINDS = ("linear", "cnn", "stn", "pstn")
MARGIN, LEVEL, DRAWS = 0.02, 0.95, 4000
# Sides of images: what the network was trained on, and what the models read small photos at.
SIDES = (96, 224)


def score(probs: Floats, y: npt.NDArray[np.int64]) -> dict[str, Any]:
    picked = -np.log(probs[np.arange(len(y)), y].clip(1e-40))
    error = pstn.calibration_error(torch.tensor(probs), torch.tensor(y), bins=15)
    right = probs.argmax(1) == y
    return {
        "accuracy": float(right.mean()), "nll": float(picked.mean()), "ece": float(error),
        "right": right.astype(int).tolist(), "loss": picked.round(4).tolist(),
    }  # fmt: skip


def true_labels(names: list[str], classes: tuple[str, ...]) -> npt.NDArray[np.int64]:
    return np.array([classes.index(Path(name).parent.name) for name in names])


def ask(model: Path, folder: Path) -> tuple[Floats, npt.NDArray[np.int64]]:
    """Probabilities (N, K) and classes (N,) of the images of a folder, in the order of their names."""
    loaded = pstn.from_pretrained(model)
    found = sorted(predict_files(loaded, [folder], on_error=lambda error: None), key=lambda answer: answer.input)
    assert loaded.about is not None
    return np.array([a.probabilities for a in found]), true_labels([a.input for a in found], loaded.about.classes)


def try_sceptic(folder: Path, run: Path) -> dict[str, Any]:
    """A logistic regression on frozen features, its settings by cross-validation, scored on the folder's test part."""
    from sklearn.linear_model import LogisticRegressionCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    network, best = find_pretrained("efficientnet-lite0").make().eval(), dict[str, Any]()
    settings, started = TrainSettings(**read_json(run / "results.json")["settings"]), time.perf_counter()
    about = pstn.from_pretrained(run / "pstn" / "model-0").about
    assert about is not None
    for side in SIDES:
        source = prepare(settings.replace(size=side))
        own = dataclasses.replace(about, size=(side, side))
        items = sorted(read_items([folder / "test"], own, on_error=lambda error: None), key=lambda item: item.name)
        held, parts = own.prepare(torch.stack([item.x for item in items])), list[Floats]()
        for x in (source.x, held):
            with torch.inference_mode():
                parts.append(torch.cat([network(batch) for batch in x.split(16)]).double().numpy())
        regression = LogisticRegressionCV(
            Cs=np.logspace(-3, 1, 9), cv=5, scoring="neg_log_loss", max_iter=1000, l1_ratios=(0.0,),
            use_legacy_attributes=False,
        )  # fmt: skip
        pipeline = make_pipeline(StandardScaler(), regression)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pipeline.fit(parts[0], source.y.numpy())
        validation = float(np.mean(regression.scores_, axis=0).max())
        if not best or validation > best["validation"]:
            found = score(pipeline.predict_proba(parts[1]), true_labels([item.name for item in items], about.classes))
            best = {"validation": validation, "side": side, "C": float(np.ravel(regression.C_)[0]), **found}
    return best | {"seconds": time.perf_counter() - started}


def run_seed(folder: Path, out: Path, seed: int, options: list[str]) -> dict[str, Any]:
    """Train and score; keep what the sentence is made of."""
    options = ["--compare", "--skip-broken", "--seed", str(seed), "--out", str(out), "--overwrite", "--json", *options]
    started = time.perf_counter()
    command = [str(Path(sys.executable).with_name("pstn")), "train", str(folder / "train"), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    row: dict[str, Any] = {"seed": seed, "run": provenance(), "seconds": time.perf_counter() - started}
    if done.returncode:
        return row | {"error": done.stderr[-2000:]}
    results = read_json(out / "results.json")
    row |= {name: results[name] for name in ("use", "verdict", "sentence", "settings")} | {"models": {}, "held_out": {}}
    source = prepare(TrainSettings(**results["settings"]))
    assert source.test is not None
    for kind, told in zip(KINDS, results["models"], strict=True):
        probs, y = ask(out / kind / "model-0", folder / "test")
        about = {name: told[name] for name in ("seconds", "parameters", "failed", "epochs")}
        row["models"][kind] = score(probs, y) | about
        row["chance"] = float(np.bincount(y).max() / len(y))
        [log_probs] = predict_models([pstn.from_pretrained(out / kind / "model-0")], source.test[0], seeds=[seed])
        row["held_out"][kind] = [[round(value, 4) for value in line] for line in log_probs.tolist()]
    row |= {"held_out_y": source.test[1].tolist(), "held_out_chance": results["chance"]["accuracy"]}
    return row


def run_again(folder: Path, out: Path, row: dict[str, Any], kind: str, options: list[str]) -> dict[str, Any]:
    """A row in which one kind of model is trained and scored anew."""
    options = ["--model", kind, "--skip-broken", "--seed", str(row["seed"]), "--out", str(out), "--overwrite", *options]
    command = [str(Path(sys.executable).with_name("pstn")), "train", str(folder / "train"), "--json", *options]
    subprocess.run(command, capture_output=True, text=True, check=True)
    results = read_json(out / "results.json")
    source = prepare(TrainSettings(**results["settings"]))
    assert source.test is not None
    model = out / "model-0"
    about = {"seconds": results["seconds"], "failed": results["failed"], "epochs": len(results["history"])}
    parameters = row["models"][kind]["parameters"]
    told = score(*ask(model, folder / "test")) | about | {"parameters": parameters, "run": provenance()}
    [log_probs] = predict_models([pstn.from_pretrained(model)], source.test[0], seeds=[row["seed"]])
    held_out = [[round(value, 4) for value in line] for line in log_probs.tolist()]
    return row | {"models": row["models"] | {kind: told}, "held_out": row["held_out"] | {kind: held_out}}


def gap(a: Floats, b: Floats) -> dict[str, Any]:
    """The mean of a - b, both (R, N), for R seeds and the same N images."""
    from scipy import stats

    values, generator = a - b, np.random.default_rng(0)
    means = []
    for _ in range(DRAWS):
        seeds, images = (generator.integers(n, size=n) for n in values.shape)
        means.append(values[seeds][:, images].mean())
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    each = values.mean(0)
    p = float(stats.ttest_1samp(each, 0).pvalue) if each.std() else 1.0
    return {"value": float(values.mean()), "low": float(low), "high": float(high), "p": p}


def better(a: dict[str, Floats], b: dict[str, Floats], of: str) -> dict[str, Any]:
    """By how much `a` is better than `b`: in accuracy, or by a lower NLL."""
    return gap(a["right"], b["right"]) if of == "accuracy" else gap(b["loss"], a["loss"])


def check_sentence(row: dict[str, Any], pooled: dict[str, dict[str, Floats]]) -> dict[str, Any]:
    """What `--compare` says of a seed's answers, and what is wrong with it by the answers of all seeds, if anything."""
    told = {kind: row["models"][kind] for kind in KINDS}
    y = torch.tensor(row["held_out_y"])
    scored = [
        Scored(kind, torch.tensor(row["held_out"][kind])[None], told[kind]["seconds"], told[kind]["parameters"],
               tuple(told[kind]["failed"]))
        for kind in KINDS
    ]  # fmt: skip
    said, wrong = judge(scored, y, row["held_out_chance"]), list[str]()
    if said.kind is None:
        wrong.append("it names none, and some are better than chance")
    for of in ("accuracy", "NLL"):
        for kind in KINDS:
            if said.kind not in (None, kind):
                gain = better(pooled[kind], pooled[said.kind], of)
                if gain["low"] > 0 and gain["value"] >= RELEVANT[of]:
                    wrong.append(f"{LABELS[kind]} has a better {of}")
    other = re.search(r"Beside the ([^,]+)", said.sentence)
    for of, change in re.findall(r"its (accuracy|NLL) is [\d.]+(?: points)? (\w+) \([^)]*\): the difference is real",
                                 said.sentence):  # fmt: skip
        assert other is not None
        assert said.kind is not None
        kind = next(kind for kind, name in LABELS.items() if name == other[1])
        found = better(pooled[said.kind], pooled[kind], of)
        good = (change == "higher") == (of == "accuracy")
        if not (found["low"] > 0 if good else found["high"] < 0):
            wrong.append(f"the difference in {of} to the {other[1]} is not real")
    return {"use": said.kind, "verdict": said.verdict, "sentence": said.sentence, "wrong": wrong}


def summarise(rows: list[dict[str, Any]], sceptic: dict[str, Any]) -> dict[str, Any]:
    """The three answers for one folder."""
    from scipy import stats

    done = [row for row in rows if "error" not in row]
    count = len(sceptic["right"])
    at_chance = dict.fromkeys(KINDS, 0)
    for row in done:
        for kind in KINDS:
            right = sum(row["models"][kind]["right"])
            at_chance[kind] += int(stats.binomtest(right, count, row["chance"], alternative="greater").pvalue > 0.01)
    pooled = {kind: {name: np.array([row["models"][kind][name] for row in done], float) for name in ("right", "loss")}
              for kind in KINDS}  # fmt: skip
    pooled["logistic"] = {name: np.tile(np.array(sceptic[name], float), (len(done), 1)) for name in ("right", "loss")}
    accuracy, nll = (better(pooled["pstn"], pooled["logistic"], of) for of in ("accuracy", "NLL"))
    sentences = [{"seed": row["seed"], **check_sentence(row, pooled)} for row in done]
    return {
        "seeds": len(done), "errors": len(rows) - len(done), "images": count, "chance": done[0]["chance"],
        "at_chance": at_chance,
        "means": {kind: {"accuracy": float(p["right"].mean()), "nll": float(p["loss"].mean())}
                  for kind, p in pooled.items()},
        "ece": {kind: float(np.mean([row["models"][kind]["ece"] for row in done])) for kind in KINDS}
        | {"logistic": sceptic["ece"]},
        "against_logistic": {
            kind: {of: better(pooled[kind], pooled["logistic"], of) for of in ("accuracy", "NLL")} for kind in KINDS
        },
        "not_inferior_in_accuracy": accuracy["low"] > -MARGIN, "ahead_in_nll": nll["low"] > 0,
        "sentences_right": sum(not said["wrong"] for said in sentences), "sentences": sentences,
        "seconds": float(np.mean([row["seconds"] for row in done])),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--folders", nargs="+", default=list(MAKERS), choices=MAKERS)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--train-only", action="store_true")
    parser.add_argument("--again", choices=KINDS[1:])
    given, options = parser.parse_known_args()  # others are for pstn train
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    for name in given.folders:
        if not (given.work / name).exists():
            MAKERS[name](given.work / name)

    before = read_json(given.out) if given.again else {}
    for name in given.folders if given.again else ():
        (given.work / f"{name}-logistic.json").write_text(to_json(before["logistic"][name]))

    def work(job: tuple[int, str]) -> None:
        seed, name = job
        kept, out = given.work / f"{name}-{seed}.json", given.work / f"run-{name}-{seed}"
        if not kept.exists():
            if given.again:
                row = run_again(given.work / name, out, before["rows"][name][seed], given.again, options)
            else:
                row = run_seed(given.work / name, out, seed, options)
            kept.write_text(to_json(row))
            scores = {k: (round(m["accuracy"], 3), round(m["nll"], 3)) for k, m in row.get("models", {}).items()}
            print(name, seed, round(row["seconds"]), scores, row.get("error", ""), flush=True)
        tried = given.work / f"{name}-logistic.json"
        if seed == 0 and not given.train_only and not tried.exists():
            tried.write_text(to_json(try_sceptic(given.work / name, out)))
            print(name, {k: v for k, v in read_json(tried).items() if k not in ("right", "loss")}, flush=True)
        if seed or given.train_only:
            shutil.rmtree(out, ignore_errors=True)  # tens of megabytes

    with ThreadPoolExecutor(given.processes) as pool:
        list(pool.map(work, [(seed, name) for seed in range(given.seeds) for name in given.folders]))
    if given.train_only:
        return
    held = {name: [read_json(given.work / f"{name}-{seed}.json") for seed in range(given.seeds)]
            for name in given.folders}  # fmt: skip
    sceptics = {name: read_json(given.work / f"{name}-logistic.json") for name in given.folders}
    found = {name: summarise(rows, sceptics[name]) for name, rows in held.items()}
    for name, summary in found.items():
        print(name, to_json({key: value for key, value in summary.items() if key != "sentences"}, indent=1))
    every = [row for rows in held.values() for row in rows]
    runs = {to_json(of["run"]) for row in every for of in (row, *row["models"].values()) if "run" in of}
    record = {
        "run": provenance(("scikit-learn", "scipy")), "trained_by": [json.loads(run) for run in sorted(runs)],
        "margin": MARGIN, "level": LEVEL, "summary": found, "logistic": sceptics, "rows": held,
    }  # fmt: skip
    given.out.write_text(to_json(record))


if __name__ == "__main__":
    main()
