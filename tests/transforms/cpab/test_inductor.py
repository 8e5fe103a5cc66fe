"""CPAB with backend="inductor" agrees with plain torch."""

import shutil

import pytest
import torch
from torch.func import vmap

from pstn import CPAB
from pstn.transforms.cpab import inductor, plane


@pytest.fixture
def _uncompiled(monkeypatch):
    """The arithmetic that is compiled, run uncompiled: an equally exact check without minutes of compiling."""

    monkeypatch.setattr(plane, "_step", {"torch": plane.take_step, "inductor": inductor.take_step}.get)


def moved_and_gradients(family, theta, points):
    theta, points = theta.clone().requires_grad_(), points.clone().requires_grad_()
    moved = family.apply(theta, points)
    weights = torch.linspace(-1, 1, moved.numel(), dtype=moved.dtype).view(moved.shape)
    return moved.detach(), *torch.autograd.grad((moved * weights).sum(), (theta, points))


@pytest.mark.parametrize("zero_boundary", [True, False])
@pytest.mark.parametrize("scale", [0.1, 1.0, 3.0])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
@pytest.mark.usefixtures("_uncompiled")
def test_the_fused_step_agrees_with_the_plain_one(zero_boundary, scale, dtype, tolerance):
    torch.manual_seed(0)
    families = [CPAB((3, 3), zero_boundary=zero_boundary, backend=backend) for backend in ("torch", "inductor")]
    theta = (torch.randn(5, families[0].dim) * scale).to(dtype)
    points = (torch.rand(5, 200, 2) * 2.6 - 1.3).to(dtype)  # some of them outside
    for a, b in zip(*(moved_and_gradients(family, theta, points) for family in families), strict=True):
        torch.testing.assert_close(b, a, rtol=30 * tolerance, atol=tolerance * a.abs().max().item())


@pytest.mark.parametrize(("seed", "start"), [(31, (-0.107759, -0.640544)), (25, (0.0860735366, -0.112683402))])
@pytest.mark.usefixtures("_uncompiled")
def test_the_fused_step_agrees_with_the_plain_one_near_a_vertex(seed, start):
    """Where two edges are crossed almost at once, or one briefly; see the test against an integrator."""
    theta = 3 * torch.randn(34, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    plain, fused = (
        CPAB((3, 3), backend=backend).apply(theta, torch.tensor([start], dtype=torch.float64))
        for backend in ("torch", "inductor")
    )
    torch.testing.assert_close(fused, plain, rtol=0, atol=1e-10)


@pytest.mark.parametrize("backend", ["torch", "inductor"])
@pytest.mark.usefixtures("_uncompiled")
def test_derivatives_of_an_extreme_theta_are_limited(backend, monkeypatch):
    monkeypatch.setattr(plane, "MAX_STEPS", 150)
    theta = torch.randn(2, 34, generator=torch.Generator().manual_seed(0), dtype=torch.float64).float() * 1e3
    corners = torch.tensor([[-1.0, -1.0], [1.0, -1.0], [1.0, 1.0], [-1.0, 1.0]])  # fixed points, some of them repelling
    points = corners.repeat(2, 1, 1).requires_grad_()
    moved = CPAB((3, 3), backend=backend).apply(theta.requires_grad_(), points)
    by_point, by_theta = torch.autograd.grad(moved[..., 0].sum(), (points, theta))
    assert by_point.abs().max() == plane.HUGE
    assert by_theta.isfinite().all()


def test_another_device_is_refused():
    with pytest.raises(ValueError, match=r'^backend="inductor"'):
        CPAB((3, 3), backend="inductor").apply(torch.zeros(34, device="meta"), torch.zeros(4, 2, device="meta"))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch's CPU compiler needs a C++ compiler")
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")  # by torch's compiler itself
@pytest.mark.parametrize("tess", [10, (3, 3), (2, 3)])
def test_compiled_agrees_with_plain_torch(tess):
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    torch.manual_seed(0)
    plain, compiled = (CPAB(tess, backend=backend) for backend in ("torch", "inductor"))
    counters.clear()
    points = torch.rand(70, plain.ndim) * 2 - 1
    for batch in (20, 33):
        theta = torch.randn(batch, plain.dim)
        expected = moved_and_gradients(plain, theta, points)
        for value, fast in zip(expected, moved_and_gradients(compiled, theta, points), strict=True):
            assert torch.allclose(fast, value, rtol=1e-3, atol=1e-4 * value.abs().max().item())
    assert counters["stats"]["unique_graphs"] > 0
    assert not counters["graph_break"]
    with torch.inference_mode():
        assert torch.allclose(compiled.apply(theta, points), expected[0], atol=1e-5)
    assert torch.allclose(vmap(lambda t: compiled.apply(t, points))(theta), expected[0], atol=1e-5)
    whole = torch.compile(lambda t: compiled.apply(t, points), fullgraph=True, backend="aot_eager")
    assert torch.allclose(whole(theta), expected[0], atol=1e-5)
