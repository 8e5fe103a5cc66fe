"""How a group steps: in this process, in a process of its own, or as CUDA graphs."""

from __future__ import annotations

import signal
import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Any, final

import torch
from torch import Tensor
from torch import multiprocessing as mp

from pstn.processes import interrupts_held, spawn_context
from pstn.threads import using_threads
from pstn.training.population.group import Group, precision_flags
from pstn.training.population.step import METRICS, State, StepNoise, make_step, trace

__all__ = ["CudaRunner", "LocalRunner", "Runner", "WorkerRunner"]

# Noise is drawn for many steps at once, up to this many numbers.
_BLOCK = 1 << 20
# Tracing takes about as long as this many steps without it. The bits are the same.
_TRACE_AFTER = 30
# Seconds between checks, in a process that waits for work, whether it should end.
_LOOK_UP = 0.2
# Exit code of a process that, while it imported the script that started it, was itself asked to start processes.
_UNGUARDED = 86
_GUARD = (
    "this script trains in several processes, and each of them imports it: put its work under "
    '`if __name__ == "__main__":`, or pass workers=False'
)


class Runner(ABC):
    """Moves a group's state forward in place, bit for bit the same however the steps are cut into calls."""

    group: Group

    @abstractmethod
    def launch(self, start: int, count: int) -> None:
        """Begin `count` steps from step `start`."""

    @abstractmethod
    def collect(self) -> Tensor:
        """Wait for what was launched: (count, N, 5) metrics, on the CPU."""

    def close(self) -> None:  # noqa: B027  # most have nothing to release
        """Let go of processes and device memory."""


@final
class LocalRunner(Runner):
    """Steps in this process, one traced program for the whole group.

    Args:
        group: what to move.
        compile: fuse the step's small operations with torch.compile first.
        threads: torch's threads while it steps, which it has back afterwards; None leaves them as they are.
    """

    def __init__(self, group: Group, compile: bool = False, threads: int | None = None) -> None:
        self.group, self._compile, self._threads = group, compile, threads
        # Compiled sums may be taken in another order: a run must be compiled from its first step to be repeatable.
        self._trace_after = 0 if compile else _TRACE_AFTER
        self._step: Callable[..., Tensor] = make_step(group.template, group.stack, group.recipe, len(group.members))
        self._taken, self._done = 0, list[Tensor]()

    def launch(self, start: int, count: int) -> None:
        """Run; the metrics are kept for `collect`."""
        group = self.group
        block = max(1, _BLOCK // group.noise_per_step)
        with precision_flags(group.recipe), using_threads(self._threads):
            for at in range(start, start + count, block):
                noise = group.draw(at, min(block, start + count - at))
                for k in range(noise.examples.shape[0]):
                    if self._taken == self._trace_after:
                        self._step = trace(
                            self._step, group.state, group.constants, noise.step(k), compile=self._compile
                        )
                    self._taken += 1
                    self._done.append(self._step(group.state, group.constants, noise.step(k)))

    def collect(self) -> Tensor:
        """(count, N, 5)."""
        done, self._done = self._done, []
        if not done:
            return torch.zeros(0, len(self.group.members), len(METRICS))
        return torch.stack(done).cpu()


@final
class WorkerRunner(Runner):
    """Steps in a process of its own with one thread, on memory that both processes see.

    Small models leave a core's threads waiting for each other; one process per core keeps every core at work.

    Args:
        group: what to move; its tensors are moved to shared memory.
        compile: fuse the step's small operations with torch.compile first.
    """

    def __init__(self, group: Group, compile: bool = False) -> None:
        if getattr(mp.current_process(), "_inheriting", False):
            sys.exit(_UNGUARDED)  # the parent says why, once for all of its processes
        self.group = group
        for tensor in (
            *group.tensors().values(),
            *(t for c in group.constants for t in (c if isinstance(c, list) else [c])),
        ):
            tensor.share_memory_()
        context = spawn_context()
        self._pipe: Any
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(group, theirs, compile), daemon=True)
        try:
            with interrupts_held():  # a child inherits it: signals are the parent's to answer, while it starts up too
                self._process.start()
        except BrokenPipeError:  # it ended before it had heard what to do: while it imported the script
            raise RuntimeError(_GUARD) from None
        theirs.close()

    def launch(self, start: int, count: int) -> None:
        """Ask the process to go on; if it is gone, `collect` says so."""
        with suppress(BrokenPipeError):
            self._pipe.send((start, count))

    def collect(self) -> Tensor:
        """(count, N, 5)."""
        try:
            reply = self._pipe.recv()
        except (EOFError, ConnectionResetError):
            self._process.join(timeout=10)
            if self._process.exitcode == _UNGUARDED:
                raise RuntimeError(_GUARD) from None
            raise ChildProcessError("a training process ended unexpectedly; its output is above") from None
        if isinstance(reply, Exception):
            raise reply
        return torch.as_tensor(reply)

    def close(self) -> None:
        """End the process."""
        with suppress(OSError):
            self._pipe.send(None)
        self._pipe.close()
        self._process.join(timeout=10)


def _serve(group: Group, pipe: Any, compile: bool) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A cluster sends SIGTERM to every process of a job, and the parent has a round to finish and to save; at its end
    # multiprocessing sends it too, and waits. So a process leaves when all that it was asked is answered.
    leaving: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: leaving.append(number))
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # held while this process was started
    torch.set_num_threads(1)
    runner = LocalRunner(group, compile)
    with suppress(EOFError, BrokenPipeError):  # the parent is gone
        while True:
            if not pipe.poll(_LOOK_UP):
                if leaving:
                    return
                continue
            asked = pipe.recv()
            if asked is None:
                return
            try:
                runner.launch(*asked)
                # As an array: a tensor would travel through shared memory, and small ones are not worth a descriptor.
                pipe.send(runner.collect().numpy())
            except Exception as error:
                pipe.send(error)


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
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, StepNoise, Tensor]] = {}
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

    def _replay(self, noise: StepNoise, count: int) -> None:
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
            fixed = noise.first(count)
            torch.cuda.synchronize(device)
            graph = torch.cuda.CUDAGraph()
            # On this group's own stream: libraries keep work space per stream, and groups run side by side.
            with torch.cuda.graph(graph, stream=self._stream, pool=pool):
                metrics = torch.stack([step(group.state, group.constants, fixed.step(k)) for k in range(count)])
            pool = graph.pool()
            self._graphs[count] = (graph, fixed, metrics)

    def _warm_up(self, step: Callable[..., Tensor], noise: StepNoise) -> None:
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
