"""CPAB with backend="inductor" agrees with plain torch."""

import shutil

import pytest
import torch
from torch.func import vmap

import pstn
from pstn.transforms.cpab import inductor, plane

FAMILIES = [(10, 50), ((3, 3), (9, 8)), ((2, 3), (7, 9))]


def families(tess, **options):
    return [pstn.CPAB(tess=tess, backend=backend, **options) for backend in ("torch", "inductor")]


def grid_and_gradient(family, theta, size):
    theta = theta.clone().requires_grad_()
    grid = family.grid(theta, size)
    (gradient,) = torch.autograd.grad((grid * torch.linspace(-1, 1, grid.numel()).view(grid.shape)).sum(), theta)
    return grid.detach(), gradient


@pytest.fixture
def fused_but_not_compiled(monkeypatch):
    """The arithmetic that is compiled, run uncompiled: an equally exact check without minutes of compiling."""
    monkeypatch.setattr(inductor, "compiled_step", lambda: inductor._take_step)


@pytest.mark.parametrize("zero_boundary", [True, False])
@pytest.mark.parametrize("scale", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.usefixtures("fused_but_not_compiled")
def test_the_fused_step_agrees_with_the_plain_one(zero_boundary, scale, dtype):
    torch.manual_seed(0)
    plain, fused = families((3, 3), zero_boundary=zero_boundary)
    theta = (torch.randn(5, plain.dim) * scale).to(dtype)
    points = (torch.rand(5, 200, 2) * 2.6 - 1.3).to(dtype).requires_grad_()  # some of them outside
    weights = torch.randn(5, 200, 2).to(dtype)
    results = []
    for family in (plain, fused):
        leaf = theta.clone().requires_grad_()
        moved = family.apply(leaf, points)
        results.append((moved.detach(), *torch.autograd.grad((moved * weights).sum(), (leaf, points))))
    tolerance = 1e-5 if dtype == torch.float32 else 1e-10
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(b, a, rtol=30 * tolerance, atol=tolerance * a.abs().max().item())


@pytest.mark.usefixtures("fused_but_not_compiled")
def test_the_fused_step_agrees_with_the_plain_one_near_a_vertex():
    """Where two edges are crossed almost at once; see the test against an integrator."""
    plain, fused = families((3, 3))
    theta = 3 * torch.randn(plain.dim, generator=torch.Generator().manual_seed(31), dtype=torch.float64)
    points = torch.tensor([[-0.107759, -0.640544]], dtype=torch.float64)
    torch.testing.assert_close(fused.apply(theta, points), plain.apply(theta, points), rtol=0, atol=1e-10)


@pytest.mark.usefixtures("fused_but_not_compiled")
def test_an_extreme_theta_stays_finite(monkeypatch):
    """Derivatives exceed float32, already after half as many steps as are allowed."""
    monkeypatch.setattr(plane, "MAX_STEPS", 250)
    family = pstn.CPAB(tess=(3, 3), backend="inductor")
    grid, gradient = grid_and_gradient(family, torch.randn(2, family.dim) * 1e3, (4, 4))
    assert grid.isfinite().all()
    assert gradient.isfinite().all()
    assert grid.abs().max() <= 1


def test_another_device_is_refused():
    family = pstn.CPAB(tess=(3, 3), backend="inductor")
    with pytest.raises(ValueError, match=r'^backend="inductor"'):
        family.apply(torch.zeros(34, device="meta"), torch.zeros(4, 2, device="meta"))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch's CPU compiler needs a C++ compiler")
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")  # by torch's compiler itself
@pytest.mark.parametrize(("tess", "size"), FAMILIES)
def test_compiled_agrees_with_plain_torch(tess, size):
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    torch.manual_seed(0)
    plain, compiled = families(tess)
    counters.clear()
    for batch in (20, 33):
        theta = torch.randn(batch, plain.dim)
        (grid, gradient), (fast, fast_gradient) = (grid_and_gradient(f, theta, size) for f in (plain, compiled))
        assert torch.allclose(fast, grid, atol=1e-5)
        assert torch.allclose(fast_gradient, gradient, rtol=1e-3, atol=1e-4 * gradient.abs().max().item())
    assert counters["stats"]["unique_graphs"] > 0
    assert not counters["graph_break"]
    with torch.inference_mode():
        assert torch.allclose(compiled.grid(theta, size), grid, atol=1e-5)
    assert torch.allclose(vmap(lambda t: compiled.grid(t, size))(theta), grid, atol=1e-5)
    whole = torch.compile(lambda t: compiled.grid(t, size), fullgraph=True, backend="aot_eager")
    assert torch.allclose(whole(theta), grid, atol=1e-5)
