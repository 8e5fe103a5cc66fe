"""Tensors as bytes, without pickle."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from pstn.files import load_safetensors

__all__ = ["pack_tensors", "unpack_tensors"]


def pack_tensors(groups: Mapping[str, Mapping[str, Tensor]]) -> bytes:
    """Named groups of named tensors as the bytes of a safetensors file.

    Example:
        >>> unpack_tensors(pack_tensors({"model": {"weight": torch.ones(2)}}))
        {'model': {'weight': tensor([1., 1.])}}
    """
    return load_safetensors("sklearn").torch.save(
        {
            f"{group}/{name}": tensor.detach().cpu().contiguous().clone()
            for group, tensors in groups.items()
            for name, tensor in tensors.items()
        }
    )


def unpack_tensors(packed: bytes) -> dict[str, dict[str, Tensor]]:
    """What `pack_tensors` packed."""
    groups: dict[str, dict[str, Tensor]] = {}
    for name, tensor in load_safetensors("sklearn").torch.load(packed).items():
        group, _, rest = name.partition("/")
        groups.setdefault(group, {})[rest] = tensor
    return groups
