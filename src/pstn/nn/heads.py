"""The heads of a localizer: from features to the parameters of a distribution, starting at a chosen point."""

from __future__ import annotations

import warnings
from typing import final

import torch
from torch import Tensor, nn

from pstn._checks import require_positive_int

__all__ = ["Head", "feature_width"]


@final
class Head(nn.Module):
    """A linear layer, or two with a ReLU in between, that returns `start` whatever its input, until it is trained.

    Args:
        features: width F of its input; None if it is to be found at the first forward pass.
        start: (D,), where it starts.
        hidden: width of a hidden layer; None for a single linear layer.
    """

    def __init__(self, features: int | None, start: Tensor, hidden: int | None = None) -> None:
        super().__init__()
        if hidden is not None and features is None:
            raise ValueError("hidden needs the width of the localizer's output: pass features=F")
        if features is None:
            self.last: nn.Linear = _LazyStart(start)
            return
        if hidden is not None:
            self.first = nn.Linear(features, require_positive_int("hidden", hidden))
            features = hidden
        # skip_init: a fresh nn.Linear would draw random numbers only to have them overwritten.
        self.last = nn.utils.skip_init(nn.Linear, features, start.shape[0], device=start.device)
        _start_at(self.last, start)

    @property
    def width(self) -> int | None:
        """F, or None while it is unknown."""
        known = self.first.in_features if hasattr(self, "first") else self.last.in_features
        return known or None

    def forward(self, features: Tensor) -> Tensor:
        """(B, F) -> (B, D) in float32 at least: autocast would leave theta with eight bits."""
        features = features.to(self.last.weight.dtype)
        # On "meta", where shapes alone are worked out, there is no autocast to ask about.
        if features.device.type != "meta" and torch.is_autocast_enabled(features.device.type):
            with torch.autocast(features.device.type, enabled=False):
                out = self._read(features)
        else:
            out = self._read(features)
        return out.to(torch.promote_types(out.dtype, torch.float32))

    def _read(self, features: Tensor) -> Tensor:
        if hasattr(self, "first"):
            features = torch.relu(self.first(features))
        return self.last(features)


class _LazyStart(nn.LazyLinear):
    """A linear layer of yet unknown width that starts with weight 0 and a given bias, drawing no random numbers.

    It turns into a plain `nn.Linear` at the first forward pass. Optimisers may be made before that; counting
    parameters, compiling, exporting and DDP have to wait for it.
    """

    def __init__(self, start: Tensor) -> None:
        with warnings.catch_warnings():
            # torch's remark on every lazy module; what that means here is said above.
            warnings.filterwarnings("ignore", message="Lazy modules are a new feature")
            super().__init__(start.shape[0])
        self.start = start

    def reset_parameters(self) -> None:
        """Start at weight 0 and the given bias, once the width is known."""
        if not self.has_uninitialized_params() and self.in_features != 0:
            _start_at(self, self.start)


def _start_at(linear: nn.Linear, start: Tensor) -> None:
    with torch.no_grad():
        linear.weight.zero_()
        linear.bias.copy_(start)


_SHAPE_KEEPING = (nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.LeakyReLU, nn.ELU, nn.Dropout, nn.Identity, nn.LayerNorm)


def feature_width(localizer: nn.Module) -> int | None:
    """The width of a localizer's output, where that can be told without running it."""
    known = getattr(localizer, "features", None)
    if isinstance(known, int) and not isinstance(known, bool):
        return known
    if isinstance(localizer, nn.Linear) and not isinstance(localizer, nn.LazyLinear):
        return localizer.out_features
    if isinstance(localizer, nn.Sequential):
        for module in reversed(localizer):
            if not isinstance(module, _SHAPE_KEEPING):
                return feature_width(module)
    return None
