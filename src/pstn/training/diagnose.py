"""Diagnosis of training that fails: where a NaN came from, and the known ways to collapse."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from pstn._checks import skip_value_checks
from pstn.distributions import Posterior
from pstn.nn.classifier import TransformerModel
from pstn.nn.modes import evaluating
from pstn.training.population.group import Group
from pstn.training.population.stacking import view_rows
from pstn.training.population.step import model_losses

__all__ = ["collapses", "diagnose", "look_for_collapses"]


def diagnose(group: Group, row: int, step: int, loss: float) -> str:
    """Take the step at which a model broke once more, without its update, and say which part is not finite.

    A broken model's weights are those before the step, and its noise is a function of the step: the same numbers come
    out again. An error in the diagnosis is reported, not raised: the other models keep training.

    Args:
        group: the group that the model belongs to.
        row: its place there.
        step: the step at which it broke.
        loss: the loss that it had there.
    """
    try:
        return _repeat(group, row, step, loss)
    except Exception as error:
        return f"Repeating the step raised: {error}."


def _repeat(group: Group, row: int, step: int, loss: float) -> str:
    noise = group.draw(step, 1).step(0)
    module, params = group.template.module, {k: v[row] for k, v in view_rows(group.stack, group.state.rows).items()}
    bad = [name for name, value in params.items() if not bool(torch.isfinite(value).all())]
    if bad:
        return f"The parameter {bad[0]} was not finite before the step."
    seen: dict[str, Tensor] = {}
    parts = _named_parts(module)
    hooks = [part.register_forward_hook(_keeper(seen, name)) for name, part in parts.items()]
    constants, grads = (
        group.constants,
        torch.func.grad(model_losses(group.template, group.stack, group.recipe), has_aux=True),
    )
    kl_weight = constants.kl_weight if noise.kl_weight is None else noise.kl_weight
    try:
        for part in range(group.recipe.accumulate):
            index = noise.examples[row, part]
            theta = None if noise.theta is None else noise.theta[row, part]
            augment = None if noise.augment is None else noise.augment[row, part]
            seen.clear()
            found, _ = grads(
                params, [b[row].clone() for b in group.state.buffers], [f[row] for f in constants.frozen],
                constants.shared, constants.x[index], constants.y[index],
                [w[index] for w in constants.weights], kl_weight[row], theta,
                [u[row, part] for u in noise.dropout], augment,
            )  # fmt: skip
            report = _explain(module, seen, found)
            if report:
                return report
    finally:
        for hook in hooks:
            hook.remove()
    reason = "the loss exceeded its limit" if loss >= group.recipe.loss_limit else "its gradient's norm overflowed"
    return f"{_theta_report(module, seen)} Every value was finite when the step was repeated: {reason}."


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


def _explain(module: nn.Module, seen: dict[str, Tensor], grads: dict[str, Tensor]) -> str:
    for name, value in seen.items():
        if not bool(torch.isfinite(value).all()):
            return f"The first part with values that are not finite: the {name}. {_theta_report(module, seen)}"
    for name, grad in grads.items():
        if not bool(torch.isfinite(grad).all()):
            return f"The forward pass was finite, the gradient of {name} was not. {_theta_report(module, seen)}"
    return ""


def _theta_report(module: nn.Module, seen: dict[str, Tensor]) -> str:
    if not isinstance(module, TransformerModel) or not all(f"{h} head" in seen for h in module.layer.heads):
        return ""
    layer = module.layer
    heads = {name: seen[f"{name} head"].flatten(0, -2) for name in layer.heads}
    with skip_value_checks(), torch.no_grad():
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
