"""The Triton kernels against plain torch, through Triton's interpreter where there is no GPU."""

import os
import subprocess
import sys

import pytest
import torch

triton = pytest.importorskip("triton")

# Triton decides when a kernel is defined whether to interpret it, so the kernels are tested in a separate process.
SCRIPT = """
import torch
from pstn import CPAB
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.fx.experimental.proxy_tensor import make_fx

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)

def close(a, b, tolerance):
    assert torch.isfinite(b).all()
    error = ((a - b).abs() / (1 + b.abs())).max().item()
    assert error < tolerance, error

def pair(settings):
    return [CPAB(**settings, backend=backend).to(device) for backend in ("triton", "torch")]

def compare(settings, scale, count, seed):
    fast, plain = pair(settings)
    generator = torch.Generator().manual_seed(seed)
    theta = (torch.randn(2, fast.dim, generator=generator) * scale).to(device).requires_grad_()
    reach = 1.0 if fast.zero_boundary else 1.2
    points = ((2 * torch.rand(2, count, fast.ndim, generator=generator) - 1) * reach).to(device)
    points[:, 0] = 1 / 3
    for p in (points, points[0]):  # every theta its own points, and points shared by all
        p = p.clone().requires_grad_()
        weight = torch.randn(2, count, fast.ndim, generator=generator).to(device)
        a, b = fast.apply(theta, p), plain.apply(theta, p)
        close(a, b, 1e-5)
        for x, y in zip(torch.autograd.grad(a, (theta, p), weight), torch.autograd.grad(b, (theta, p), weight)):
            close(x, y, 1e-4)

def corner():
    # Close to a vertex, where two edges are crossed almost at once, or one briefly.
    for seed, start in ((31, (-0.107759, -0.640544)), (25, (0.0860735366, -0.112683402))):
        theta = 3 * torch.randn(34, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        start = torch.tensor([start], dtype=torch.float64)
        moved = CPAB((3, 3), backend="triton").to(device).apply(theta.float().to(device), start.float().to(device))
        close(moved.cpu().double(), CPAB((3, 3)).apply(theta, start), 1e-6)

def extreme():
    # Finite under an extreme theta, with the derivative of plain torch, also where nothing moves: at the ends.
    fast, plain = pair({"tess": 10})
    for scale in (5.0, 100.0):
        theta = (torch.randn(6, fast.dim) * scale).to(device).requires_grad_()
        points = torch.linspace(-1, 1, 21, device=device)[:, None].requires_grad_()
        by_theta, by_point = torch.autograd.grad(fast.apply(theta, points).sum(), (theta, points))
        assert by_theta.isfinite().all() and by_point.isfinite().all()
        (expected,) = torch.autograd.grad(plain.apply(theta, points).sum(), points)
        close(by_point[0], expected[0], 1e-4)

def batch(settings):
    fast, plain = pair(settings)
    theta = (torch.randn(2, 2, fast.dim) * 0.3).to(device)
    points = (torch.rand(2, 5, fast.ndim) * 2 - 1).to(device)
    close(vmap(fast.apply)(theta, points), vmap(plain.apply)(theta, points), 1e-5)
    close(vmap(fast.apply, (0, None))(theta, points[0]), plain.apply(theta, points[0]), 1e-5)
    loss = lambda t, p: fast.apply(t, p).square().sum()
    other = lambda t, p: plain.apply(t, p).square().sum()
    for x, y in zip(vmap(grad(loss, (0, 1)))(theta, points), vmap(grad(other, (0, 1)))(theta, points)):
        close(x, y, 1e-4)
    models = [CPAB(**settings, backend="triton").to(device) for _ in range(2)]
    parameters, buffers = stack_module_state(models)
    call = lambda p, b, t: functional_call(models[0], (p, b), (t, points[0]))
    models[0].forward = models[0].apply
    close(vmap(call)(parameters, buffers, theta), plain.apply(theta, points[0]), 1e-5)

def traced(settings, size):
    # A trace contains the kernels: it is valid at another theta too, for one model and under vmap.
    family = CPAB(**settings, backend="triton").to(device)
    loss = lambda t: family.grid(t, size).square().sum()
    theta = (torch.randn(3, family.dim) * 0.3).to(device)
    def alone(theta):
        theta = theta.detach().requires_grad_()
        return torch.autograd.grad(loss(theta), theta)[0]
    for function in (alone, vmap(grad(loss))):
        program = make_fx(function)(theta)
        close(program(2 * theta), function(2 * theta), 1e-6)

def spread_nan(settings):
    # NaN in a theta or in a point affects nothing else.
    fast = CPAB(**settings, backend="triton").to(device)
    theta, points = torch.full((2, fast.dim), 0.1, device=device), (torch.rand(5, fast.ndim) - 0.5).to(device)
    expected = fast.apply(theta, points)
    theta[0], points[2] = float("nan"), float("nan")
    moved = fast.apply(theta, points)
    assert moved[0].isnan().all() and moved[1, 2].isnan().all()
    assert torch.equal(moved[1, [0, 1, 3, 4]], expected[1, [0, 1, 3, 4]])

def nest(settings):
    # Samples of several models whose bases differ: vmap over the samples of vmap over the models.
    models = [CPAB(**settings, backend="triton").to(device) for _ in range(3)]
    with torch.no_grad():
        for sign, model in zip((1, -1, 2), models):
            for buffer in model.buffers(): buffer.mul_(sign)
    parameters, buffers = stack_module_state(models)
    theta = (torch.randn(2, 3, 4, models[0].dim) * 0.2).to(device)
    points = (torch.rand(5, models[0].ndim) - 0.5).to(device)
    models[0].forward = models[0].apply
    call = lambda p, b, t: functional_call(models[0], (p, b), (t, points))
    got = vmap(lambda t: vmap(call)(parameters, buffers, t))(theta)
    signs = torch.tensor([1.0, -1.0, 2.0], device=device)[:, None, None]
    close(got, CPAB(**settings, backend="torch").to(device).apply(theta * signs, points), 1e-5)
"""

CASES = {
    "line": """
for scale, count in ((0.0, 5), (0.3, 40), (3.0, 270), (30.0, 40)): compare({"tess": 10}, scale, count, 1)
for scale in (0.3, 3.0): compare({"tess": 7, "zero_boundary": False}, scale, 40, 2)
extreme()
batch({"tess": 6})
nest({"tess": 5})
spread_nan({"tess": 5})
spread_nan({"tess": 5, "zero_boundary": False})
""",
    "plane": """
for scale in (0.0, 1.0): compare({"tess": (3, 3)}, scale, 30, 3)
compare({"tess": (2, 1), "zero_boundary": False}, 1.0, 30, 4)
spread_nan({"tess": (2, 2)})
corner()
""",
    "batched plane": 'batch({"tess": (2, 2)})',
    "traced": 'traced({"tess": 5}, (7,)); traced({"tess": (2, 1)}, (3, 2))',
}


def run(script, **environment):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_kernels_agree_with_plain_torch(name):
    interpreter = {} if torch.cuda.is_available() else {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    run(SCRIPT + CASES[name], **os.environ | interpreter)


# A driver that compiles for an H200 and records what it would launch.
LAUNCHES = """
import sys
import torch, triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

launched = []

class Utilities:
    def load_binary(self, *_): return 1, 1, 32, 0, 1024
    def unload_module(self, *_): pass
    def get_device_properties(self, _): return {"max_shared_mem": 232448}

class Launch:
    def __init__(self, source, metadata): self.name = metadata.name
    def __call__(self, x, y, z, stream, function, packed, metadata, enter, leave, *arguments):
        launched.append((self.name, (x, y, z), arguments))

class Driver:
    utils, launcher_cls = Utilities(), Launch
    def get_current_device(self): return 0
    def get_current_stream(self, _): return 0
    def get_current_target(self): return GPUTarget("cuda", 90, 32)

driver.set_active(Driver())
looked_up = []
look_up = triton.JITFunction.run
triton.JITFunction.run = lambda self, *a, **k: looked_up.append(self.__name__) or look_up(self, *a, **k)

from pstn import CPAB
from pstn.transforms.cpab import transform

CPAB(tess=5).grid(torch.zeros(4), 6)
assert not any(name.startswith("pstn.transforms.cpab.triton.") for name in sys.modules)  # imported on first use

transform.kernels_available = lambda _: True
memory = torch.zeros(33 * 34 + 1)
for tess, sizes in ((10, (130, 131, 140)), ((3, 3), ((3, 4), (5, 6), (1500, 1500)))):
    family = CPAB(tess=tess, backend="triton")
    for thetas, size in zip((16, 33, 1), sizes):
        # Offset by one number: neither alignment nor divisibility may require another version.
        theta = memory[1 : 1 + thetas * family.dim].view(thetas, family.dim).requires_grad_()
        with torch.set_grad_enabled(size != (1500, 1500)):
            grid = family.grid(theta, size)
        if grid.requires_grad: grid.sum().backward()
        name, programs, arguments = launched[-1]
        assert name == ("_backward" if grid.requires_grad else "_forward"), name
        assert programs[1:] == (1, 1), programs  # the other axes have low limits
        assert grid[0].numel() // family.ndim in [a for a in arguments if isinstance(a, int)], arguments
        memory = memory.detach()
assert len(launched) == 11, len(launched)
# Forward and backward on the line; in the plane, forward also without a Jacobian.
assert sorted(looked_up) == ["_backward"] * 2 + ["_forward"] * 3, looked_up
"""


@pytest.mark.slow
def test_kernels_are_imported_on_use_and_compiled_once_per_set_of_constants():
    run(LAUNCHES, **{name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"})


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is there")
def test_a_forced_kernel_without_a_gpu_is_refused(monkeypatch):
    from pstn import CPAB

    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ValueError, match=r'^backend="triton"'):
        CPAB(tess=5, backend="triton").grid(torch.zeros(4), 6)
