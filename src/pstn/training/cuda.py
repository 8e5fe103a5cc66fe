"""A group on a CUDA device: several steps captured as one graph, replayed on a stream of its own."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable
from typing import final

import torch
from torch import Tensor

from pstn.training.group import Group, NoiseBlock, precision_flags
from pstn.training.program import METRICS, State, make_step, trace
from pstn.training.runners import Runner

__all__ = ["CudaRunner"]

# Noise is drawn on the device for many steps at once, up to this many numbers.
_BLOCK = 1 << 24
# What torch's compiler has to say of its own choices, and of a precision that is the recipe's to choose.
_REMARKS = ("TensorFloat32 tensor cores", r"\s*Online softmax is disabled")


@final
class CudaRunner(Runner):
    """Steps as CUDA graphs: the whole of `unroll` steps is one launch.

    A graph reads its noise from fixed memory, which is filled before each replay; batches are gathered, and everything
    else is computed, inside.

    Args:
        group: what to move; its tensors are on a CUDA device.
        unroll: steps in one graph.
        compile: fuse the step's small kernels with torch.compile first; costs up to a minute at the start.
        programs: traced steps by `_kind`, shared between the runners of a population.
    """

    def __init__(
        self,
        group: Group,
        unroll: int = 20,
        compile: bool = False,
        programs: dict[Hashable, Callable[..., Tensor]] | None = None,
    ) -> None:
        self.group = group
        self._compile, self._programs = compile, {} if programs is None else programs
        self._unroll = max(1, min(unroll, _BLOCK // group.noise_per_step))
        self._stream = torch.cuda.Stream(device=group.state.rows.device)
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, NoiseBlock, Tensor]] = {}
        self._done: list[Tensor] = []

    def launch(self, start: int, count: int) -> None:
        """Enqueue everything; returns before the device is done."""
        device = self.group.state.rows.device
        if not self._graphs:
            with torch.cuda.device(device), precision_flags(self.group.recipe, tune=True):
                self._capture()
        self._stream.wait_stream(torch.cuda.current_stream(device))
        block = max(self._unroll, _BLOCK // self.group.noise_per_step // self._unroll * self._unroll)
        with torch.cuda.stream(self._stream):
            for at in range(start, start + count, block):
                noise = self.group.draw(at, min(block, start + count - at))
                self._replay(noise, noise.examples.shape[0])

    def _replay(self, noise: NoiseBlock, count: int) -> None:
        done = 0
        while done < count:
            take = self._unroll if count - done >= self._unroll else 1
            graph, fixed, metrics = self._graphs[take]
            torch._foreach_copy_(fixed.tensors(), [t[done : done + take] for t in noise.tensors()])
            graph.replay()
            self._done.append(metrics.clone())
            done += take

    def collect(self) -> Tensor:
        """(count, N, 5)."""
        done, self._done = self._done, []
        with torch.cuda.stream(self._stream):
            out = torch.cat(done) if done else torch.zeros(0, len(self.group.members), len(METRICS))
            out = out.cpu()
        self._stream.synchronize()
        return out

    def close(self) -> None:
        """Let go of the graphs and their memory."""
        self._graphs.clear()

    def _capture(self) -> None:
        group, device = self.group, self.group.state.rows.device
        self._stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(self._stream):
            noise = group.draw(0, self._unroll)
            kind = _kind(group)
            if kind not in self._programs:
                made = make_step(group.template, group.stack, group.recipe, len(group.members))
                self._programs[kind] = trace(made, group.state, group.constants, noise.step(0), compile=self._compile)
            step = self._programs[kind]
            self._warm_up(step, noise)
        pool = None
        for count in sorted({self._unroll, 1}, reverse=True):
            fixed = _copy_block(noise, count)
            torch.cuda.synchronize(device)
            graph = torch.cuda.CUDAGraph()
            # On this group's own stream: libraries keep work space per stream, and groups run side by side.
            with torch.cuda.graph(graph, stream=self._stream, pool=pool):
                metrics = torch.stack([step(group.state, group.constants, fixed.step(k)) for k in range(count)])
            pool = graph.pool()
            self._graphs[count] = (graph, fixed, metrics)

    def _warm_up(self, step: Callable[..., Tensor], noise: NoiseBlock) -> None:
        """Run a few steps on a copy: libraries choose their kernels and allocate before the capture."""
        state = self.group.state
        copy = State(
            state.rows.clone(), state.mean.clone(), state.square.clone(), state.alive.clone(),
            [b.clone() for b in state.buffers],
        )  # fmt: skip
        with warnings.catch_warnings():
            for remark in _REMARKS:
                warnings.filterwarnings("ignore", message=remark)
            for k in range(min(3, noise.examples.shape[0])):
                step(copy, self.group.constants, noise.step(k))


def _kind(group: Group) -> Hashable:
    """What two groups must have in common for one traced step to serve both: size, and which frozen parts differ."""
    return len(group.members), tuple(group.stack.frozen), tuple(group.stack.shared)


def _copy_block(noise: NoiseBlock, count: int) -> NoiseBlock:
    def part(t: Tensor | None) -> Tensor | None:
        return None if t is None else t[:count].clone()

    dropout = [u[:count].clone() for u in noise.dropout]
    return NoiseBlock(
        noise.examples[:count].clone(), noise.schedule[:count].clone(), part(noise.theta), dropout,
        part(noise.augment), part(noise.kl_weight),
    )  # fmt: skip
