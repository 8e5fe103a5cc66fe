"""What only a GPU can show: run where there is one, skipped elsewhere."""

import copy

import pytest
import torch

import pstn

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def make(alpha=1.0, **options):
    layer = pstn.SpatialTransformer(
        pstn.Similarity(), pstn.nn.ConvLocalizer(1, (28, 28)), size=(28, 28), alpha=alpha, **options
    )
    return pstn.PSTN(layer, pstn.nn.ConvClassifier(1, (28, 28), classes=10, dropout=0.0))


def batch(size=8):
    return torch.rand(size, 1, 28, 28), torch.arange(size) % 10, torch.rand(4, size, 4)


def test_equals_the_cpu():
    model, (x, y, noise) = make().double(), batch()
    on_gpu = copy.deepcopy(model).cuda()
    loss = pstn.elbo_loss(model(x.double(), noise=noise.double()), y, kl_weight=1e-3)
    loss.backward()
    gpu_loss = pstn.elbo_loss(on_gpu(x.cuda().double(), noise=noise.cuda().double()), y.cuda(), kl_weight=1e-3)
    gpu_loss.backward()
    torch.testing.assert_close(gpu_loss.cpu(), loss)
    for ours, theirs in zip(model.parameters(), on_gpu.parameters(), strict=True):
        torch.testing.assert_close(theirs.grad.cpu(), ours.grad, rtol=1e-6, atol=1e-8)


def test_a_generator_of_the_cpu_gives_the_cpus_samples():
    q = pstn.Posterior(torch.zeros(3, 4), torch.ones(3, 4))
    on_gpu = pstn.Posterior(q.loc.cuda(), q.beta.cuda())
    for method in ("iid", "antithetic", "sobol"):
        draws = [p.rsample(8, method=method, generator=torch.Generator().manual_seed(1)).cpu() for p in (q, on_gpu)]
        torch.testing.assert_close(*draws)
        assert on_gpu.rsample(8, method=method, generator=torch.Generator("cuda").manual_seed(1)).is_cuda


def test_tf32_does_not_round_coordinates():
    family, theta = pstn.Similarity(), torch.randn(64, 4)
    expected = family.grid(theta.double(), (64, 64))
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        grid = family.grid(theta.cuda(), (64, 64)).cpu().double()
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False
    torch.testing.assert_close(grid, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"alpha": 1.5, "fill": (0.3,)}, {"sampling": "antithetic"}])
def test_a_training_step_is_captured_as_a_graph(options):
    model = make(**options).cuda()
    x, y = (t.cuda() for t in batch()[:2])
    optimiser = torch.optim.Adam(model.parameter_groups(lr=1e-3), capturable=True)

    def step():
        optimiser.zero_grad(set_to_none=True)
        loss = pstn.elbo_loss(model(x), y, kl_weight=1e-3)
        loss.backward()
        optimiser.step()
        return loss

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()
    losses = []
    for _ in range(50):
        graph.replay()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert len(set(losses)) > 40


def test_cpab_on_the_line_is_deterministic():
    """Its kernel adds up in a fixed order, and is used where torch may use nothing else."""
    family = pstn.CPAB(tess=10).cuda()
    theta = (torch.randn(300, 9, generator=torch.Generator().manual_seed(0)) * 0.5).cuda().requires_grad_()

    def gradient():
        return torch.autograd.grad(family.grid(theta, 1000).square().sum(), theta)[0]

    free = gradient()
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.equal(gradient(), free)
    finally:
        torch.use_deterministic_algorithms(False)
