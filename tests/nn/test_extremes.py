"""Extreme samples leave the loss and every gradient finite."""

from pathlib import Path

import pytest
import torch
from torch import nn

import pstn
from families import FAMILIES

ENDS = [0.0, 1e-45, 2**-24, 0.5, 1 - 2**-24, 1.0]


def model_with_scale(family, scale):
    """A classifier whose posterior has the given scale, for inputs of 9 along each axis."""
    inverse_softplus = scale**2 + torch.log(-torch.expm1(-torch.tensor(float(scale) ** 2, dtype=torch.float64))).item()
    posterior = pstn.StudentT(alpha=1.0, var_init=inverse_softplus)
    layer = pstn.SpatialTransformer(family, nn.Flatten(), features=2 * 9**family.ndim, posterior=posterior)
    return pstn.PSTN(layer, nn.Sequential(nn.Flatten(), nn.Linear(2 * 9**family.ndim, 3)))


def family_of_the_docs():
    """The family that docs/adding-a-family.md writes: what readers copy must survive too."""
    page = (Path(__file__).parents[2] / "docs" / "adding-a-family.md").read_text(encoding="utf-8")
    names = {"__name__": "__main__"}
    exec(page.split("```python\n")[1].split("```")[0], names)
    return names["Box"]()


@pytest.mark.parametrize("family", [*FAMILIES.values(), family_of_the_docs()], ids=[*FAMILIES.keys(), "docs"])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3, 1e6])
@pytest.mark.parametrize("autocast", [False, True], ids=["fp32", "bf16"])
def test_extreme_draws_stay_finite(family, scale, autocast):
    model = model_with_scale(family, scale)
    x, y = torch.randn(2, 2, *[9] * family.ndim), torch.tensor([0, 2])
    noise = torch.tensor(ENDS).reshape(-1, 1, 1).expand(-1, 2, family.dim)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        p = model(x, noise=noise)
        loss = pstn.elbo_loss(p, y, kl_weight=1e-3)
    loss.backward()
    assert p.theta.dtype == torch.float32
    assert p.posterior.scale.min().item() == pytest.approx(scale, rel=0.01)
    assert p.theta.isfinite().all()
    assert loss.isfinite()
    for name, parameter in model.named_parameters():
        assert parameter.grad.isfinite().all(), name


def test_a_variance_head_at_the_bottom_stays_finite_and_can_come_back():
    layer = pstn.SpatialTransformer(pstn.Similarity(), nn.Flatten(), features=81, var_init=-200.0)
    out = layer(torch.rand(2, 1, 9, 9))
    loss = out.posterior.kl().mean()
    loss.backward()
    assert loss.isfinite()
    assert layer.variance_head.last.bias.grad.isfinite().all()
    rising = pstn.SpatialTransformer(pstn.Similarity(), nn.Flatten(), features=81, var_init=-25.0)
    rising(torch.rand(2, 1, 9, 9)).posterior.kl().mean().backward()
    assert (rising.variance_head.last.bias.grad < -1).all()
