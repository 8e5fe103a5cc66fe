"""What the estimators with a spatial transformer share: the warped input is an output too."""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from types import MethodType
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import TransformerMixin

__all__ = ["Warping", "parameter_too"]


class parameter_too:
    """A method that shares its name with a constructor's parameter: reading gives the method, writing the parameter.

    scikit-learn wants every parameter as an attribute of its own name, and calls the method that changes inputs
    `transform`, which is also what a family of transformations is called here.
    """

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method = method
        update_wrapper(self, method)  # type: ignore[arg-type]  # it takes any object, its types a function

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self._method if instance is None else MethodType(self._method, instance)

    def __set__(self, instance: Any, value: Any) -> None:
        vars(instance)[self._name] = value


class Warping(TransformerMixin, auto_wrap_output_keys=None):  # type: ignore[misc, call-arg]  # it has no types
    """Adds `transform`; images have no columns, so that its output is always a plain array."""

    @parameter_too
    @torch.no_grad()
    def transform(self, X: ArrayLike) -> NDArray[np.float32]:
        """Inputs as the network looks at them, under the mean of the transformation that it predicts.

        Args:
            X: as for `fit`.

        Returns:
            The shape of `X`, in its units, float32.
        """
        parts = []
        for x in self._batches(X):
            layer = self.model_.layer
            parts.append(self._restored(layer.warp(x, layer.localize(x).loc[None])[0]))
        return np.concatenate(parts)

    def _restored(self, warped: Any) -> NDArray[np.float32]:
        """(..., C, *size) as the network has it -> (..., *shape) as the user has it."""
        layout, scaling = self.layout_, self.scaling_
        restored: NDArray[np.float32] = layout.as_given(scaling.restore(warped, len(layout.size)))
        return restored

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Names and values of the constructor's parameters, of nested estimators too if `deep`."""
        return {**super().get_params(deep=deep), "transform": vars(self)["transform"]}

    def __sklearn_tags__(self) -> Any:
        """What goes in comes out, in float32."""
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float32"]
        return tags
