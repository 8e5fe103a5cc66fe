"""Put a spatial transformer in front of an existing classifier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

from torch import Tensor, nn

from pstn._checks import require_bool, require_positive_int, require_size
from pstn.defaults import ALPHA, TEST_SAMPLES, TRAIN_SAMPLES
from pstn.distributions import Mixture, StudentT
from pstn.nn.classifier import PSTN, require_classifier
from pstn.nn.layer import SpatialTransformer
from pstn.nn.networks import ConvLocalizer, make_pose_localizer
from pstn.transforms import Transform, make_transform

__all__ = ["Frozen", "wrap"]

# How finely the default localizer reads its input, by the number of spatial axes.
_LOCALIZER_SIZE = {1: (64,), 2: (32, 32), 3: (16, 16, 16)}


@final
class Frozen(nn.Module):
    """A module that is used as it is: always in evaluation mode, its parameters without gradient.

    Gradients still pass through it to its input, which is how a localizer in front of it learns.

    Args:
        module: the module to freeze; its parameters are marked in place.

    Example:
        >>> frozen = Frozen(nn.Dropout(0.5)).train()
        >>> frozen.module.training
        False
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module.requires_grad_(False).eval()

    def forward(self, x: Tensor) -> Any:
        """What the module returns."""
        return self.module(x)

    def train(self, mode: bool = True) -> Frozen:
        """Set the mode of this wrapper; the module inside stays in evaluation mode."""
        super().train(mode)
        self.module.eval()
        return self


def wrap(
    classifier: nn.Module,
    transform: str | Transform = "similarity",
    in_channels: int = 3,
    freeze: bool = True,
    *,
    size: int | Sequence[int] | None = None,
    ndim: int = 2,
    localizer: nn.Module | None = None,
    localizer_size: int | Sequence[int] | None = None,
    train_samples: int = TRAIN_SAMPLES,
    test_samples: int = TEST_SAMPLES,
    chunk_size: int | None = None,
    taught: bool = False,
    **layer_options: Any,
) -> PSTN:
    """Put a probabilistic spatial transformer in front of a classifier.

    At the start it looks around the input as it is, with a spread set by `var_init` ("translation" starts at a
    centred crop). Train it with `pstn.elbo_loss` on labelled data that are
    rotated, shifted or scaled as in use; only the localizer learns when the classifier is frozen.

    Exports to ONNX with a dynamic batch; not with a dynamic image size, nor for volumes, as averaging down to
    `localizer_size` has no such operator there.

    Args:
        classifier: any module (N, C, *size) -> logits (N, K), without a softmax at its end.
        transform: a family, or its name: "rotation", "translation", "crop", "similarity", "affine", "cpab", …
        in_channels: C, which the default localizer needs to know.
        freeze: keep the classifier as it is: evaluation mode, no gradients for its parameters (marked in place;
            `model.requires_grad_(True)` would undo it).
        size: spatial size that the classifier takes; that of the input when None.
        ndim: 1 for series, 2 for images, 3 for volumes, where `transform` is a name.
        localizer: a module of your own (B, C, *in) -> (B, F); a small CNN when not given.
        localizer_size: spatial size at which the localizer reads the input; 32² for images, 64 for series and 16³ for
            volumes with the default localizer, else the input as it is.
        train_samples: S in training mode.
        test_samples: S in evaluation mode.
        chunk_size: how many samples to warp and classify at a time.
        taught: make it for teaching the pose, `pstn.fit(model, aligned, teach=...)`: with a larger localizer, and a
            posterior of four modes, which start wide.
        **layer_options: anything else that `SpatialTransformer` takes, e.g. fill, var_init, sampling.

    Example:
        >>> backbone = nn.Sequential(nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))
        >>> model = pstn.wrap(backbone, transform="similarity", in_channels=3)
        >>> model.eval()(torch.rand(2, 3, 64, 64)).log_probs.shape
        torch.Size([2, 5])
    """
    require_classifier(classifier)
    require_bool("freeze", freeze)
    require_bool("taught", taught)
    family = make_transform(transform, ndim)
    require_positive_int("in_channels", in_channels)
    if localizer is None:
        reading = _LOCALIZER_SIZE[family.ndim] if localizer_size is None else localizer_size
        localizer_size = require_size("localizer_size", reading, family.ndim)
        if taught:
            localizer = make_pose_localizer(in_channels, localizer_size)
        else:
            kernel = 5 if family.ndim < 3 else 3
            localizer = ConvLocalizer(in_channels, localizer_size, filters=(16, 32), kernel=kernel)
    if taught:
        layer_options = {"posterior": Mixture(4, StudentT(alpha=ALPHA, var_init=0.0)), **layer_options}
    layer = SpatialTransformer(family, localizer, size, localizer_size=localizer_size, **layer_options)
    head = Frozen(classifier) if freeze else classifier
    return PSTN(layer, head, train_samples, test_samples, chunk_size=chunk_size)
