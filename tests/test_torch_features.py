"""Everything that people do to a torch module works on this one: a test each."""

import copy
import datetime
import os
import shutil
import sys

import pytest
import torch
import torch.multiprocessing
from torch import nn
from torch.func import functional_call, grad, stack_module_state, vmap

import pstn
from shared_models import moved

MODELS = {"pstn": pstn.nn.mnist_pstn, "stn": pstn.nn.mnist_stn}
every_model = pytest.mark.parametrize("make", MODELS.values(), ids=MODELS.keys())


def batch(size=3):
    return torch.rand(size, 1, 28, 28), torch.arange(size)


class Tensors(nn.Module):
    """The model as a function from tensors to tensors, as exporters want it."""

    def __init__(self, model):
        super().__init__()
        self.model = model
        self.eval()

    def forward(self, x, noise):
        p = self.model(x, noise=noise)
        return p.log_probs, p.theta


@every_model
def test_bf16_autocast(make):
    model, (x, y) = moved(make()), batch()
    noise = torch.rand(4, 3, 4)
    expected = model.eval()(x, noise=noise)
    with torch.autocast("cpu", torch.bfloat16):
        p = model(x, noise=noise)
        loss = pstn.elbo_loss(p, y, kl_weight=1e-3)
    loss.backward()
    assert p.theta.dtype == p.log_probs.dtype == torch.float32
    torch.testing.assert_close(p.theta, expected.theta, rtol=0.05, atol=0.05)
    torch.testing.assert_close(p.log_probs, expected.log_probs, rtol=0.1, atol=0.1)
    assert all(q.grad.isfinite().all() for q in model.parameters())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes(dtype):
    model = pstn.nn.mnist_pstn().to(dtype)
    p = model(batch()[0].to(dtype))
    assert p.theta.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    pstn.elbo_loss(p, batch()[1], kl_weight=1e-3).backward()


@pytest.fixture(autouse=True)
def fresh_compiler():
    """Every test compiles for itself: torch gives up on a function of which it has compiled eight kinds."""
    yield
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch's CPU compiler needs a C++ compiler")
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")  # torch, of itself
@pytest.mark.parametrize(
    ("kind", "backend", "chunk_size"),
    [("pstn", "inductor", None), ("pstn", "aot_eager", 2), ("stn", "aot_eager", None)],
)
def test_compiles_as_one_graph(kind, backend, chunk_size):
    model = moved(MODELS[kind]()).eval()
    model.chunk_size = chunk_size
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=backend)
    for size in (3, 5):
        x, y = batch(size)
        noise = torch.rand(4, size, 4)
        eager, fast = (pstn.elbo_loss(call(x, noise=noise), y, kl_weight=1e-3) for call in (model, compiled))
        torch.testing.assert_close(fast, eager, rtol=1e-4, atol=1e-5)
        gradients = (torch.autograd.grad(loss, [*model.parameters()]) for loss in (fast, eager))
        torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_a_layer_with_options_compiles_as_one_graph():
    options = {"features": 192, "var_init": -1.0, "precision": "per-input", "alpha": 1.5, "fill": (0.1, 0.2, 0.3)}
    layer = moved(pstn.SpatialTransformer(pstn.Similarity(), nn.Flatten(), **options))
    x, noise = torch.rand(4, 3, 8, 8), torch.rand(2, 4, 4)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True, dynamic=True)
    torch.testing.assert_close(compiled(x, 2, noise=noise).warped, layer(x, 2, noise=noise).warped)


@pytest.mark.slow
@pytest.mark.parametrize(("alpha", "sampling"), [(1.0, "iid"), (0.7, "antithetic")])
def test_compiles_when_it_draws_its_own_noise(alpha, sampling):
    localizer = pstn.nn.ConvLocalizer(1, (28, 28))
    layer = pstn.SpatialTransformer(pstn.Similarity(), localizer, alpha=alpha, sampling=sampling)
    model, (x, y) = pstn.PSTN(layer, pstn.nn.mnist_cnn()), batch()
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend="aot_eager")
    pstn.elbo_loss(compiled(x), y, kl_weight=1e-3).backward()
    assert compiled(x).theta.isfinite().all()
    noise = torch.rand(5, 3, 4)
    torch.testing.assert_close(compiled(x, noise=noise).theta, model(x, noise=noise).theta, rtol=1e-5, atol=1e-5)


@every_model
def test_torch_export(make):
    model = Tensors(moved(make()).eval())
    size = torch.export.Dim("batch", min=2)
    args = (batch(4)[0], torch.rand(6, 4, 4))
    samples = torch.export.Dim("samples", min=2)
    program = torch.export.export(model, args, dynamic_shapes=({0: size}, {0: samples, 1: size}))
    other = (batch(7)[0], torch.rand(9, 7, 4))
    torch.testing.assert_close(program.module()(*other), model(*other), rtol=1e-4, atol=1e-5)


def test_torch_export_of_the_whole_prediction(tmp_path):
    model = pstn.nn.mnist_pstn().eval()
    args, kwargs = (batch(4)[0],), {"noise": torch.rand(6, 4, 4)}
    torch.export.save(torch.export.export(model, args, kwargs), tmp_path / "model.pt2")
    exported = torch.export.load(tmp_path / "model.pt2").module()(*args, **kwargs)
    torch.testing.assert_close(exported.log_probs, model(*args, **kwargs).log_probs, rtol=1e-4, atol=1e-5)
    assert isinstance(exported.posterior, pstn.Posterior)


@every_model
@pytest.mark.parametrize("older_torch", [False, True])
@pytest.mark.parametrize("chunk_size", [None, 1])
def test_vmap_over_stacked_models(make, older_torch, chunk_size, monkeypatch):
    if older_torch:  # what torch before 2.13 needs must give the same everywhere
        monkeypatch.setattr(sys.modules["pstn.warping"], "_VMAP_WANTS_INPUT_GRADIENT", True)
    models = [moved(make()).eval() for _ in range(3)]
    parameters, buffers = stack_module_state(models)
    skeleton = copy.deepcopy(models[0]).to("meta")
    skeleton.chunk_size = chunk_size
    x, y = torch.rand(3, 5, 1, 28, 28), torch.arange(5)
    noise = torch.rand(3, 2, 5, 4)

    def loss(parameters, buffers, x, noise):
        p = functional_call(skeleton, (parameters, buffers), (x,), {"noise": noise})
        return pstn.elbo_loss(p, y, kl_weight=1e-3), p.log_probs

    gradients, log_probs = vmap(grad(loss, has_aux=True))(parameters, buffers, x, noise)
    for i, model in enumerate(models):
        p = model(x[i], noise=noise[i])
        torch.testing.assert_close(log_probs[i], p.log_probs, rtol=1e-4, atol=1e-5)
        model.zero_grad()
        pstn.elbo_loss(p, y, kl_weight=1e-3).backward()
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(gradients[name][i], parameter.grad, rtol=1e-3, atol=1e-5)


def test_made_on_the_meta_device_and_filled_later():
    model = moved(pstn.nn.mnist_pstn())
    with torch.device("meta"):
        empty = pstn.nn.mnist_pstn()
    empty.load_state_dict(model.state_dict(), assign=True)
    x, noise = batch()[0], torch.rand(2, 3, 4)
    torch.testing.assert_close(empty.eval()(x, noise=noise).log_probs, model.eval()(x, noise=noise).log_probs)


@every_model
def test_deepcopy_state_dict_and_channels_last(make, tmp_path):
    model, x, noise = moved(make()).eval(), batch()[0], torch.rand(4, 3, 4)
    expected = model(x, noise=noise).log_probs
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    fresh = make().eval()
    fresh.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True))
    assert torch.equal(fresh(x, noise=noise).log_probs, expected)
    last = copy.deepcopy(model).to(memory_format=torch.channels_last)
    p = last(x.contiguous(memory_format=torch.channels_last), noise=noise)
    torch.testing.assert_close(p.log_probs, expected, rtol=1e-4, atol=1e-5)


def _ddp_worker(rank, folder):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    meeting, patience = f"file://{folder}/meeting", datetime.timedelta(seconds=60)
    torch.distributed.init_process_group("gloo", meeting, timeout=patience, rank=rank, world_size=2)
    torch.manual_seed(0)
    model = moved(pstn.nn.mnist_pstn()).eval()
    parallel = nn.parallel.DistributedDataParallel(model)
    x, y, noise = torch.rand(6, 1, 28, 28), torch.arange(6), torch.rand(4, 6, 4)
    half = slice(3 * rank, 3 * rank + 3)
    pstn.elbo_loss(parallel(x[half], noise=noise[:, half]), y[half], kl_weight=1e-3).backward()
    if rank == 0:
        together = [p.grad.clone() for p in model.parameters()]
        model.zero_grad()
        pstn.elbo_loss(model(x, noise=noise), y, kl_weight=1e-3).backward()
        torch.testing.assert_close(together, [p.grad for p in model.parameters()], rtol=1e-4, atol=1e-6)
        (folder / "equal").touch()
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    os._exit(0)  # Gloo's threads may outlive the group, and a thread that runs at exit aborts the process.


@pytest.mark.slow
def test_two_processes_give_the_gradients_of_one(tmp_path):
    torch.multiprocessing.spawn(_ddp_worker, args=(tmp_path,), nprocs=2)
    assert (tmp_path / "equal").exists()
