"""CPAB under vmap, torch.func, autocast, compile, export and ONNX."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, jacrev, stack_module_state, vmap

from pstn import CPAB

CASES = [(CPAB(tess=10), 20), (CPAB(tess=6, zero_boundary=False), 20), (CPAB(tess=(3, 3)), (5, 6))]
CHECKS = ("test_schema", "test_faketensor")
every_case = pytest.mark.parametrize(("transform", "size"), CASES, ids=[str(transform) for transform, _ in CASES])


class Grid(nn.Module):
    def __init__(self, transform, size):
        super().__init__()
        self.transform, self.size = transform, size

    def forward(self, theta):
        return self.transform.grid(theta, self.size)


def draw(transform, *lead):
    return torch.randn(*lead, transform.dim, generator=torch.Generator().manual_seed(0)) * 0.5


@every_case
def test_vmap(transform, size):
    theta, points = draw(transform, 4), torch.rand(4, 7, transform.ndim) * 2 - 1
    assert torch.equal(vmap(lambda t: transform.grid(t, size))(theta), transform.grid(theta, size))
    assert torch.equal(vmap(transform.apply)(theta, points), transform.apply(theta, points))
    assert torch.equal(vmap(transform.apply, (0, None))(theta, points[0]), transform.apply(theta, points[0]))
    assert torch.equal(vmap(transform.apply, (None, 0))(theta[0], points), transform.apply(theta[0], points))


@every_case
def test_gradients_under_vmap(transform, size):
    def loss(theta, points):
        return transform.apply(theta, points).square().sum()

    theta, points = draw(transform, 4).requires_grad_(), (torch.rand(4, 7, transform.ndim) * 2 - 1).requires_grad_()
    by_theta, by_points = torch.autograd.grad(loss(theta, points), (theta, points))
    one_by_one = vmap(grad(loss, argnums=(0, 1)))(theta.detach(), points.detach())
    assert torch.allclose(one_by_one[0], by_theta, atol=1e-6)
    assert torch.allclose(one_by_one[1], by_points, atol=1e-6)
    jacobian = jacrev(lambda t: transform.apply(t, points[0].detach()))(theta[0].detach())  # (7, ndim, D)
    moved = transform.apply(theta[0], points[0]).detach()
    assert torch.allclose((2 * moved[..., None] * jacobian).sum((0, 1)), by_theta[0], atol=1e-4)


@every_case
@pytest.mark.parametrize("power", [1, 2])  # of the loss: the incoming gradient depends on theta, or does not
def test_a_second_derivative_is_refused(transform, size, power):
    theta = draw(transform, 2).requires_grad_()
    loss = transform.grid(theta, size).pow(power).sum()
    (expected,) = torch.autograd.grad(loss, theta, retain_graph=True)
    (again,) = torch.autograd.grad(loss, theta, create_graph=True)
    assert torch.equal(again, expected)
    with pytest.raises(NotImplementedError, match="first derivatives only"):
        torch.autograd.grad(again.sum(), theta, retain_graph=True, allow_unused=True)
    with pytest.raises(NotImplementedError, match="first derivatives only"):
        (again.sum() + theta.sum()).backward()


@every_case
def test_the_gradient_of_no_points_is_empty(transform, size):
    theta, points = draw(transform, 3).requires_grad_(), torch.rand(0, transform.ndim, requires_grad=True)
    transform.apply(theta, points).sum().backward()
    assert points.grad.shape == points.shape
    assert torch.equal(theta.grad, torch.zeros_like(theta))


@every_case
def test_vmap_over_models(transform, size):
    models = [Grid(transform, size) for _ in range(3)]
    parameters, buffers = stack_module_state(models)
    theta = draw(transform, 3, 4)
    together = vmap(lambda p, b, t: functional_call(models[0], (p, b), (t,)))(parameters, buffers, theta)
    assert torch.allclose(together, transform.grid(theta, size), atol=1e-6)


@every_case
def test_autocast_does_not_round_coordinates(transform, size):
    theta = draw(transform, 4)
    expected = transform.grid(theta, size)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(transform.grid(theta, size), expected)
        assert transform.grid(theta.bfloat16(), size).dtype == torch.float32


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # inductor's own
@every_case
def test_compile(transform, size):
    torch._dynamo.reset()
    theta = draw(transform, 4).requires_grad_()
    points = (torch.rand(4, 7, transform.ndim) * 2 - 1).requires_grad_()
    for call, inputs in ((lambda t: transform.grid(t, size), (theta,)), (transform.apply, (theta, points))):
        expected = call(*inputs)
        gradients = torch.autograd.grad(expected.square().sum(), inputs)
        compiled = torch.compile(call, fullgraph=True)(*inputs)
        assert torch.allclose(compiled, expected, atol=1e-6)
        for again, gradient in zip(torch.autograd.grad(compiled.square().sum(), inputs), gradients, strict=True):
            assert torch.allclose(again, gradient, atol=1e-4)
    mapped = torch.compile(vmap(lambda t: transform.grid(t, size)), fullgraph=True)(theta)
    assert torch.allclose(mapped, transform.grid(theta, size), atol=1e-6)


def test_the_fake_operators_match_the_real_ones():
    """Shapes, strides and dtypes of what it returns, and that it changes nothing it is given."""
    transform = CPAB(tess=(2, 3))
    theta, points = draw(transform, 4, 2), torch.rand(5, 2) * 2 - 1
    for own in (points, points.expand(4, 2, 5, 2).contiguous()):
        settings = (2, 3, True, True, "torch")
        moved, *kept = torch.ops.pstn.cpab_plane(theta, transform._nodal, own, *settings)
        for jacobian in (True, False):
            inputs = (theta, transform._nodal, own, 2, 3, True, jacobian, "torch")
            torch.library.opcheck(torch.ops.pstn.cpab_plane, inputs, test_utils=CHECKS)
        for asked in ((True, True), (True, False), (False, True)):
            inputs = (torch.randn_like(moved), *kept, transform._nodal, own, *asked, *settings)
            torch.library.opcheck(torch.ops.pstn.cpab_plane_pull, inputs, test_utils=CHECKS)


@pytest.mark.slow
@every_case
def test_export(transform, size):
    theta = draw(transform, 4)
    program = torch.export.export(Grid(transform, size), (theta,))
    assert torch.allclose(program.module()(theta), transform.grid(theta, size), atol=1e-6)
