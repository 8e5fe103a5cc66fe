"""The pictures of the guide, drawn afresh with `python docs/make_guide_pictures.py`."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from torch import Tensor

import pstn
from pstn.data import load_digits
from pstn.files import write_atomically

IMAGES = Path(__file__).parent / "images"
INK, WARM, COOL, GOLD, PALE = "#1b2a41", "#d1495b", "#00798c", "#edae49", "#c9d3dc"


def save(figure: Figure, name: str) -> None:
    """Write a picture and say so."""
    with write_atomically(IMAGES / name) as draft:
        figure.savefig(draft, dpi=130, facecolor="white", format="png")
    print(IMAGES / name)


def show(axes: Axes, image: Tensor) -> None:
    """A digit over the whole of [-1, 1], with y downwards, as coordinates are."""
    axes.imshow(image, cmap="gray", extent=(-1, 1, 1, -1), vmin=0, vmax=1)


def outline(axes: Axes, corners: Tensor, colour: str, width: float) -> None:
    """A closed box."""
    closed = torch.cat([corners, corners[:1]])
    axes.plot(closed[:, 0], closed[:, 1], color=colour, lw=width)


def coordinates_picture(digit: Tensor) -> None:
    """What a grid means: where the output reads the input."""
    family = pstn.Similarity()
    theta = torch.tensor([0.6, 0.75, 0.0, 0.0])
    digit = pstn.warp(digit[None, None], pstn.Rotation().grid(torch.tensor([[-0.6]]), (28, 28)))[0, 0]
    figure = Figure(figsize=(8.4, 4.1), layout="constrained")
    left, right = figure.subplots(1, 2)
    show(left, digit)
    corners = family.corners(theta)
    outline(left, corners, WARM, 2.2)
    points = family.grid(theta, (7, 7)).reshape(-1, 2)
    left.plot(points[:, 0], points[:, 1], "o", color=WARM, ms=3)
    for corner, name in zip(corners, "abcd", strict=True):
        left.annotate(
            name, corner.tolist(), color=GOLD, fontsize=13, weight="bold", xytext=(4, 4), textcoords="offset points"
        )
    left.set(xlim=(-1.15, 1.15), ylim=(1.15, -1.15), xlabel="x", ylabel="y")
    left.set_title("the input, and where theta = (0.6, 0.75, 0, 0) looks", color=INK, fontsize=10)
    show(right, pstn.warp(digit[None, None], family.grid(theta[None], (56, 56)))[0, 0])
    outline(right, family.corners(family.identity()), WARM, 4.0)
    for corner, name, shift in zip(
        family.corners(family.identity()), "abcd", ((6, -16), (-16, -16), (-16, 8), (6, 8)), strict=True
    ):
        right.annotate(
            name, corner.tolist(), color=GOLD, fontsize=13, weight="bold", xytext=shift, textcoords="offset points"
        )
    right.set_title("the output: what was in the box, upright and larger", color=INK, fontsize=10)
    for axes in (left, right):
        axes.set(xticks=(-1, 0, 1), yticks=(-1, 0, 1))
        axes.set_facecolor("0.9")
    save(figure, "coordinates.png")


def data_flow_picture(digit: Tensor) -> None:
    """The way of an input through a P-STN, from left to right; the terms of the loss below."""
    figure = Figure(figsize=(10.4, 3.5))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, 104), ylim=(3.5, 38.5))
    axes.axis("off")

    def box(x: float, y: float, width: float, text: str, *, learned: bool = False) -> None:
        face, edge = ("#fdeee2", "#d9691e") if learned else ("white", INK)
        style = "round,pad=0,rounding_size=0.9"
        axes.add_patch(FancyBboxPatch((x, y - 2.6), width, 5.2, boxstyle=style, fc=face, ec=edge, lw=1.4))
        axes.text(x + width / 2, y, text, ha="center", va="center", color=INK, fontsize=10.5)

    def note(x: float, y: float, text: str) -> None:
        axes.text(x, y, text, ha="center", va="center", color="#5b6b7d", fontsize=9.5)

    def arrow(*path: tuple[float, float]) -> None:
        for start, end in pairwise(path[:-1]):
            axes.plot(*zip(start, end, strict=True), color=INK, lw=1.3, solid_capstyle="round")
        head = FancyArrowPatch(*path[-2:], arrowstyle="-|>", mutation_scale=11, color=INK, lw=1.3, shrinkA=0, shrinkB=0)
        axes.add_patch(head)

    def picture(image: Tensor, x: float, y: float, side: float) -> None:
        inset = axes.inset_axes((x, y, side, side), transform=axes.transData)
        inset.imshow(1 - image, cmap="gray", vmin=0, vmax=1)
        inset.set(xticks=(), yticks=())

    turn, middle = pstn.Rotation(), 24.0
    angles = torch.tensor([[1.5], [1.3], [1.1]])
    x = pstn.warp(digit[None, None], turn.grid(torch.tensor([[-1.1]]), (28, 28)))
    warped = pstn.warp(x.expand(3, -1, -1, -1), turn.grid(angles, (28, 28)))[:, 0]

    picture(x[0, 0], 1.5, middle - 4.5, 9)
    note(6, middle - 6.6, "x: (B, C, *size)")
    box(14.5, middle, 10, "localizer", learned=True)
    curve = axes.inset_axes((28.5, middle - 3.4, 10, 7), transform=axes.transData)
    at = torch.linspace(-3, 3, 200)
    curve.fill_between(at, torch.distributions.StudentT(4.0, 0.0, 0.7).log_prob(at).exp(), color=WARM, alpha=0.35, lw=0)
    curve.plot(at, torch.distributions.StudentT(4.0, 0.0, 0.7).log_prob(at).exp(), color=WARM, lw=1.6)
    curve.axis("off")
    note(33.5, middle - 5.2, "posterior q(theta)")
    box(43.5, middle, 9.5, "theta")
    note(48.25, middle - 4.6, "(S, B, D)")
    box(56.5, middle, 7.5, "grid")
    box(67.5, middle, 7.5, "warp")
    for i, image in enumerate(warped):
        picture(image, 78 + 1.0 * i, middle - 4.6 + 1.1 * (2 - i) - 0.3, 6.4)
    note(82.2, middle + 6.4, "(S, B, C, *size)")
    box(89, middle, 13.5, "classifier", learned=True)
    arrow((10.8, middle), (14.3, middle))
    arrow((24.7, middle), (28.5, middle))
    arrow((38.5, middle), (43.3, middle))
    note(40.4, middle + 1.4, "S times")
    arrow((53.2, middle), (56.3, middle))
    arrow((64.2, middle), (67.3, middle))
    arrow((75.2, middle), (77.8, middle))
    arrow((86.6, middle), (88.8, middle))
    arrow((6, middle + 4.9), (6, 35), (71.25, 35), (71.25, middle + 2.8))
    note(38, 36.4, "the same input, or a larger source, read S times without copying it")
    box(89, 10, 13.5, "mean: p(y | x)")
    arrow((95.75, middle - 2.8), (95.75, 12.8))
    note(99.6, 17.3, "(S, B, K)")
    box(26.5, 10, 14, "KL to the prior")
    arrow((33.5, middle - 6.4), (33.5, 12.8))
    box(56, 10, 14, "negative ELBO")
    arrow((40.7, 10), (55.8, 10))
    note(48.2, 11.5, "times w")
    arrow((92, middle - 2.8), (92, 15.6), (63, 15.6), (63, 12.8))
    note(76.5, 16.9, "mean of log p(y | sample)")
    note(63, 5.6, "training")
    note(95.75, 5.6, "prediction")
    save(figure, "data-flow.png")


def posterior_picture() -> None:
    """The distribution of one parameter for three betas, and the KL that holds beta up."""
    figure = Figure(figsize=(8.4, 3.3), layout="constrained")
    left, right = figure.subplots(1, 2)
    at = torch.linspace(-2.5, 2.5, 600)
    for beta, colour in ((0.05, WARM), (0.3, GOLD), (1.0, COOL)):
        scale = beta**0.5
        density = torch.distributions.StudentT(2.0, 0.0, scale).log_prob(at).exp()
        left.plot(at, density, color=colour, lw=2, label=f"β = {beta}" + (", the prior's" if beta == 1 else ""))
    left.set(xlabel="theta − μ(x)", ylabel="density", title="q(theta): Student-t, scale √β, heavy tails")
    left.legend(frameon=False)
    betas = torch.logspace(-3, 1, 200)
    kl = pstn.Posterior(torch.zeros(200, 1), betas[:, None]).kl()[:, 0]
    right.loglog(betas, kl.clamp_min(1e-4), color=INK, lw=2)
    right.axvline(1, color=PALE, lw=1)
    right.set(xlabel="β", ylim=(1e-2, 1e3), title="the KL to the prior: a wall at β = 0, none at β = 1")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.title.set_fontsize(10)
    save(figure, "posterior.png")


def families_picture(digit: Tensor) -> None:
    """One digit under three samples of each family."""
    torch.manual_seed(5)
    families: dict[str, pstn.Transform] = {
        "Rotation": pstn.Rotation(), "Crop": pstn.Crop(), "Similarity": pstn.Similarity(), "Affine": pstn.Affine(),
        "CPAB": pstn.CPAB(tess=(3, 3)),
    }  # fmt: skip
    figure = Figure(figsize=(8.4, 5.2), layout="constrained")
    panels = figure.subplots(3, 5)
    for column, (name, family) in enumerate(families.items()):
        if isinstance(family, pstn.CPAB):
            thetas = pstn.SmoothPrior(family, scale=0.6, length=0.3).sample(3)
        elif isinstance(family, pstn.Rotation):
            thetas = torch.tensor([[-0.7], [0.4], [1.0]])
        else:
            thetas = family.identity() + 0.2 * torch.randn(3, family.dim)
        warped = pstn.warp(digit[None, None].expand(3, -1, -1, -1), family.grid(thetas, (28, 28)))
        for row, image in enumerate(warped[:, 0]):
            show(panels[row, column], image)
            panels[row, column].set(xticks=(), yticks=())
        panels[0, column].set_title(f"{name}, D = {family.dim}", color=INK, fontsize=10)
    save(figure, "families.png")


def series_pictures() -> None:
    """Days of electricity demand: aligned, and classified by a P-STN."""
    parts = pstn.data.load("ItalyPowerDemand", validation=0.0)
    assert parts.test is not None
    x, test_x = (part.x[:, 0].numpy() for part in (parts.train, parts.test))
    y, test_y = ([part.classes[k] for k in part.y.tolist()] for part in (parts.train, parts.test))
    aligner = pstn.SeriesAligner(random_state=0).fit(x, y)
    save(pstn.plot(aligner, test_x[:40], test_y[:40]), "aligning.png")
    classifier = pstn.PSTNClassifier(random_state=0, epochs=60).fit(x, y)
    save(pstn.plot(classifier, test_x[0]), "prediction.png")


if __name__ == "__main__":
    series_pictures()
    digits = load_digits("test")
    five = digits.x[digits.y == 5][8, 0]
    data_flow_picture(five)
    coordinates_picture(five)
    posterior_picture()
    families_picture(five)
