"""The picture at the top of the README: `python docs/make_first_picture.py` (minutes on a CPU, seconds on a GPU).

A classifier learns from the upright digits that ship with the package. A layer in front of it is taught to turn digits
back, as on docs/teaching.md. Both read the same test digit, turned.
"""

from __future__ import annotations

import math

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch
from torch import Tensor

import pstn
from make_guide_pictures import INK, save
from pstn.data import RandomRotation, generate, load
from pstn.training import one_cycle

RIGHT, WRONG, SAMPLES = "#1a7f5a", "#c1373f", 6
DIGIT, ANGLE = 4, math.radians(120)


def train(device: torch.device) -> tuple[torch.nn.Module, pstn.PSTN, pstn.data.Split]:
    """The classifier, the same behind a taught layer, and the test digits."""
    torch.manual_seed(0)
    digits = load("digits", normalise=False)
    classifier = pstn.fit(pstn.nn.mnist_cnn().to(device), digits.train, epochs=20)
    modes = pstn.Mixture(4, pstn.StudentT(alpha=2.0, var_init=0.0))
    localizer = pstn.nn.PoseLocalizer(1, (28, 28), filters=(16, 32, 64), hidden=128)
    layer = pstn.SpatialTransformer(pstn.Rotation(), localizer, (28, 28), posterior=modes)
    model = pstn.PSTN(layer, classifier).to(device)
    model = pstn.fit(
        model, digits.train.x, teach=RandomRotation(math.pi), epochs=40, batch_size=64, lr=2e-3, lr_schedule=one_cycle
    )  # fmt: skip
    return classifier.cpu().eval(), model.cpu().eval(), digits.test


def image(axes: Axes, pixels: Tensor, frame: str, width: float = 1.0) -> None:
    """Dark ink on white, framed."""
    axes.imshow(1 - pixels, cmap="gray", vmin=0, vmax=1)
    axes.set(xticks=(), yticks=())
    for spine in axes.spines.values():
        spine.set(color=frame, linewidth=width)


def says(figure: Figure, y: float, probs: Tensor) -> None:
    """The answer and its probability, right or wrong."""
    answer = int(probs.argmax())
    colour = RIGHT if answer == DIGIT else WRONG
    figure.text(0.882, y, str(answer), color=colour, fontsize=40, weight="bold", ha="center", va="center")
    word = "right" if answer == DIGIT else "wrong"
    sure = "> 99%" if probs[answer] > 0.99 else f"{probs[answer]:.0%}"
    figure.text(0.912, y, f"{word},\n{sure} sure", color=colour, fontsize=10, va="center")


def main() -> None:
    """Train and draw."""
    classifier, model, test = train(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    turned = generate(test, RandomRotation(math.pi), seed=0)
    print("classifier alone:", pstn.evaluate(classifier, turned), "taught:", pstn.evaluate(model, turned), sep="\n")
    upright = test.x[test.y == DIGIT][0][None]
    x = pstn.warp(upright, pstn.Rotation().grid(torch.tensor([[ANGLE]]), (28, 28)))
    with torch.no_grad():
        alone = classifier(x).softmax(-1)[0]
        p = model(x, samples=SAMPLES, generator=torch.Generator().manual_seed(0))
        seen = model.layer.warp(x, p.theta)[:, 0, 0]

    figure = Figure(figsize=(9.6, 2.8))
    for at, text in ((0.097, "the input"), (0.605, "what the classifier sees"), (0.925, "what it says")):
        figure.text(at, 0.95, text, color="#5b6b7d", fontsize=11, ha="center", va="center")
    image(figure.add_axes((0.008, 0.145, 0.178, 0.61)), x[0, 0], INK, 1.4)
    rows = ((0.68, "a CNN", x[0]), (0.22, "the same CNN\nbehind a P-STN", seen))
    for y, name, panels in rows:
        figure.text(0.29, y, name, color=INK, fontsize=11.5, weight="bold", ha="center", va="center")
        ends = (0.193, 0.45), (0.218, 0.45 + 0.55 * (y - 0.45))
        style = {"arrowstyle": "-|>", "mutation_scale": 12, "color": INK}
        figure.add_artist(FancyArrowPatch(*ends, transform=figure.transFigure, **style))
        for column, pixels in enumerate(panels):
            image(figure.add_axes((0.375 + 0.0785 * column, y - 0.13, 0.0755, 0.26)), pixels, "#8a97a6")
    says(figure, rows[0][0], alone)
    says(figure, rows[1][0], p.probs[0])
    save(figure, "turned-digit.png")


if __name__ == "__main__":
    main()
