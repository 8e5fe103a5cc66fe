"""Convolutions in other ways: as products for stacks, where grouped ones are slow; over blocks for tensor cores."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, final, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ConvKind = Literal["library", "matmul", "rows", "blocks"]
"""A library's convolution; one product with all patches, which suits stacks on GPUs; one for each row of the kernel,
which copies a fifth as much for a kernel of 5, and suits CPUs; or the library's over blocks of 2×2 pixels, which suits
large images of few channels on a GPU with tensor cores."""

CONV_KINDS = get_args(ConvKind)
_SIDE = 2  # of a block; of 4, an H200 was slower
_FEW = 16  # channels


def stand_in(conv: nn.Module, kind: ConvKind) -> nn.Module | None:
    """What computes a convolution in this way, with the same parameters; None where it is to stay as it is."""
    if kind == "blocks":
        if not isinstance(conv, nn.Conv2d) or not can_multiply(conv, "rows"):
            return None
        return BlockConv(conv) if conv.in_channels <= _FEW and conv.padding in ("valid", (0, 0)) else None
    if isinstance(conv, (nn.Conv1d, nn.Conv2d)) and kind != "library" and can_multiply(conv, kind):
        return MatmulConv(conv, kind)
    return None


def can_multiply(conv: nn.Module, kind: ConvKind) -> bool:
    """Whether `MatmulConv` can stand in for a module: a plain convolution, not one with a forward of its own."""
    plain = (nn.Conv2d,) if kind == "rows" else (nn.Conv1d, nn.Conv2d)
    return (
        isinstance(conv, plain)  # for the type checker: the next line says more
        and type(conv) in plain
        and conv.groups == 1
        and conv.padding_mode == "zeros"
        and set(conv.dilation) == {1}
        and (kind == "matmul" or set(conv.stride) == {1})
    )


@final
class MatmulConv(nn.Module):
    """A 1-D or 2-D convolution that lays patches, or rows of them, side by side and multiplies with the weights.

    It holds the same parameters under the same names as the convolution that it stands in for.

    Args:
        conv: that convolution.
        kind: "matmul" or "rows".
    """

    def __init__(self, conv: nn.Conv1d | nn.Conv2d, kind: ConvKind = "matmul") -> None:
        super().__init__()
        self.weight, self.bias = conv.weight, conv.bias
        self.kernel, self.stride = tuple(conv.kernel_size), tuple(conv.stride)
        self.by_rows = kind == "rows"
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
        if self.by_rows:
            read = _Rows.apply(x, self.weight)[0]
        else:
            out = [(n - k) // s + 1 for n, k, s in zip(x.shape[2:], self.kernel, self.stride, strict=True)]
            columns = _Columns.apply(x, self.kernel, self.stride)
            read = torch.mm(self.weight.flatten(1), columns).view(-1, x.shape[0], *out).transpose(0, 1)
        return read if self.bias is None else read + self.bias.view(-1, *[1] * len(self.kernel))


@final
class BlockConv(nn.Module):
    """A 2-D convolution of few channels as one of r² times as many, over blocks of r×r pixels.

    Tensor cores multiply channels, and one or ten are too few for them. Cut into blocks, an image has r² times its
    channels at each block, and so has the output; the kernel covers all blocks that it touches, with zeros where it
    does not reach.

    Args:
        conv: what it stands in for, under the same names; stride 1, no padding.
        side: r.
    """

    def __init__(self, conv: nn.Conv2d, side: int = _SIDE) -> None:
        super().__init__()
        self.weight, self.bias, self.side = conv.weight, conv.bias, side
        self.training = conv.training

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, O, H', W')."""
        r, kernel = self.side, self.weight.shape[2:]
        out = [n - k + 1 for n, k in zip(x.shape[2:], kernel, strict=True)]
        reach = [1 + -(-(k - 1) // r) for k in kernel]  # blocks that a kernel covers
        needed = [(-(-n // r) + q - 1) * r for n, q in zip(out, reach, strict=True)]
        x = F.pad(x, (0, needed[1] - x.shape[3], 0, needed[0] - x.shape[2]))
        bias = None if self.bias is None else self.bias.repeat_interleave(r * r)
        read = F.conv2d(F.pixel_unshuffle(x, r), self._of_blocks(reach), bias)
        return F.pixel_shuffle(read, r)[:, :, : out[0], : out[1]]

    def _of_blocks(self, reach: list[int]) -> Tensor:
        """The kernel from each pixel of a block to each pixel of the blocks around: (O r², C r², q, q)."""
        r, (high, wide) = self.side, (q * self.side for q in reach)
        outputs, channels, rows, columns = self.weight.shape
        spread = F.pad(self.weight, (r - 1, wide - columns, r - 1, high - rows))
        moved = [
            spread[:, :, r - 1 - a : r - 1 - a + high, r - 1 - b : r - 1 - b + wide] for a in range(r) for b in range(r)
        ]
        apart = torch.stack(moved, dim=1).view(outputs * r * r, channels, reach[0], r, reach[1], r)
        return apart.permute(0, 1, 3, 5, 2, 4).reshape(outputs * r * r, channels * r * r, *reach)


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
    (models, taps), (batch, channels, *size) = columns.shape[:2], shape
    apart = columns.contiguous().view(models, taps, batch, -1).transpose(1, 2).reshape(models * batch, taps, -1)
    # F.fold knows images only: a series is one of height 1.
    flat = len(size) == 1
    two = (1, *size) if flat else tuple(size)
    read = F.fold(apart, two, (1, *kernel) if flat else kernel, stride=(1, *stride) if flat else stride)
    return read.view(models, batch, channels, *size)


def _operator(stacked: Callable[..., Any], save: Callable[..., None], backward: Callable[..., Any]) -> Any:
    """An operator for one model from a function of stacked tensors (N, ...): under vmap it is called once for all.

    Args:
        stacked: tensors with the models in front, and other values -> a tensor or a tuple of tensors.
        save: (ctx, inputs, output), what the gradients need.
        backward: (ctx, *grads) -> the gradients of the inputs.
    """

    def forward(*args: Any) -> Any:
        made = stacked(*(a[None] if isinstance(a, Tensor) else a for a in args))
        return tuple(t[0] for t in made) if isinstance(made, tuple) else made[0]

    def batched(info: Any, in_dims: Any, *args: Any) -> Any:
        def lead(value: Any, dim: Any) -> Any:
            if not isinstance(value, Tensor):
                return value
            return value.expand(info.batch_size, *value.shape) if dim is None else value.movedim(dim, 0)

        made = stacked(*map(lead, args, in_dims))
        return made, (0,) * len(made) if isinstance(made, tuple) else 0

    methods = {"forward": forward, "setup_context": save, "backward": backward, "vmap": batched}
    return type("Stacked", (torch.autograd.Function,), {name: staticmethod(f) for name, f in methods.items()})


def _save_nothing(ctx: Any, inputs: Any, output: Any) -> None:
    pass


def _refuse(ctx: Any, *grads: Any) -> Any:
    # torch.func records what a backward pass does, as if to differentiate it again.
    raise NotImplementedError("no second derivative through a stacked convolution")


def _save_columns(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.arguments = (tuple(inputs[0].shape), *inputs[1:])


def _columns_backward(ctx: Any, grad: Tensor) -> Any:
    return _Fold.apply(grad, *ctx.arguments), None, None


# x (B, C, *in), kernel, stride -> (C * taps, B * positions), and back.
_Columns = _operator(_columns, _save_columns, _columns_backward)
_Fold = _operator(_fold, _save_nothing, _refuse)


def _spread(x: Tensor, width: int) -> Tensor:
    """Repeat x (N, B, C, H, W) for each column of a kernel: (N, C * width, H * B * W'), W' the output's width."""
    models, batch, channels, height, extent = x.shape
    n, b, c, h, w = x.stride()
    out = extent - width + 1
    spread = x.as_strided((models, channels, width, height, batch, out), (n, c, w, h, b, w), x.storage_offset())
    return spread.reshape(models, channels * width, height * batch * out)


def _kernel_rows(weight: Tensor) -> list[Tensor]:
    """Split weight (N, O, C, k, l) into k matrices (N, O, C * l)."""
    return [row.flatten(2) for row in weight.unbind(3)]


def _seen_by(row: int, spread: Tensor, height: int, lines: int) -> Tensor:
    """What row `row` of a kernel multiplies for all `lines` lines of output: a part of `spread` (N, C l, H B W')."""
    line = spread.shape[2] // height
    return spread[:, :, row * line : (row + lines) * line]


def _rows(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Convolve x (N, B, C, H, W) with weight (N, O, C, k, l): (N, B, O, H', W'), and the spread input."""
    height, kernel = x.shape[3], weight.shape[3]
    lines, spread = height - kernel + 1, _spread(x.contiguous(), weight.shape[4])
    first, *others = _kernel_rows(weight)
    read = torch.bmm(first, _seen_by(0, spread, height, lines))
    for row, matrix in enumerate(others, start=1):
        read.baddbmm_(matrix, _seen_by(row, spread, height, lines))
    return read.view(*read.shape[:2], lines, x.shape[1], -1).permute(0, 3, 1, 2, 4), spread


def _lined_up(grad: Tensor) -> Tensor:
    """(N, B, O, H', W') -> (N, O, H' * B * W'), the order of `_spread`."""
    return grad.permute(0, 2, 3, 1, 4).flatten(2)


def _rows_to_input(grad: Tensor, weight: Tensor) -> Tensor:
    """The gradient of `_rows` with respect to x: (N, B, C, H, W)."""
    models, batch, _, lines, out = grad.shape
    _, _, channels, kernel, width = weight.shape
    height, flat = lines + kernel - 1, _lined_up(grad)
    spread = grad.new_zeros(models, channels * width, height * batch * out)
    for row, matrix in enumerate(_kernel_rows(weight)):
        _seen_by(row, spread, height, lines).baddbmm_(matrix.mT, flat)
    apart = spread.view(models, channels, width, height, batch, out)
    x = grad.new_zeros(models, channels, height, batch, out + width - 1)
    for column in range(width):
        x[..., column : column + out] += apart[:, :, column]
    return x.permute(0, 3, 1, 2, 4)


def _rows_to_weight(grad: Tensor, spread: Tensor, kernel: int, width: int) -> Tensor:
    """The gradient of `_rows` with respect to the weight: (N, O, C, k, l)."""
    lines, flat = grad.shape[3], _lined_up(grad)
    height = lines + kernel - 1
    rows = [torch.bmm(flat, _seen_by(row, spread, height, lines).mT) for row in range(kernel)]
    return torch.stack(rows, dim=2).unflatten(3, (-1, width)).transpose(2, 3)


def _save_rows(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(inputs[1], output[1])


def _rows_backward(ctx: Any, grad: Tensor, _: Any) -> Any:
    weight, spread = ctx.saved_tensors
    to_input = _RowsToInput.apply(grad, weight) if ctx.needs_input_grad[0] else None
    return to_input, _RowsToWeight.apply(grad, spread, *weight.shape[2:]) if ctx.needs_input_grad[1] else None


# x (B, C, H, W), weight (O, C, k, l) -> (B, O, H', W') and the spread input; the two halves of its backward pass.
_Rows = _operator(_rows, _save_rows, _rows_backward)
_RowsToInput = _operator(_rows_to_input, _save_nothing, _refuse)
_RowsToWeight = _operator(_rows_to_weight, _save_nothing, _refuse)
