"""Knowing when not to answer, on MNIST.

Do thresholds and conformal sets keep their promises, and which score finds inputs unlike the training data?

    python benchmarks/abstaining.py OUT.json [--splits 10] [--models 2] [--sizes 100 2000] [--device cpu]

For each size that many P-STNs with the paper's networks learn, each from its own digits of the training part. The
20,000 images of the validation and the test part, from which no model learns, are divided at random into two halves, as
often as there are splits. Temperature, threshold and sets are found on the first half, or on 100 or 1,000 of it; what
they promised is tested on the second.

In the first split, the models then see what they have not learned to read. Scores are compared by AUROC, the
probability that such an input has a higher score than a digit of the second half. Those that need a reference take
1,000 labelled digits of the first half, or the model's own training digits.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

import pstn
from pstn.abstaining import Abstention
from pstn.noise import draw_noise
from pstn.provenance import provenance
from pstn.training import Population, Recipe, make_members
from pstn.training.evaluate import find_temperature
from pstn.training.population.trainer import make_device
from pstn.training.runs.run import choose_subset
from pstn.uncertainty import entropy, risk_coverage_curve
from recording import Stopwatch

Array = npt.NDArray[np.float64]
COVERAGES, ACCURACIES = (0.8, 0.9, 0.95, 0.99), (0.95, 0.99, 0.995)
HELD = (100, 1000, 10_000)  # digits that thresholds and sets are found on
UNLIKE = 1000  # inputs of each kind
SHIFTED = ("turned by 30° to 60°", "noisy")  # they still have a class


# Inputs that are unlike the training data


def load_split(name: str, part: str) -> tuple[Tensor, Tensor]:
    split = getattr(pstn.data.load(name), part).as_float()
    return split.x, split.y.long()


def draw_letters(path: Path) -> Tensor:
    """Capitals that no digit looks like, (N, 1, 28, 28), in the fonts of matplotlib; drawn once, and kept in a file."""
    if not path.exists():
        import matplotlib
        from PIL import Image, ImageDraw, ImageFont

        fonts = sorted((Path(matplotlib.get_data_path()) / "fonts" / "ttf").glob("DejaVu*.ttf"))
        fonts = [font for font in fonts if "Display" not in font.name]
        draw, pictures = np.random.default_rng(0), []
        for _ in range(UNLIKE):
            font = ImageFont.truetype(fonts[draw.integers(len(fonts))], int(draw.integers(18, 27)))
            picture = Image.new("L", (28, 28))
            place = tuple(14 + draw.uniform(-2, 2, 2))
            letter = "ACEFHJKLMNPRTUVWXY"[draw.integers(18)]
            ImageDraw.Draw(picture).text(place, letter, fill=255, font=font, anchor="mm")
            pictures.append(np.asarray(picture))
        np.savez_compressed(path, x=np.stack(pictures))
    return torch.tensor(np.load(path)["x"])[:, None].float() / 255


def unlike(digits: Tensor, letters: Tensor, seed: int) -> dict[str, Tensor]:
    """Inputs that are not what the models have learned, and two that are worse photographs of it."""
    source = torch.Generator().manual_seed(seed)
    x = digits[:UNLIKE]

    def turn(low: float, high: float) -> Tensor:
        angle = torch.empty(len(x), 1).uniform_(low, high, generator=source)
        angle *= torch.randint(0, 2, angle.shape, generator=source) * 2 - 1
        return pstn.warp(x, pstn.Rotation().grid(angle, (28, 28)))

    smooth = nn.functional.interpolate(torch.rand(len(x), 1, 7, 7, generator=source), size=(28, 28), mode="bicubic")
    fashion, _ = load_split("fashion-mnist", "test")
    return {
        "garments": fashion[:UNLIKE],
        "letters": letters,
        "negatives": 1 - x,
        "noise": torch.rand(x.shape, generator=source),
        "smooth noise": smooth.clamp(0, 1),
        "turned by 90° to 180°": turn(math.pi / 2, math.pi),
        "turned by 30° to 60°": turn(math.pi / 6, math.pi / 3),
        "noisy": (x + 0.3 * torch.randn(x.shape, generator=source)).clamp(0, 1),
    }


# What a model says of inputs


def ask(model: pstn.PSTN, x: Tensor, device: torch.device) -> dict[str, Array]:
    """What scores are made of, averaged over the samples: probabilities, logits, features, ..."""
    held: list[tuple[Tensor, Tensor]] = []
    last = [part for part in model.classifier.modules() if isinstance(part, nn.Linear)][-1]
    hook = last.register_forward_hook(lambda _, given, made: held.append((given[0], made)))
    noise = draw_noise(model.test_samples, (1, model.layer.noise_width), method=model.layer.sampling,
                       generator=torch.Generator().manual_seed(0)).to(device)  # fmt: skip
    found: list[dict[str, Tensor]] = []
    with torch.inference_mode():
        for part in x.to(device).split(1000):
            held.clear()
            out = model(part, noise=noise.expand(-1, len(part), -1))
            samples = (out.theta.shape[0], len(part))
            # Predictions on a CPU come in chunks of samples.
            features, logits = (torch.cat(parts).unflatten(0, samples) for parts in zip(*held, strict=True))
            low, high = out.posterior.interval(0.9)
            log_probs = out.log_probs.clamp_min(-30)
            answer = log_probs - log_probs.mean(-1, keepdim=True)
            theta, best = [out.theta.mean(0), out.theta.std(0).log()], log_probs.max(-1, keepdim=True).values
            odds = (1 - best.exp()).clamp_min(1e-9).log() - best
            found.append({
                "log_probs": out.log_probs, "entropy": out.entropy, "mutual information": out.mutual_information,
                "theta": out.posterior.mode, "spread of theta": (high - low).log().sum(-1),
                "energy": -logits.logsumexp(-1).mean(0), "highest logit": -logits.mean(0).max(-1).values,
                "logits": (logits - logits.mean(-1, keepdim=True)).mean(0), "features": features.mean(0),
                "pixels": part.flatten(1), "probabilities": answer,
                "answer": torch.cat([answer, *theta], -1), "evidence": torch.cat([answer, *theta, odds], -1),
            })  # fmt: skip
    hook.remove()
    return {name: torch.cat([part[name] for part in found]).double().cpu().numpy() for name in found[0]}


def mahalanobis(reference: Array, y: npt.NDArray[np.int64], x: Array) -> Array:
    """The smallest squared distance to a class's mean, under one covariance for all classes, of scaled values."""
    classes, scale = np.unique(y), reference.std(0).clip(1e-9)
    reference, x = reference / scale, x / scale
    means = np.stack([reference[y == k].mean(0) for k in classes])
    rest = reference - means[np.searchsorted(classes, y)]
    covariance = rest.T @ rest / len(rest)
    covariance += 1e-3 * np.trace(covariance) / len(covariance) * np.eye(len(covariance))
    white = np.linalg.cholesky(np.linalg.inv(covariance))
    return ((x @ white)[:, None] - (means @ white)[None]).__pow__(2).sum(-1).min(1)


def relative_mahalanobis(reference: Array, y: npt.NDArray[np.int64], x: Array) -> Array:
    """Less the distance to the mean of all classes, under the covariance of all (Ren et al. 2021)."""
    return mahalanobis(reference, y, x) - mahalanobis(reference, np.zeros_like(y), x)


def distance_and_odds(reference: Array, y: npt.NDArray[np.int64], x: Array) -> Array:
    """The logarithm of the distance, and the odds that the answer is wrong, each as deviations from its mean."""
    pairs = [(np.log(mahalanobis(reference[:, :-1], y, v[:, :-1])), v[:, -1]) for v in (reference, x)]
    terms = [(new - held.mean()) / held.std() for held, new in zip(*pairs, strict=True)]
    return terms[0] + terms[1]


def neighbours(reference: Array, y: npt.NDArray[np.int64], x: Array, k: int = 5) -> Array:
    """The distance to the k-th nearest example (Sun et al. 2022, without scaling to length 1)."""
    a, b = torch.tensor(x, dtype=torch.float32), torch.tensor(reference, dtype=torch.float32)
    rows = [torch.cdist(part, b).topk(min(k, len(b)), largest=False).values[:, -1] for part in a.split(500)]
    return torch.cat(rows).double().numpy()


def directions(reference: Array, y: npt.NDArray[np.int64], x: Array) -> Array:
    """Likewise of vectors of length 1."""
    length = [np.linalg.norm(part, axis=1, keepdims=True).clip(1e-9) for part in (reference, x)]
    return neighbours(reference / length[0], y, x / length[1])


DENSITIES: dict[str, tuple[str, Callable[..., Array]]] = {
    "Mahalanobis of features": ("features", mahalanobis),
    "relative Mahalanobis of features": ("features", relative_mahalanobis),
    "neighbours of features": ("features", neighbours),
    "neighbours of directions of features": ("features", directions),
    "Mahalanobis of logits": ("logits", mahalanobis),
    "neighbours of logits": ("logits", neighbours),
    "Mahalanobis of probabilities": ("probabilities", mahalanobis),
    "Mahalanobis of probabilities and theta": ("answer", mahalanobis),
    "the same, and the odds of a mistake": ("evidence", distance_and_odds),
    "Mahalanobis of theta": ("theta", lambda reference, y, x: mahalanobis(reference, np.zeros_like(y), x)),
    "neighbours of pixels": ("pixels", neighbours),
}


def scores(of: dict[str, Array], references: dict[str, tuple[dict[str, Array], Any]]) -> dict[str, Array]:
    """Every score of inputs, higher for what is less like the training data."""
    names = ("entropy", "mutual information", "spread of theta", "energy", "highest logit")
    found = {"1 - highest probability": 1 - np.exp(of["log_probs"].max(1)), **{name: of[name] for name in names}}
    for where, (reference, y) in references.items():
        for name, (what, score) in DENSITIES.items():
            found[f"{name}, {where}"] = score(reference[what], y, of[what])
    return found


def auroc(negative: Array, positive: Array) -> float:
    """The probability that a positive one is the larger, ties counting half."""
    values = np.concatenate([negative, positive])
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(count) - (count - 1) / 2)[place]
    n, m = len(negative), len(positive)
    return float((ranks[n:].sum() - m * (m + 1) / 2) / (n * m))


# The two questions


def promises(held: tuple[Array, Any], tested: tuple[Array, Any]) -> dict[str, Any]:
    """What sets and thresholds from one half promise, and what the other half says of it."""
    sets, answers = [], []
    for coverage in COVERAGES:
        found = Abstention.find(*held, coverage=coverage).score(*tested)
        sets.append({"wanted": coverage, "got": found["set_coverage"], "size": found["set_size"]})
    for accuracy in ACCURACIES:
        rule = Abstention.find(*held, accuracy=accuracy)
        then, now = rule.score(*held), rule.score(*tested)
        answers.append({"wanted": accuracy, "threshold": rule.threshold, "promised": then, "got": now})
    areas = [float(risk_coverage_curve(torch.tensor(p), torch.tensor(y)).area) for p, y in (held, tested)]
    return {"sets": sets, "answers": answers, "area_promised": areas[0], "area": areas[1]}


def train_models(size: int, given: argparse.Namespace) -> list[tuple[pstn.PSTN, Tensor]]:
    """Models, each with the indices of the training digits that it has learned from."""
    x, y = load_split("mnist", "train")
    chosen = [choose_subset(y, torch.arange(len(x)), size, seed) for seed in range(given.models)]
    models = [pstn.nn.make_model("pstn", 1, (28, 28), 10, seed=seed) for seed in range(given.models)]
    settings: dict[str, Any] = (
        {"epochs": given.epochs or 6, "batch_size": 64} if size >= 1000 else {"epochs": given.epochs}
    )
    members, device = make_members(given.models, train=chosen), make_device(given.device)
    with Population(
        models, x, y, members, Recipe(**settings), device=device, compile=False, workers=False
    ) as population:
        population.fit()
        trained: list[Any] = population.models()
    return list(zip(trained, chosen, strict=True))


def scaled(log_probs: Array, temperature: float) -> Array:
    return (torch.tensor(log_probs) / temperature).log_softmax(-1).numpy()


def halve(count: int, model: int, split: int) -> npt.NDArray[np.int64]:
    return np.random.default_rng([model, split]).permutation(count).reshape(2, -1)


def check_promises(log_probs: Array, y: npt.NDArray[np.int64], model: int, splits: int) -> list[dict[str, Any]]:
    rows = []
    for split in range(splits):
        first, second = halve(len(y), model, split)
        for count in HELD:
            held = first[:count]
            temperature = find_temperature(torch.tensor(log_probs[held]), torch.tensor(y[held]))
            probs = np.exp(scaled(log_probs, temperature))
            found = promises((probs[held], y[held]), (probs[second], y[second]))
            rows.append({"split": split, "held out": count, "temperature": temperature, **found})
    return rows


def run(size: int, given: argparse.Namespace) -> list[dict[str, Any]]:
    device, rows = make_device(given.device), []
    x, y = load_split("mnist", "train")
    pool = [torch.cat(parts) for parts in zip(*(load_split("mnist", p) for p in ("validation", "test")), strict=True)]
    letters = draw_letters(given.letters)
    for number, (model, chosen) in enumerate(train_models(size, given)):
        model, labels = model.to(device).eval(), pool[1].numpy()
        digits, learned = (ask(model, part, device) for part in (pool[0], x[chosen[:1000]]))
        row: dict[str, Any] = {"size": size, "model": number}
        row["accuracy"] = float((digits["log_probs"].argmax(1) == labels).mean())
        row["promises"] = check_promises(digits["log_probs"], labels, number, given.splits)
        first, second = halve(len(labels), number, 0)
        temperature = row["promises"][len(HELD) - 1]["temperature"]

        def finish(of: dict[str, Array], temperature: float = temperature) -> dict[str, Array]:
            found = scaled(of["log_probs"], temperature)
            return of | {"log_probs": found, "entropy": entropy(torch.tensor(found)).numpy()}

        digits = finish(digits)
        parts = [{name: values[at] for name, values in digits.items()} for at in (first, second)]
        some = {name: values[:1000] for name, values in parts[0].items()}
        references = {
            "held out": (some, labels[first[:1000]]), "learned from": (learned, y[chosen[:1000]].numpy())
        }  # fmt: skip
        like, wrong = scores(parts[1], references), parts[1]["log_probs"].argmax(1) != labels[second]
        row["auroc"] = {"own mistakes": {name: auroc(value[~wrong], value[wrong]) for name, value in like.items()}}
        # How often the highest probability is above that which keeps 95% of the digits.
        row["shifted"], row["confident"] = {}, {}
        bound = np.quantile(like["1 - highest probability"], 0.95)
        held = np.exp(parts[0]["log_probs"]), labels[first]
        for kind, inputs in unlike(pool[0][second], letters, number).items():
            of = finish(ask(model, inputs, device))
            other = scores(of, references)
            row["auroc"][kind] = {name: auroc(like[name], other[name]) for name in like}
            row["confident"][kind] = float((other["1 - highest probability"] <= bound).mean())
            if kind in SHIFTED:
                row["shifted"][kind] = promises(held, (np.exp(of["log_probs"]), labels[second[:UNLIKE]]))
        rows.append(row)
        print(size, number, f"{row['accuracy']:.4f}", flush=True)
    return rows


def summarise(rows: list[dict[str, Any]]) -> None:
    """Print means over models, and means and ranges over splits."""
    kinds, names = list(rows[0]["auroc"]), list(rows[0]["auroc"]["own mistakes"])
    print(" " * 50, *(f"{kind[:12]:>12}" for kind in kinds), sep="  ")
    for name in names:
        means = [np.mean([row["auroc"][kind][name] for row in rows]) for kind in kinds]
        print(f"{name:50}", *(f"{value:12.3f}" for value in means), sep="  ")
    for row, count in itertools.product(rows, HELD):
        found = [one for one in row["promises"] if one["held out"] == count]
        print(f"model {row['model']}, {count} held out")
        for number, coverage in enumerate(COVERAGES):
            got, sizes = ([one["sets"][number][name] for one in found] for name in ("got", "size"))
            print(f"  sets for {coverage:g}: {np.mean(got):.4f} ({min(got):.4f} to {max(got):.4f})", end=", ")
            print(f"size {np.mean(sizes):.3f}")
        for number, accuracy in enumerate(ACCURACIES):
            got, promised = ([one["answers"][number][k] for one in found] for k in ("got", "promised"))
            values = [one["accuracy_answered"] for one in got if one["answered"]]
            shares = [np.mean([one["answered"] for one in side]) for side in (promised, got)]
            print(
                f"  answers for {accuracy:g}: {np.mean(values):.4f} ({min(values):.4f} to {max(values):.4f})", end=", "
            )
            print(f"share promised {shares[0]:.4f}, given {shares[1]:.4f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--models", type=int, default=2)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 2000])
    parser.add_argument("--epochs", type=int, help="for a quick try")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--letters", type=Path, default=Path("letters.npz"), help="where the letters are kept")
    given = parser.parse_args()
    watch = Stopwatch()
    results: dict[str, Any] = {"run": provenance(), "rows": []}
    for size in given.sizes:
        rows = run(size, given)
        summarise(rows)
        results["rows"] += rows
        results |= {"wall_s": watch.seconds(), "cpu_s": round(time.process_time(), 1), "load": os.getloadavg()[0]}
        rounded = json.loads(json.dumps(results), parse_float=lambda value: round(float(value), 5))
        given.out.write_text(json.dumps(rounded, indent=1) + "\n")


if __name__ == "__main__":
    main()
