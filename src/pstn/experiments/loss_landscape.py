"""The first figure: the loss of a fixed classifier over a transformation, and its average under the P-STN's noise.

The loss of a fixed classifier over one parameter of the transformation. The paper claims that the P-STN’s, which
averages over nearby transformations, is smoother and has fewer local minima. It gives a figure, no numbers; here they
are counted.

For four test images, the loss of the STN at a point, and the P-STN’s average around it: along the angle (rotated
images, learned noise; only the surroundings of the dip that the average fills most, as over all angles the two curves
cannot be told apart), and along a translation (upright images) under the noise with which training starts and under
the noise that it learned.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from pstn._checks import require_finite
from pstn.data import MNIST_MEAN, MNIST_STD
from pstn.distributions import Posterior
from pstn.experiments import ablations, runner
from pstn.experiments.mnist_subsets import BLACK
from pstn.experiments.rotated_mnist import CLASSIFIER, PSTN_GROUP, SIZE, SPENT, VAR_INIT, rotated, upright
from pstn.nn import SpatialTransformer
from pstn.report import FigureSpec, Metric, Result, Table, claim_order, figures, lines
from pstn.transforms import Similarity
from pstn.warping import warp

IMAGES = 20
# The noise of the shifts: that with which rotated MNIST starts, or that which the P-STN of Table 1 learned.
LEARNED = "translation, learned noise"
# Angles all the way round; shifts of half the image's width to either side and back.
_SHIFTS = torch.linspace(-1.0, 1.0, 121)
GRIDS = {"angle": torch.linspace(-math.pi, math.pi, 181), "translation": _SHIFTS, LEARNED: _SHIFTS}
# Where theta = (angle, scale, tx, ty) has what is varied.
PLACE = {"angle": 0, "translation": 2, LEARNED: 2}
# The average under the posterior is taken at this many of its quantiles, evenly spaced in probability.
QUANTILES = 100
# Shallower dips, in nats, do not count as minima: they may be rounding.
DEPTH = 0.01


def losses_along(classifier: nn.Module, x: Tensor, y: Tensor, theta: Tensor, fill: float = 0.0) -> Tensor:
    """The negative log-likelihood of each image under each of its transformations.

    Args:
        classifier: (N, 1, H, W) -> logits.
        x: (n, 1, H, W).
        y: (n,).
        theta: (n, T, 4), of `pstn.Similarity`.
        fill: what lies outside the images.

    Returns:
        (n, T).
    """
    rows = []
    for image, label, thetas in zip(x, y, theta, strict=True):
        grid = Similarity().grid(thetas[:, None], SIZE)  # (T, 1, H, W, 2)
        rows.append(-classifier(warp(image[None], grid, fill)[:, 0]).log_softmax(-1)[:, label])
    return torch.stack(rows)


def count_minima(loss: Sequence[float], depth: float = DEPTH, *, circular: bool = False) -> int:
    """How many local minima a curve has that are at least `depth` below the rises on either side, or below its end.

    Args:
        loss: along the curve.
        depth: of the shallowest minimum that counts.
        circular: whether its last point is its first: it is then cut at its highest point, so that no valley is cut.

    Example:
        >>> count_minima([1.0, 0.5, 0.8, 0.2, 0.9]), count_minima([0.0, 1.0, 0.995, 1.0])
        (2, 1)
    """
    if circular:
        top = loss.index(max(loss[:-1]))
        loss = [*loss[top:-1], *loss[:top], loss[top]]
    count, low, high, falling = 0, loss[0], loss[0], True
    for value in loss[1:]:
        low, high = min(low, value), max(high, value)
        if falling and value > low + depth:
            count, high, falling = count + 1, value, False
        elif not falling and value < high - depth:
            low, falling = value, True
    return count + falling


def _noise_scale(context: runner.RunContext, cell: Result, x: Tensor) -> Tensor:
    """The scale of the P-STN's noise for each image, (n,): learned, or that with which training starts."""
    if cell.data == "translation":
        return torch.full((len(x),), math.sqrt(math.log1p(math.exp(VAR_INIT))), device=x.device)
    group = PSTN_GROUP if cell.data == "angle" else SUBSET
    layer = runner.trained(context, group, cell.seed).get_submodule("layer").to(x.device)
    assert isinstance(layer, SpatialTransformer)
    posterior = layer.localize(x)
    assert isinstance(posterior, Posterior)
    return posterior.scale[:, 0 if cell.data == "angle" else PLACE[LEARNED]]


@torch.no_grad()
def measure(context: runner.RunContext, cell: Result) -> runner.Evaluated:
    """Count the minima of the loss over the grid, as it is (STN) or averaged under the noise (P-STN)."""
    read, fill = {"angle": rotated, "translation": upright, LEARNED: SUBSET.task}[cell.data], 0.0
    test = read(context).test.batch(range(4 if context.quick else IMAGES))
    if cell.data == LEARNED:
        classifier, fill = runner.trained(context, SUBSET, cell.seed).get_submodule("classifier").eval(), BLACK
    else:
        classifier = runner.trained(context, CLASSIFIER, cell.seed)
    classifier = classifier.to(context.device)
    grid = GRIDS[cell.data].to(context.device)
    noise, scale = torch.zeros(len(test), 1, device=context.device), torch.zeros(1)
    if cell.model == "P-STN":
        count = 10 if context.quick else QUANTILES
        u = (torch.arange(count, device=context.device) + 0.5) / count
        scale = _noise_scale(context, cell, test.x)
        noise = Posterior(torch.zeros_like(scale), scale.square()).quantile(u[:, None]).T.float()  # (n, S)
    moved = grid[None, :, None] + noise[:, None]  # (n, K, S)
    theta = Similarity().identity().to(context.device).expand(*moved.shape, 4).clone()
    theta[..., PLACE[cell.data]] = moved
    loss = losses_along(classifier, test.x, test.y, theta.flatten(1, 2), fill)
    loss = loss.unflatten(1, moved.shape[1:]).mean(-1)
    require_finite("the loss along the grid", loss, "the classifier diverged")
    counted = [count_minima(row, circular=cell.data == "angle") for row in loss.tolist()]
    metrics = {"minima": sum(counted) / len(counted), "roughness": float(loss.diff(dim=1).abs().sum(1).mean())}
    settings = {
        "classifier": runner.digest(classifier.state_dict()), "images": len(test), "grid": len(grid),
        "minimum_depth": DEPTH, "quantiles": noise.shape[1], "mean_scale": float(scale.mean()),
    }  # fmt: skip
    pixels = test.x[:, 0] * MNIST_STD + MNIST_MEAN if cell.data == LEARNED else test.x[:, 0]
    drawn = {"grid": runner.rounded(grid), "loss": runner.rounded(loss), "images": runner.as_pixels(pixels)}
    return metrics, drawn if cell.seed == 0 else {}, settings


_DEPARTURES = (
    "The paper's figure is a sketch: classifier, images and noise are our choice. The classifier and the noise of the "
    "angle are those of the rotated MNIST experiment, image by image; the noise of the shifts is the one with which "
    "that training starts, or, with the classifier, that of the P-STN of the ablations, trained on 100 images.",
    SPENT,
)
SUBSET = ablations.BASE
_LINES = [
    lines(metric, ("STN", "P-STN"), GRIDS)
    for metric in (
        Metric("minima", "local minima per image", digits=2),
        Metric("roughness", "ups and downs of the loss per image (nats)", digits=1),
    )
]

LOSS_LANDSCAPE = runner.Experiment(
    "loss-landscape", "Loss landscape", runner.description_of(__doc__),
    summary="The loss over angles and shifts for a fixed classifier, with and without the P-STN's noise",
    needs=("mnist",),
    groups=tuple(
        runner.Evaluation("loss-landscape", model, data, measure, departures=_DEPARTURES)
        for data in GRIDS for model in ("STN", "P-STN")
    ),
    tables=(Table.of("Loss landscape", *_LINES),),
    claims=tuple(claim for shown in _LINES for claim in claim_order(shown, "P-STN", "STN", paired=True)),
    figures=(FigureSpec("loss-landscape", runner.description_of(__doc__, 2), figures.draw_landscapes),),
)  # fmt: skip
