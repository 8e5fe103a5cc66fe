"""Diagnosis of training that fails: where a NaN came from, and the known ways to collapse."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from pstn._checks import unread
from pstn.distributions import Posterior
from pstn.nn.classifier import TransformerModel
from pstn.nn.modes import evaluating
from pstn.training.population.stack import Stack
from pstn.training.population.step import compute_loss, make_batch


def diagnose(stack: Stack, row: int, step: int, loss: float) -> str:
    """Take the step at which a model broke once more, without its update, and say which part is not finite.

    A broken model's weights are those before the step, and its noise is a function of the step: the same numbers come
    out again. An error in the diagnosis is reported, not raised: the other models keep training.

    Args:
        stack: the stack that the model belongs to.
        row: its place there.
        step: the step at which it broke.
        loss: the loss that it had there.
    """
    try:
        return _repeat(stack, row, step, loss)
    except Exception as error:
        return f"Repeating the step raised: {error}."


def _repeat(stack: Stack, row: int, step: int, loss: float) -> str:
    noise = {name: t[0] for name, t in stack.draw(step, 1).items()}
    held = {name: t[row] for name, t in stack.parameters(stack.state["rows"]).items()}
    if bad := _first_not_finite(held):
        return f"The parameter {bad} was not finite before the step."
    own = {name: stack.state[f"buffer.{name}"][row].clone() for name in stack.buffers}
    own |= {name: t[row] for name, t in stack.constants.frozen.items()}
    differentiate = torch.func.grad(partial(compute_loss, stack), has_aux=True)
    seen: dict[str, Tensor] = {}
    hooks = [part.register_forward_hook(_keeper(seen, name)) for name, part in _named_parts(stack.module).items()]
    try:
        for part in range(stack.recipe.accumulate):
            seen.clear()
            with unread():
                batch = {name: t[row] for name, t in make_batch(stack, stack.constants, noise, part).items()}
            grads, _ = differentiate(held, own, stack.constants.shared, batch)
            theta = _theta_report(stack.module, seen)
            if bad := _first_not_finite(seen):
                return f"The first part with values that are not finite: the {bad}. {theta}"
            if bad := _first_not_finite(grads):
                return f"The forward pass was finite, the gradient of {bad} was not. {theta}"
    finally:
        for hook in hooks:
            hook.remove()
    reason = "the loss exceeded its limit" if loss >= stack.recipe.loss_limit else "its gradient's norm overflowed"
    return f"{theta} Every value was finite when the step was repeated: {reason}."


def _first_not_finite(tensors: dict[str, Tensor]) -> str | None:
    return next((name for name, value in tensors.items() if not bool(torch.isfinite(value).all())), None)


def _named_parts(module: nn.Module) -> dict[str, nn.Module]:
    if not isinstance(module, TransformerModel):
        return {"classifier": module}
    layer = module.layer
    heads = {f"{name} head": layer.get_submodule(f"{name}_head") for name in layer.heads}
    return {"localizer": layer.localizer, **heads, "classifier": getattr(module, "classifier", module)}


def _keeper(seen: dict[str, Tensor], name: str) -> Callable[..., None]:
    def keep(_module: nn.Module, _inputs: object, output: object) -> None:
        seen.setdefault(name, _as_tensor(output))

    return keep


def _as_tensor(out: object) -> Tensor:
    while not isinstance(out, Tensor):
        out = out[0]  # type: ignore[index]  # a tuple, or whatever else a module of the user's returns
    # Under torch.func the hook sees a wrapper: what is inside is the value.
    while torch._C._functorch.is_functorch_wrapped_tensor(out):
        out = torch._C._functorch.get_unwrapped(out)
    return out.detach()


def _theta_report(module: nn.Module, seen: dict[str, Tensor]) -> str:
    if not isinstance(module, TransformerModel) or not all(f"{h} head" in seen for h in module.layer.heads):
        return ""
    layer = module.layer
    heads = {name: seen[f"{name} head"].flatten(0, -2) for name in layer.heads}
    with unread(), torch.no_grad():
        posterior = layer.posterior.build(layer.transform, {**heads, **layer.shared()})
        text = f"Theta's mean over the batch was {_listed(posterior.mode.mean(0))}"
        if layer.probabilistic:
            low, high = posterior.interval(0.5)
            text += f", the width of its 50% interval {_listed((high - low).mean(0))}"
    return text + "."


def _listed(values: Tensor) -> str:
    return "(" + ", ".join(f"{v:.3g}" for v in values.tolist()) + ")"


def collapses(model: nn.Module, x: Tensor, *, tolerance: float = 1e-3) -> list[str]:
    """Name the known ways to collapse that a model shows on these inputs, each with what to try.

    Args:
        model: a PSTN or STN; any other model has nothing to collapse.
        x: (B, C, *in), a few dozen inputs.
        tolerance: what counts as no change.

    Returns:
        One sentence or two for each collapse; empty when all is well.

    Example:
        >>> collapses(pstn.nn.mnist_stn(), torch.rand(16, 1, 28, 28))[0][:38]
        'The transformation is the identity for'
    """
    if not isinstance(model, TransformerModel):
        return []
    with evaluating(model), torch.no_grad():
        posterior = model.layer.localize(x)
    layer, loc = model.layer, posterior.mode
    found = []
    start = layer.transform.initial().to(loc)
    if float((loc - start).abs().max()) < tolerance:
        found.append(
            "The transformation is the identity for every input: the localizer has learned nothing. Try a larger "
            "localizer_factor, more samples, or a larger kl_weight."
        )
    corners = layer.transform.corners(loc)
    extent = (corners.amax(-2) - corners.amin(-2)).amax(-1) / 2
    if float(extent.median()) < 0.05:
        found.append(
            f"The scale has gone to nothing: the median input is read through {float(extent.median()):.3g} of its "
            "width. Try a smaller localizer_factor, transform='similarity-log', or fill= with the background's value."
        )
    if float(extent.median()) > 5:
        found.append(
            f"The transformation looks far outside: it spans {float(extent.median()):.3g} widths of the median input, "
            "mostly background. Try a smaller localizer_factor, or fill= with the background's value."
        )
    if isinstance(posterior, Posterior):
        found += _posterior_collapses(posterior)
    return found


def look_for_collapses(model: nn.Module, x: Tensor) -> list[str]:
    """`collapses` for trainers: an error is reported as a problem, as a warning must not stop a run."""
    try:
        return collapses(model, x)
    except Exception as error:
        return [f"The check for a collapsed transformation failed: {error}."]


def _posterior_collapses(posterior: Posterior) -> list[str]:
    scale, beta = float(posterior.scale.median()), float(posterior.beta.median())
    if scale < 1e-3:
        return [
            f"The posterior's variance has gone to nothing (median scale {scale:.2g}): samples no longer differ, and "
            "this is an STN. Try a larger kl_weight."
        ]
    if 0.8 < beta < 1.25 and float(posterior.beta.std()) < 0.1:
        return [
            f"The posterior is the prior (median beta {beta:.3g}): samples are as wild as before seeing any data. "
            "Try a smaller kl_weight."
        ]
    if scale > 1.5:
        return [
            f"The posterior is wider than the prior (median scale {scale:.3g}): most samples miss the input, and the "
            "classifier reads background. Try a smaller localizer_factor, a smaller var_init, or a smaller family."
        ]
    return []
