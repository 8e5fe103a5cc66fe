"""Draws the pictures of docs/cpab.md: `python docs/make_cpab_pictures.py`."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import grid_sample

from pstn import CPAB, SmoothPrior

IMAGES = Path(__file__).parent / "images"
INK, WARM, COOL, PALE = "#1b2a41", "#d1495b", "#00798c", "#c9d3dc"


def style() -> None:
    """One look for all four."""
    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": INK})


def save(figure: plt.Figure, name: str) -> None:
    """Write a picture and say so."""
    IMAGES.mkdir(exist_ok=True)
    figure.savefig(IMAGES / name, dpi=130, bbox_inches="tight", facecolor="white")
    plt.close(figure)
    print(IMAGES / name)


def field(seed: int = 3, scale: float = 1.1) -> tuple[CPAB, Tensor]:
    """A family of the plane, and a smooth theta."""
    transform = CPAB(tess=(3, 3))
    prior = SmoothPrior(transform, scale=scale, length=0.25)
    return transform, prior.sample(1, generator=torch.Generator().manual_seed(seed))[0]


def tessellation(axes: plt.Axes, cells: int = 3) -> None:
    """The triangles."""
    at = np.linspace(-1, 1, cells + 1)
    for a in at:
        axes.plot([a, a], [-1, 1], color=PALE, lw=0.8, zorder=0)
        axes.plot([-1, 1], [a, a], color=PALE, lw=0.8, zorder=0)
    for x in range(cells):
        for y in range(cells):
            axes.plot([at[x], at[x + 1]], [at[y], at[y + 1]], color=PALE, lw=0.8, zorder=0)
            axes.plot([at[x], at[x + 1]], [at[y + 1], at[y]], color=PALE, lw=0.8, zorder=0)
    axes.set(aspect="equal", xlim=(-1.04, 1.04), ylim=(1.04, -1.04), xticks=[-1, 0, 1], yticks=[-1, 0, 1])


def velocity_picture() -> None:
    """The velocity field, and paths through it."""
    transform, theta = field()
    figure, axes = plt.subplots(figsize=(4.2, 4.2))
    tessellation(axes)
    side = torch.linspace(-0.94, 0.94, 15)
    points = torch.stack(torch.meshgrid(side, side, indexing="xy"), dim=-1).flatten(0, 1)
    v = transform.velocity(theta, points)
    axes.quiver(*points.T, *v.T, angles="xy", scale_units="xy", scale=2.5, color=COOL, width=0.004)
    starts = torch.stack(torch.meshgrid(*[torch.linspace(-0.7, 0.7, 4)] * 2, indexing="xy"), dim=-1).flatten(0, 1)
    path = transform.flow(theta, starts, t=torch.linspace(0, 1, 50))
    axes.plot(path[..., 0], path[..., 1], color=WARM, lw=1.6)
    axes.plot(*path[-1].T, "o", color=WARM, ms=3.5)
    axes.set_title("velocity, and where it carries points in unit time", color=INK)
    save(figure, "cpab-velocity.png")


def grid_picture() -> None:
    """A grid of lines, and what the map makes of it."""
    transform, theta = field()
    figure, panels = plt.subplots(1, 2, figsize=(7.6, 3.9))
    fine = torch.linspace(-1, 1, 400)
    for axes, parameters, title in zip(panels, (theta * 0, theta), ("before", "after"), strict=True):
        tessellation(axes)
        for at in torch.linspace(-1, 1, 13):
            line = torch.stack([fine, at.expand(400)], dim=-1)
            axes.plot(*transform.apply(parameters, line).T, color=COOL, lw=1)
            axes.plot(*transform.apply(parameters, line.flip(-1)).T, color=WARM, lw=1)
        axes.set_title(title, color=INK)
    save(figure, "cpab-grid.png")


def series_picture() -> None:
    """A series of two channels under three warps, and the maps."""
    transform = CPAB(tess=10)
    thetas = SmoothPrior(transform, scale=0.7, length=0.15).sample(3, generator=torch.Generator().manual_seed(4))
    length = 300
    t = torch.linspace(0, 1, length)
    bump = torch.exp(-((t - 0.3) ** 2) / 0.004) - 0.7 * torch.exp(-((t - 0.62) ** 2) / 0.008)
    series = torch.stack([bump, 0.6 * torch.sin(14 * t) * torch.exp(-((t - 0.5) ** 2) / 0.1)])
    grid = transform.grid(thetas, size=length)[..., 0]
    flat = torch.stack([grid, torch.zeros_like(grid)], dim=-1)[:, None]
    warped = grid_sample(series[None, :, None].expand(3, -1, -1, -1), flat, align_corners=False, padding_mode="border")
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.6, 3.3), width_ratios=(1, 1.9))
    x = torch.linspace(-1, 1, length)
    left.plot(x, x, color=PALE, lw=1.2)
    for curve, colour in zip(grid, (WARM, COOL, "#edae49"), strict=True):
        left.plot(x, curve, color=colour)
    left.set(xlabel="output place", ylabel="input place", aspect="equal", title="three maps: increasing, ends fixed")
    for channel, lift in ((0, 0.0), (1, -2.2)):
        right.plot(t, series[channel] + lift, color=INK, lw=1.8, label="as it was" if channel == 0 else None)
        for curve, colour in zip(warped[:, channel, 0], (WARM, COOL, "#edae49"), strict=True):
            right.plot(t, curve + lift, color=colour, lw=1.1, alpha=0.9)
    right.set(yticks=[], xlabel="time", title="two channels under one warp each")
    right.legend(frameon=False, loc="center right")
    save(figure, "cpab-series.png")


def digit() -> Tensor:
    """A hand-drawn five, (1, 1, 28, 28), so that the picture needs no data."""
    down, turn = np.linspace(0, 1, 60), np.linspace(-1.9, 2.5, 200)
    stroke = np.concatenate(
        [
            np.stack([0.42 - 0.75 * down, -0.68 + 0.02 * down], 1),
            np.stack([-0.33 - 0.05 * down, -0.66 + 0.55 * down], 1),
            np.stack([-0.02 + 0.42 * np.cos(turn), 0.25 + 0.43 * np.sin(turn)], 1),
        ]
    )
    axis = (2 * np.arange(28) + 1) / 28 - 1
    x, y = np.meshgrid(axis, axis)
    distance = np.min((x[..., None] - stroke[:, 0]) ** 2 + (y[..., None] - stroke[:, 1]) ** 2, axis=-1)
    return torch.from_numpy(np.clip(1.5 * np.exp(-distance / 0.012), 0, 1)).float()[None, None]


def digit_picture() -> None:
    """A digit, and four warps of it."""
    transform = CPAB(tess=(3, 3))
    thetas = SmoothPrior(transform, scale=0.5, length=0.3).sample(4, generator=torch.Generator().manual_seed(8))
    image = digit()
    warped = grid_sample(image.expand(4, -1, -1, -1), transform.grid(thetas, (28, 28)), align_corners=False)
    figure, panels = plt.subplots(1, 5, figsize=(8.6, 2.0))
    titles = ["as it was", *[f"warp {k + 1}" for k in range(4)]]
    for axes, picture, title in zip(panels, torch.cat([image, warped])[:, 0], titles, strict=True):
        axes.imshow(picture, cmap="gray_r", vmin=0, vmax=1)
        axes.set_title(title, color=INK)
        axes.set(xticks=[], yticks=[])
        for spine in axes.spines.values():
            spine.set(visible=True, color=PALE)
    save(figure, "cpab-digit.png")


if __name__ == "__main__":
    style()
    velocity_picture()
    grid_picture()
    series_picture()
    digit_picture()
