"""What a model that is saved and loaded by methods of its own has; `pstn.io` has the functions."""

from __future__ import annotations

from abc import ABC
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from pstn.nn.about import About

__all__ = ["Shareable"]

M = TypeVar("M", bound="Shareable")


class Shareable(nn.Module, ABC):
    """A classifier with methods for saving and loading: short forms of the functions of these names in `pstn`.

    Attributes:
        about: the names of its classes, how its input is prepared, its scores; None where nobody has said.
    """

    about: About | None = None

    def save_pretrained(self, folder: str | Path, *, about: About | None = None) -> Path:
        """Short for `pstn.save_pretrained(model, folder, about=about)`."""
        from pstn.io import save_pretrained

        return save_pretrained(self, folder, about=about)

    @classmethod
    def from_pretrained(cls: type[M], name: str | Path, **options: Any) -> M:
        """Short for `pstn.from_pretrained(name, ...)`, for a model of this class."""
        from pstn.io import ModelFileError, from_pretrained

        model = from_pretrained(name, **options)
        if not isinstance(model, cls):
            raise ModelFileError(f"{name} holds a {type(model).__name__}, not a {cls.__name__}: pstn.from_pretrained")
        return model

    def push_to_hub(self, repo_id: str, **options: Any) -> str:
        """Short for `pstn.push_to_hub(model, repo_id, ...)`."""
        from pstn.io import push_to_hub

        return push_to_hub(self, repo_id, **options)
