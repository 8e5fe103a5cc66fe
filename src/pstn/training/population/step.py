"""One training step of a stack of models, and the ways to run it: here, in a process of its own, or as CUDA graphs.

The step is written with `torch.func` (one model, then vmap), traced once, and from then on runs as the traced list of
tensor operations: without autograd's and vmap's bookkeeping, and ready to be captured as a CUDA graph. To change what
is learned from, change `make_batch`; to change what is minimised, `compute_loss`.
"""

from __future__ import annotations

import operator
import signal
import warnings
from collections.abc import Callable, Hashable
from contextlib import nullcontext, suppress
from functools import partial, reduce
from typing import Any, Protocol, final

import torch
from torch import Tensor, fx
from torch.func import grad_and_value, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from pstn._checks import skip_value_checks
from pstn.objective import Loss, count_hits
from pstn.processes import interrupts_held, keep_freed_memory, spawn_context
from pstn.threads import using_threads
from pstn.training.population.recipe import Recipe
from pstn.training.population.stack import Constants, Stack, Tensors, precision_flags

Step = Callable[[Tensors, Constants, Tensors], Tensor]

METRICS = ("loss", "nll", "kl", "accuracy", "grad_norm")
"""What each step reports for each model."""

# Tracing takes about as long as this many steps without it. The bits are the same.
_TRACE_AFTER = 30
# Noise is drawn for many steps at once, up to this many numbers.
_BLOCK = {"cpu": 1 << 20, "cuda": 1 << 24}
# Steps in one CUDA graph.
_UNROLL = 20
# What torch's compiler has to say of its own choices, and of a precision that is the recipe's to choose.
_REMARKS = ("TensorFloat32 tensor cores", r"\s*Online softmax is disabled")
# Seconds between checks, in a process that waits for work, whether it should end.
_POLL = 0.2


def make_batch(stack: Stack, constants: Constants, noise: Tensors, part: int) -> Tensors:
    """Micro-batch `part` of a step: everything that `compute_loss` needs of it, (N, ...) each.

    Args:
        stack: the models.
        constants: of the stack.
        noise: of one step, see `Stack.draw`.
        part: which micro-batch.

    Returns:
        "x" (N, B, C, *size), changed as the recipe says, with the "pose" (N, B, D) that undoes it where that is taught;
        "y" and "weights" of the same examples; "kl_weight" (N,); and the noise.
    """
    given = {name: t[:, part] for name, t in noise.items() if name not in ("schedule", "kl_weight")}
    index = given.pop("examples")
    batch = {name: values[index] for name, values in constants.data.items()}
    if "augment" in given:
        x, u = batch["x"], given.pop("augment")
        if len(x) == 1:
            batch |= {name: t[None] for name, t in stack.change(x[0], u[0]).items()}
        else:
            batch |= vmap(stack.change)(x, u)
    return {**batch, **given, "kl_weight": noise.get("kl_weight", constants.kl_weight)}


def compute_loss(stack: Stack, params: Tensors, own: Tensors, shared: Tensors, batch: Tensors) -> tuple[Tensor, Tensor]:
    """The loss of one model on one micro-batch, and its parts (3,) for the report.

    Args:
        stack: the models.
        params: what is differentiated.
        own: the model's running statistics, changed in place, and frozen parameters.
        shared: frozen parameters that all models have in common.
        batch: of `make_batch`, without the models in front.
    """
    stack.supply_dropout([noise for name, noise in batch.items() if name.startswith("dropout")])
    options = {"noise": batch["theta"]} if "theta" in batch else {}
    # Without the cache: it would keep casts of one step's weights for the next.
    autocast = torch.autocast(batch["x"].device.type, dtype=torch.bfloat16, cache_enabled=False)
    with autocast if stack.recipe.precision == "bf16" else nullcontext():
        output = stack.call(stack.module, {**params, **own, **shared}, batch["x"], **options)
    y = batch.get("y")
    made = stack.loss(output, y, batch["kl_weight"], batch.get("weights"), batch.get("pose"))
    return made.total, report_parts(made, output, y)


def report_parts(loss: Loss, output: Any, y: Tensor | None) -> Tensor:
    """(nll, kl, accuracy) of a batch, (3,), for the report; NaN for what there is not."""
    parts, nan = (loss.nll, loss.kl, count_hits(output, y)), torch.full_like(loss.total.detach(), torch.nan)
    return torch.stack([nan if part is None else part.detach() for part in parts])


def differentiate_one(
    stack: Stack, params: Tensors, own: Tensors, shared: Tensors, batch: Tensors
) -> tuple[Tensors, tuple[Tensor, Tensor]]:
    """What `grad_and_value` under vmap gives, for a stack of one: fewer operations, and any operator will do."""
    params = {name: value[0].detach().requires_grad_() for name, value in params.items()}
    own, batch = ({name: value[0] for name, value in tensors.items()} for tensors in (own, batch))
    with torch.enable_grad():
        loss, parts = compute_loss(stack, params, own, shared, batch)
    found = torch.autograd.grad(loss, list(params.values()), materialize_grads=True)
    return {name: g[None] for name, g in zip(params, found, strict=True)}, (loss[None], parts[None])


def make_step(stack: Stack) -> Step:
    """The function that takes one optimiser step with every model of a stack, in place.

    It returns (N, 5), the metrics of each model. A model whose loss or gradient is not finite, or whose loss exceeds
    the limit, is no longer alive: from that step on its parameters and running statistics stay as they are.
    """
    recipe, passes = stack.recipe, stack.recipe.accumulate
    differentiate: Callable[..., Any] = partial(differentiate_one, stack)
    if len(stack.members) > 1:
        differentiate = vmap(grad_and_value(partial(compute_loss, stack), has_aux=True), in_dims=(0, 0, None, 0))

    def step(state: Tensors, constants: Constants, noise: Tensors) -> Tensor:
        buffers = {name: state[f"buffer.{name}"] for name in stack.buffers}
        before = {name: buffer.clone() for name, buffer in buffers.items()}
        params, own = stack.parameters(state["rows"]), {**buffers, **constants.frozen}
        grads, metrics = list[Tensors](), list[Tensor]()
        for part in range(passes):
            with skip_value_checks():
                batch = make_batch(stack, constants, noise, part)
                found, (loss, parts) = differentiate(params, own, constants.shared, batch)
            grads.append(found)
            metrics.append(torch.cat([loss.detach()[:, None], parts], dim=1))
        grad = stack.join({name: reduce(torch.add, [found[name] for found in grads]) for name in grads[0]})
        metric = reduce(torch.add, metrics)
        if passes > 1:
            grad, metric = grad / passes, metric / passes
        norm = torch.linalg.vector_norm(grad, dim=1)
        # A NaN compares as false, and an infinite norm times zero is NaN.
        alive = (torch.add(metric[:, 0], norm, alpha=0) < recipe.loss_limit) & state["alive"]
        state["alive"].copy_(alive)
        if recipe.clip_norm is not None:
            grad = grad * (recipe.clip_norm / (norm + 1e-6)).clamp(max=1.0)[:, None]
        _adam(state, constants, grad, alive, noise["schedule"], recipe)
        for name, buffer in buffers.items():
            buffer.copy_(torch.where(alive.view(-1, *[1] * (buffer.dim() - 1)), buffer, before[name]))
        return torch.cat([metric, norm[:, None]], dim=1)

    return step


def _adam(state: Tensors, constants: Constants, grad: Tensor, alive: Tensor, schedule: Tensor, recipe: Recipe) -> None:
    """Adam with its L2 term, in place, on the models that are alive."""
    beta1, beta2 = recipe.betas
    grad = torch.addcmul(grad, state["rows"], constants.decay)
    grad = torch.where(alive[:, None], grad, torch.zeros_like(grad))  # a NaN must not reach the running means
    mean, square = state["mean"].lerp_(grad, 1 - beta1), state["square"].mul_(beta2)
    square.addcmul_(grad, grad, value=1 - beta2)
    change = mean / torch.addcmul(torch.full_like(schedule[1], recipe.eps), square.sqrt(), schedule[1])
    state["rows"].addcmul_(change * constants.rates, (schedule[0] * alive)[:, None], value=-1)


def trace(step: Step, state: Tensors, constants: Constants, noise: Tensors, *, compile: bool = False) -> Step:
    """`step` as a flat program of the same signature; run on copies, so that `state` stays as it is.

    With `compile`, torch.compile then fuses its small operations into few kernels.
    """
    copied = {name: t.clone() for name, t in state.items()}
    leaves, spec = tree_flatten((copied, constants, noise))
    traced = make_fx(lambda *tensors: step(*tree_unflatten(tensors, spec)))(*leaves)
    fold_constants(traced)
    program: Callable[..., Tensor] = torch.compile(traced) if compile else traced
    return lambda *trees: program(*tree_leaves(trees))


def fold_constants(program: fx.GraphModule) -> None:
    """Replace what is computed from constants alone (coordinate grids, for one) by its value, in place.

    Operations that write into their arguments, draw random numbers or return anything but tensors are left alone.
    """
    written = _written(program.graph)
    values: dict[fx.Node, Any] = {}
    for node in program.graph.nodes:
        if node in written:
            continue
        if node.op == "get_attr":
            values[node] = getattr(program, node.target)
        elif _is_pure(node) and all(i in values for i in node.all_input_nodes):
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda n: values[n])
            result = node.target(*args, **kwargs)
            if isinstance(result, Tensor):
                values[node] = result
    for node, value in values.items():
        if node.op == "call_function" and not all(user in values for user in node.users):
            name = f"_folded_{node.name}"
            program.register_buffer(name, value.detach().clone(), persistent=False)
            with program.graph.inserting_before(node):
                node.replace_all_uses_with(program.graph.get_attr(name))
    program.graph.eliminate_dead_code(_has_side_effects)
    program.recompile()


def _has_side_effects(node: fx.Node) -> bool:
    """Whether a node does more than return a value, as far as can be known."""
    known = isinstance(node.target, torch._ops.OpOverload) or node.target is operator.getitem
    return node.is_impure() or (node.op == "call_function" and not known)


def _is_pure(node: fx.Node) -> bool:
    op = node.target
    if node.op != "call_function" or not isinstance(op, torch._ops.OpOverload):
        return False
    return not op._schema.is_mutable and torch.Tag.nondeterministic_seeded not in op.tags


def _written(graph: fx.Graph) -> set[fx.Node]:
    """Nodes whose memory some operation writes into, with the views that share it."""
    written: set[fx.Node] = set()
    for node in reversed(list(graph.nodes)):
        if node.target is operator.getitem:
            written.update(node.all_input_nodes if node in written else ())
        elif isinstance(node.target, torch._ops.OpOverload):
            arguments = node.target._schema.arguments
            given = {**dict(zip((a.name for a in arguments), node.args, strict=False)), **node.kwargs}
            for argument in arguments:
                alias = argument.alias_info
                if alias is not None and (alias.is_write or node in written):
                    fx.node.map_arg(given.get(argument.name), written.add)
        elif _has_side_effects(node):
            written.update(node.all_input_nodes)  # no schema says what it writes: a kernel's launch, for one
    return written


class Runner(Protocol):
    """Moves a stack's state forward in place, bit for bit the same however the steps are cut into calls."""

    def launch(self, start: int, count: int) -> None:
        """Begin `count` steps from step `start`."""

    def collect(self) -> Tensor:
        """Wait for what was launched: (count, N, 5) metrics, on the CPU."""

    def close(self) -> None:
        """Let go of processes and device memory."""


@final
class LocalRunner:
    """Steps in this process, one traced program for the whole stack.

    Args:
        stack: what to move.
        compile: fuse the step's small operations with torch.compile first.
        threads: torch's threads while it steps, which it has back afterwards; None leaves them as they are.
    """

    def __init__(self, stack: Stack, compile: bool = False, threads: int | None = None) -> None:
        self.stack, self._compile, self._threads = stack, compile, threads
        # Compiled sums may be taken in another order: a run must be compiled from its first step to be repeatable.
        self._trace_after = 0 if compile else _TRACE_AFTER
        self._step, self._taken, self._done = make_step(stack), 0, list[Tensor]()

    def launch(self, start: int, count: int) -> None:
        """Run; the metrics are kept for `collect`."""
        state, constants = self.stack.state, self.stack.constants
        block = max(1, _BLOCK["cpu"] // self.stack.noise_per_step)
        with precision_flags(self.stack.recipe), using_threads(self._threads):
            for at in range(start, start + count, block):
                drawn = self.stack.draw(at, min(block, start + count - at))
                for k in range(len(drawn["schedule"])):
                    noise = {name: t[k] for name, t in drawn.items()}
                    if self._taken == self._trace_after:
                        self._step = trace(self._step, state, constants, noise, compile=self._compile)
                    self._taken += 1
                    self._done.append(self._step(state, constants, noise))

    def collect(self) -> Tensor:
        """(count, N, 5)."""
        done, self._done = self._done, []
        return torch.stack(done).cpu() if done else torch.zeros(0, len(self.stack.members), len(METRICS))

    def close(self) -> None:
        """Nothing to let go of."""


@final
class WorkerRunner:
    """Steps in a process of its own with one thread, on memory that both processes see.

    Small models leave a core's threads waiting for each other; one process per core keeps every core at work.

    Args:
        stack: what to move; its tensors are moved to shared memory.
        compile: fuse the step's small operations with torch.compile first.
    """

    def __init__(self, stack: Stack, compile: bool = False) -> None:
        for tensor in tree_leaves((stack.state, stack.constants)):
            tensor.share_memory_()
        context = spawn_context()
        self._pipe: Any
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(stack, theirs, compile), daemon=True)
        with interrupts_held():  # a child inherits it: signals are the parent's to answer, while it starts up too
            self._process.start()
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
            hint = 'put the work of a script under `if __name__ == "__main__":`, or pass workers=False'
            raise ChildProcessError(f"a training process ended, its output is above: {hint}") from None
        if isinstance(reply, Exception):
            raise reply
        return torch.as_tensor(reply)

    def close(self) -> None:
        """End the process."""
        with suppress(OSError):
            self._pipe.send(None)
        self._pipe.close()
        self._process.join(timeout=10)


def _serve(stack: Stack, pipe: Any, compile: bool) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A cluster sends SIGTERM to every process of a job, and the parent has a round to finish and to save; at its end
    # multiprocessing sends it too, and waits. So a process leaves when all that it was asked is answered.
    leaving: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: leaving.append(number))
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # held while this process was started
    torch.set_num_threads(1)
    keep_freed_memory()
    runner = LocalRunner(stack, compile)
    with suppress(EOFError, BrokenPipeError):  # the parent is gone
        while not leaving or pipe.poll():
            if not pipe.poll(_POLL):
                continue
            if (asked := pipe.recv()) is None:
                return
            try:
                runner.launch(*asked)
                # As an array: a tensor would travel through shared memory, and small ones are not worth a descriptor.
                pipe.send(runner.collect().numpy())
            except Exception as error:
                pipe.send(error)


@final
class CudaRunner:
    """Steps as CUDA graphs: many steps are one launch.

    A graph reads its noise from fixed memory, which is filled before each replay; batches are gathered, and everything
    else is computed, inside.

    Args:
        stack: what to move; its tensors are on a CUDA device.
        compile: fuse the step's small kernels with torch.compile first; costs up to a minute at the start.
        programs: traced steps, shared between the runners of a population, by what two stacks must have in common for
            one to serve both.
    """

    def __init__(self, stack: Stack, compile: bool, programs: dict[Hashable, Step]) -> None:
        self.stack, self._compile, self._programs = stack, compile, programs
        self._unroll = max(1, min(_UNROLL, _BLOCK["cuda"] // stack.noise_per_step))
        self._stream = torch.cuda.Stream(device=stack.device)
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, Tensors, Tensor]] = {}
        self._done: list[Tensor] = []

    def launch(self, start: int, count: int) -> None:
        """Enqueue everything; returns before the device is done."""
        if not self._graphs:
            with torch.cuda.device(self.stack.device), precision_flags(self.stack.recipe, tune=True):
                self._capture()
        self._stream.wait_stream(torch.cuda.current_stream(self.stack.device))
        block = max(1, _BLOCK["cuda"] // self.stack.noise_per_step // self._unroll) * self._unroll
        with torch.cuda.stream(self._stream):
            for at in range(start, start + count, block):
                noise, done = self.stack.draw(at, min(block, start + count - at)), 0
                while (left := len(noise["schedule"]) - done) > 0:
                    take = self._unroll if left >= self._unroll else 1
                    graph, fixed, metrics = self._graphs[take]
                    torch._foreach_copy_(list(fixed.values()), [t[done : done + take] for t in noise.values()])
                    graph.replay()
                    self._done.append(metrics.clone())
                    done += take

    def collect(self) -> Tensor:
        """(count, N, 5)."""
        done, self._done = self._done, []
        with torch.cuda.stream(self._stream):
            out = torch.cat(done).cpu() if done else torch.zeros(0, len(self.stack.members), len(METRICS))
        self._stream.synchronize()
        return out

    def close(self) -> None:
        """Let go of the graphs and their memory."""
        self._graphs.clear()

    def _capture(self) -> None:
        stack, constants = self.stack, self.stack.constants
        kind = (len(stack.members), tuple(constants.frozen), tuple(constants.shared))
        self._stream.wait_stream(torch.cuda.current_stream(stack.device))
        with torch.cuda.stream(self._stream), warnings.catch_warnings():
            for remark in _REMARKS:
                warnings.filterwarnings("ignore", message=remark)
            noise = stack.draw(0, self._unroll)
            steps = [{name: t[k] for name, t in noise.items()} for k in range(self._unroll)]
            if kind not in self._programs:
                self._programs[kind] = trace(make_step(stack), stack.state, constants, steps[0], compile=self._compile)
            step = self._programs[kind]
            # A few steps on a copy: libraries choose their kernels and allocate before the capture.
            copied = {name: t.clone() for name, t in stack.state.items()}
            for given in steps[:3]:
                step(copied, constants, given)
        pool = None
        for count in sorted({self._unroll, 1}, reverse=True):
            fixed = {name: t[:count].clone() for name, t in noise.items()}
            torch.cuda.synchronize(stack.device)
            graph = torch.cuda.CUDAGraph()
            # On this stack's own stream: libraries keep work space per stream, and stacks run side by side.
            with torch.cuda.graph(graph, stream=self._stream, pool=pool):
                taken = [step(stack.state, constants, {n: t[k] for n, t in fixed.items()}) for k in range(count)]
                metrics = torch.stack(taken)
            pool = graph.pool()
            self._graphs[count] = (graph, fixed, metrics)
