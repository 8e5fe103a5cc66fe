"""One function that makes a CNN, an STN or a P-STN for data of a given shape, and the paper's networks for MNIST."""

from __future__ import annotations

import copy
import threading
from collections.abc import Sequence
from typing import Any, Literal, cast, get_args

import torch
from torch import nn

from pstn._checks import require_choice
from pstn.defaults import ALPHA, PRETRAINED_SAMPLES, TEST_SAMPLES, TRAIN_SAMPLES, VAR_INIT
from pstn.distributions import Mixture, Point, PosteriorFamily, StudentT
from pstn.nn.backbones import BackboneClassifier, Learns, Reads, Trunk
from pstn.nn.classifier import PSTN, STN
from pstn.nn.layer import SpatialTransformer
from pstn.nn.metadata import Shareable
from pstn.nn.networks import (
    ConvClassifier,
    ConvLocalizer,
    InceptionClassifier,
    Masked,
    ResNetClassifier,
    SeriesClassifier,
    SeriesLocalizer,
    make_pose_localizer,
)
from pstn.transforms import Transform, make_transform
from pstn.warping import Fill

__all__ = ["make_model", "mnist_cnn", "mnist_pstn", "mnist_stn"]

ModelKind = Literal["cnn", "stn", "pstn"]
Networks = Literal["paper", "auto", "inception", "resnet"]

# Filters of the classifier, its hidden units, filters of the localizer: the three kinds have about as many parameters.
_PAPER = {"cnn": ((12, 24), 52, ()), "stn": ((10, 20), 50, (12, 18)), "pstn": ((10, 20), 50, (8, 14))}
_DEFAULT_TRANSFORM = {1: "cpab", 2: "similarity"}
_OF_SERIES = {"inception": InceptionClassifier, "resnet": ResNetClassifier}
# Larger images are averaged down to this size before a localizer that is chosen by size reads them.
_LOCALIZER_SIZE = (32, 32)
# A stage of convolution and pooling must leave at least this many pixels along each axis.
_SMALLEST_MAP = 3
# Initial weights are drawn from torch's global generator: one model at a time, if threads make several.
_SEEDED = threading.Lock()


def make_model(
    kind: ModelKind,
    channels: int,
    size: Sequence[int],
    classes: int,
    transform: str | Transform | None = None,
    *,
    networks: Networks = "paper",
    backbone: nn.Module | None = None,
    backbone_for: Reads = "classifier",
    learns: Learns = "none",
    width: int | None = None,
    fill: Fill | None = 0.0,
    samples: int | None = None,
    test_samples: int = TEST_SAMPLES,
    var_init: float = VAR_INIT,
    alpha: float = ALPHA,
    taught: bool = False,
    masked: bool = False,
    seed: int | None = None,
) -> Shareable:
    """An untrained classifier for images (B, C, H, W) or series (B, C, L).

    Args:
        kind: "cnn", the classifier alone; "stn" or "pstn", with a spatial transformer before it.
        channels: C.
        size: (H, W) or (L,).
        classes: K.
        transform: the family of transformations or its name; a similarity for images and CPAB for series when None.
        networks: "paper" for the networks of the paper's experiments; "auto" for networks whose depth, kernels and
            channels are chosen by the size of the input; "inception" and "resnet" for the classifiers of series
            `InceptionClassifier` and `ResNetClassifier`, with the localizer of "auto".
        backbone: a pretrained network (N, 3, H, W) -> (N, F) with an attribute `features`, such as
            `find_pretrained("efficientnet-lite0").make()`, instead of a small one.
        backbone_for: what reads by it: a linear classifier, the localizer, or both, which share it where it is frozen.
        learns: what of it learns: "none", "last" layers or "all".
        width: channels of the classifier's first convolution, for `networks="auto"`; chosen by the size when None.
        fill: what lies outside the input, one number or one per channel; None repeats the border.
        samples: S in training; 4 when None, and 1 for a pretrained classifier.
        test_samples: S in prediction.
        var_init: where the variance head starts, before softplus.
        alpha: of the posterior, a Student-t with 2 alpha degrees of freedom.
        taught: make it for teaching the pose, with a larger localizer, and for a P-STN with a posterior of four such
            modes, which start wide.
        masked: make it for series of unequal length, (B, C + 1, L), whose last channel is 1 up to their end and 0
            behind it: see `Masked`.
        seed: of the weights, which then leaves torch's own random state as it is; drawn from that state when None.

    Example:
        >>> model = make_model("pstn", channels=3, size=(64, 64), classes=5, networks="auto")
        >>> model(torch.rand(2, 3, 64, 64)).log_probs.shape
        torch.Size([2, 5])
    """
    given = dict(locals())
    require_choice("kind", kind, ("cnn", "stn", "pstn"))
    require_choice("networks", networks, ("paper", "auto", *_OF_SERIES))
    if seed is not None:
        with _SEEDED, torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed every GPU as well
            return make_model(**{**given, "seed": None})
    size, ndim = tuple(size), len(size)
    require_choice("backbone_for", backbone_for, get_args(Reads))
    if networks in _OF_SERIES and (ndim != 1 or width is not None):
        raise ValueError(f"networks must be 'paper' or 'auto' for images or with a width, got {networks!r}")
    if masked and (ndim != 1 or taught or fill is not None):
        raise ValueError(f"masked must be False but for series, taught=False and fill=None, got {size}")
    trunk = None
    if backbone is not None:
        if ndim != 2 or channels != 3:
            raise ValueError(f"backbone must be left out but for images in colour, got {channels} channel(s), {size}")
        trunk = Trunk(copy.deepcopy(backbone), learns)
        networks = "auto"
    reads = trunk if backbone_for != "classifier" else None
    if trunk is not None and backbone_for == "both" and learns != "none":
        reads = copy.deepcopy(trunk)
    paper_filters, paper_hidden, paper_localizer = _PAPER[kind]
    # The localizer comes before the classifier: a seed's weights depend on the order.
    if kind != "cnn":
        if transform is not None and not isinstance(transform, (str, Transform)):
            raise TypeError(f"transform must be a name or a pstn.Transform, got {transform!r}")
        family = make_transform(transform or _DEFAULT_TRANSFORM[ndim], ndim)
        if family.ndim != ndim:
            raise ValueError(f"transform must act on {ndim} axes here, got {family!r}, which acts on {family.ndim}")
        reduced = _LOCALIZER_SIZE if (networks == "auto" or taught) and ndim == 2 and min(size) > 48 else None
        localizer: nn.Module
        if reads is not None:
            localizer, reduced = reads, None
        elif taught:
            localizer = make_pose_localizer(channels, reduced or size)
        elif ndim == 1:
            own = () if networks == "paper" else ((16, 32, 16), _series_kernels(size[0]))
            localizer = SeriesLocalizer(channels, *own)
        elif networks == "paper":
            localizer = ConvLocalizer(channels, size, paper_localizer)
        else:
            kernel, stages = _stages(reduced or size)
            localizer = ConvLocalizer(channels, reduced or size, (8, 14, 20, 20)[:stages], kernel)
    classifier: Shareable
    if trunk is not None and (backbone_for != "localizer" or kind == "cnn"):
        classifier = BackboneClassifier(trunk, classes)
    elif ndim == 1 and networks == "paper":
        classifier = SeriesClassifier(channels, classes)
    elif networks in _OF_SERIES:
        classifier = _OF_SERIES[networks](channels, classes)
    elif ndim == 1:
        width = width or 32
        classifier = SeriesClassifier(channels, classes, (width, 2 * width, width), _series_kernels(size[0]))
    elif networks == "paper":
        classifier = ConvClassifier(channels, size, classes, paper_filters, paper_hidden)
    else:
        kernel, stages = _stages(size)
        width = width or (10 if stages > 1 else 24)
        filters = tuple(width * 2 ** min(stage, 3) for stage in range(stages))
        classifier = ConvClassifier(channels, size, classes, filters, hidden=5 * width, kernel=kernel)
    if masked:
        classifier = Masked(cast("SeriesClassifier | InceptionClassifier | ResNetClassifier", classifier))
    if kind == "cnn":
        return classifier
    posterior: PosteriorFamily = Point() if kind == "stn" else StudentT(alpha=alpha, var_init=var_init)
    if taught and kind == "pstn":
        # A narrow start, which the paper has, often stays at the even density over all poses.
        posterior = Mixture(4, StudentT(alpha=alpha, var_init=0.0))
    if masked:
        localizer = Masked(cast(SeriesLocalizer, localizer))
    layer = SpatialTransformer(
        family, localizer, None if masked else size, localizer_size=reduced, posterior=posterior,
        fill=0.0 if fill is None else fill, padding_mode="border" if fill is None else "zeros", masked=masked,
    )  # fmt: skip
    if kind == "stn":
        return STN(layer, classifier)
    usual = PRETRAINED_SAMPLES if isinstance(classifier, BackboneClassifier) else TRAIN_SAMPLES
    return PSTN(layer, classifier, usual if samples is None else samples, test_samples)


def _series_kernels(length: int) -> tuple[int, ...]:
    return tuple(min(kernel, length) for kernel in (8, 5, 3))


def _stages(size: Sequence[int]) -> tuple[int, int]:
    """The width of convolutions for images of this size, and how many stages of them leave a map large enough."""
    side, stages = min(size), 0
    kernel = 5 if side >= 16 else 3
    while (side := (side - kernel + 1) // 2) >= _SMALLEST_MAP:
        stages += 1
    return kernel, stages


def mnist_cnn() -> ConvClassifier:
    """The CNN baseline of the MNIST experiments: 28,086 parameters.

    Example:
        >>> sum(p.numel() for p in mnist_cnn().parameters())
        28086
    """
    return cast(ConvClassifier, make_model("cnn", 1, (28, 28), 10))


def mnist_stn(transform: Transform | None = None, *, fill: Fill = 0.0) -> STN:
    """The STN of the MNIST-subset experiments: 28,726 parameters with a similarity.

    Args:
        transform: the family; `Similarity()` when not given.
        fill: what lies outside the image: the background's value after normalisation.

    Example:
        >>> sum(p.numel() for p in mnist_stn().parameters())
        28726
    """
    return cast(STN, make_model("stn", 1, (28, 28), 10, transform, fill=fill))


def mnist_pstn(transform: Transform | None = None, *, fill: Fill = 0.0, var_init: float = -5.0) -> PSTN:
    """The P-STN of the MNIST-subset experiments: 26,662 parameters with a similarity.

    Args:
        transform: the family; `Similarity()` when not given.
        fill: what lies outside the image: the background's value after normalisation.
        var_init: where the variance head starts, before softplus.

    Example:
        >>> sum(p.numel() for p in mnist_pstn().parameters())
        26662
    """
    paper: dict[str, Any] = {"samples": 1, "test_samples": 10, "alpha": 1.0}
    return cast(PSTN, make_model("pstn", 1, (28, 28), 10, transform, fill=fill, var_init=var_init, **paper))
