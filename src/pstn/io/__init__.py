"""Saving and loading models, and the registry that says what a saved model may be made of."""

from pstn.io.models import ModelFileError, from_pretrained, load_weights, push_to_hub, require_modest, save_pretrained
from pstn.io.registry import build, describe, register, set_constructor

__all__ = [
    "ModelFileError", "build", "describe", "from_pretrained", "load_weights", "push_to_hub", "register",
    "require_modest", "save_pretrained", "set_constructor",
]  # fmt: skip
