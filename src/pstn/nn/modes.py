"""Evaluation mode for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from torch import nn

__all__ = ["evaluating"]

Model = TypeVar("Model", bound=nn.Module)


@contextmanager
def evaluating(model: Model) -> Iterator[Model]:
    """Put a model into evaluation mode, and each of its parts back into its own mode, also after an error.

    Example:
        >>> model = nn.Sequential(nn.Dropout(), nn.Dropout().eval())
        >>> with evaluating(model):
        ...     model[0].training
        False
        >>> model[0].training, model[1].training
        (True, False)
    """
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield model.eval()
    finally:
        for module, training in modes:
            module.training = training
