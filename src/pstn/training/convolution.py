"""Convolution as one matrix product: for stacks of models, where libraries' grouped convolutions are slow."""

from __future__ import annotations

import math
from typing import Any, Literal, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["ConvKind", "MatmulConv", "can_multiply"]

ConvKind = Literal["library", "matmul"]


def can_multiply(conv: nn.Module) -> bool:
    """Whether a module is a convolution that `MatmulConv` can stand in for."""
    return (
        isinstance(conv, (nn.Conv1d, nn.Conv2d))
        and conv.groups == 1
        and conv.padding_mode == "zeros"
        and set(conv.dilation) == {1}
    )


@final
class MatmulConv(nn.Module):
    """A 1-D or 2-D convolution that lays patches out as columns and multiplies them with the weights.

    It holds the same parameters under the same names as the convolution that it stands in for.

    Args:
        conv: that convolution.
    """

    def __init__(self, conv: nn.Conv1d | nn.Conv2d) -> None:
        super().__init__()
        self.weight, self.bias = conv.weight, conv.bias
        self.kernel, self.stride = tuple(conv.kernel_size), tuple(conv.stride)
        if conv.padding == "same":
            pads = [((k - 1) // 2, k - 1 - (k - 1) // 2) for k in self.kernel]
        else:
            pads = [(int(p), int(p)) for p in ((0,) * len(self.kernel) if conv.padding == "valid" else conv.padding)]
        self.pad = [side for pair in reversed(pads) for side in pair]
        self.training = conv.training

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, *in) -> (B, O, *out)."""
        if any(self.pad):
            x = F.pad(x, self.pad)
        out = [(n - k) // s + 1 for n, k, s in zip(x.shape[2:], self.kernel, self.stride, strict=True)]
        columns = _Columns.apply(x, self.kernel, self.stride)
        read = torch.mm(self.weight.flatten(1), columns).view(-1, x.shape[0], *out).transpose(0, 1)
        return read if self.bias is None else read + self.bias.view(-1, *[1] * len(out))


def _columns(x: Tensor, kernel: tuple[int, ...], stride: tuple[int, ...]) -> Tensor:
    """Patches of x (N, B, C, *in) side by side: (N, C * taps, B * positions)."""
    x = x.contiguous()
    models, batch, channels, *size = x.shape
    n, b, c, *steps = x.stride()
    out = [(i - k) // s + 1 for i, k, s in zip(size, kernel, stride, strict=True)]
    moved = [s * step for s, step in zip(stride, steps, strict=True)]
    patches = x.as_strided((models, channels, *kernel, batch, *out), (n, c, *steps, b, *moved), x.storage_offset())
    return patches.reshape(models, channels * math.prod(kernel), batch * math.prod(out))


def _fold(columns: Tensor, shape: tuple[int, ...], kernel: tuple[int, ...], stride: tuple[int, ...]) -> Tensor:
    """The adjoint of `_columns`: (N, C * taps, B * positions) -> (N, B, C, *in), adding where patches overlap."""
    models, (batch, channels, *size) = columns.shape[0], shape
    apart = (
        columns.view(models, columns.shape[1], batch, -1).transpose(1, 2).reshape(models * batch, columns.shape[1], -1)
    )
    # F.fold knows images only: a series is one of height 1.
    flat = len(size) == 1
    two = (1, *size) if flat else tuple(size)
    read = F.fold(apart, two, (1, *kernel) if flat else kernel, stride=(1, *stride) if flat else stride)
    return read.view(models, batch, channels, *size)


class _Columns(torch.autograd.Function):
    """x (B, C, *in) -> (C * taps, B * positions); under vmap, all models at once."""

    @staticmethod
    def forward(x: Tensor, kernel: tuple[int, ...], stride: tuple[int, ...]) -> Tensor:
        return _columns(x[None], kernel, stride)[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, ctx.kernel, ctx.stride = inputs
        ctx.shape = tuple(x.shape)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return _Fold.apply(grads[0], ctx.shape, ctx.kernel, ctx.stride), None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, kernel: tuple[int, ...], stride: tuple[int, ...]) -> Any:
        return _columns(x.movedim(in_dims[0], 0), kernel, stride), 0


class _Fold(torch.autograd.Function):
    """The backward pass of `_Columns`."""

    @staticmethod
    def forward(columns: Tensor, shape: tuple[int, ...], kernel: tuple[int, ...], stride: tuple[int, ...]) -> Tensor:
        return _fold(columns[None].contiguous(), shape, kernel, stride)[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise NotImplementedError("no second derivative through a stacked convolution")

    @staticmethod
    def vmap(info: Any, in_dims: Any, columns: Tensor, shape: Any, kernel: Any, stride: Any) -> Any:
        return _fold(columns.movedim(in_dims[0], 0).contiguous(), shape, kernel, stride), 0
