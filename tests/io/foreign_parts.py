"""Parts of models as users write them, found as "foreign_parts:NAME"."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

import pstn


class Shear(pstn.MatrixTransform):
    """theta = (shear,), which says so only by its class."""

    def __init__(self, factor=1.0):
        super().__init__()
        self.factor = factor
        self.ndim, self.dim, self.names = 2, 1, ("shear",)

    def initial(self):
        return torch.zeros(1)

    def inverse(self, theta, *, aspect=None):
        return -theta

    def _matrix(self, theta, aspect):
        shear, one, zero = self.factor * theta[..., 0], torch.ones_like(theta[..., 0]), torch.zeros_like(theta[..., 0])
        rows = [torch.stack([one, shear, zero], -1), torch.stack([zero, one, zero], -1)]
        return torch.stack(rows, -2)


@dataclass(frozen=True)
class Narrow(pstn.PosteriorFamily):
    """A normal posterior with one scale for all."""

    scale: float = 0.1
    prior: pstn.Prior | None = None

    def starts(self, transform):
        return {"mean": transform.initial()}

    def build(self, transform, numbers):
        return pstn.NormalPosterior(numbers["mean"], torch.full_like(numbers["mean"], self.scale))


class Reader(nn.Module):
    """A classifier of somebody's own."""

    def __init__(self, width, widths=(3, 4), *, classes=3):
        super().__init__()
        self.width, self.widths, self.classes = width, widths, classes
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(width, widths[0]), nn.Linear(widths[0], classes))

    def forward(self, x):
        return self.layers(x)


class Forgetful(nn.Module):
    """It does not keep its argument."""

    def __init__(self, width):
        super().__init__()
        self.layer = nn.Linear(width, 3)


NOT_A_CLASS, WEIGHT = print, float(torch.ones(3).sum())


def make_network(classes=3, *, widths=(4,)):
    """A network that no class describes."""
    layers = [nn.Conv2d(1, widths[0], 3), nn.BatchNorm2d(widths[0]), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(4 * widths[0], classes))


def make_another(path):
    """It makes no network."""
    Path(path).write_text("ran")
