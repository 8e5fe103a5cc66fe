"""Convolutions of stacked models as matrix products."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from pstn.training import Population
from pstn.training.population.convolution import BlockConv, MatmulConv, stand_in
from small_models import CASES, TOLERANCE, largest_difference, seeded

BY_ROWS = [nn.Conv2d(2, 3, 5), nn.Conv2d(2, 3, (4, 3), padding=(0, 2))]
BY_PATCHES_ALONE = [
    nn.Conv2d(2, 3, (3, 4), stride=2, padding=1, bias=False),
    nn.Conv1d(2, 3, 8, padding="same"),
    nn.Conv1d(2, 3, 3, padding="valid"),
]


@pytest.mark.parametrize(
    ("conv", "kind"),
    [*((conv, "matmul") for conv in BY_ROWS + BY_PATCHES_ALONE), *((conv, "rows") for conv in BY_ROWS)],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:Using padding='same'")  # torch's remark that an even kernel copies its input
def test_convolution_as_a_matrix_product_is_the_same(conv, kind):
    torch.manual_seed(0)
    x = torch.randn(3, 4, 2, *[11] * (conv.weight.dim() - 2))
    stacked = {k: torch.stack([p.detach() + i for i in range(3)]) for k, p in conv.named_parameters()}

    def loss(module):
        return lambda p, x: functional_call(module, p, (x,)).sin().sum()

    expected = vmap(grad(loss(conv), argnums=(0, 1)))(stacked, x)
    found = vmap(grad(loss(MatmulConv(conv, kind)), argnums=(0, 1)))(stacked, x)
    for name in stacked:
        torch.testing.assert_close(found[0][name], expected[0][name], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(found[1], expected[1], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("side", [2, 3, 4])
@pytest.mark.parametrize(
    "conv",
    [
        nn.Conv2d(1, 3, 5),
        nn.Conv2d(1, 3, 7, bias=False),
        nn.Conv2d(1, 2, (4, 1)),
        nn.Conv2d(3, 2, (1, 9)),
        nn.Conv2d(2, 3, 5),
    ],
    ids=str,
)
def test_a_convolution_of_blocks_is_the_same(conv, side):
    torch.manual_seed(0)
    conv = conv.double()
    for size in ((16, 16), (13, 18)):
        x = torch.randn(4, conv.in_channels, *size, dtype=torch.float64).requires_grad_()
        wanted = [x, *conv.parameters()]
        for module in (conv, BlockConv(conv, side)):
            assert module(x).shape == (
                4,
                conv.out_channels,
                *[n - k + 1 for n, k in zip(size, conv.kernel_size, strict=True)],
            )
        expected, found = (torch.autograd.grad(m(x).sin().sum(), wanted) for m in (conv, BlockConv(conv, side)))
        torch.testing.assert_close(found, expected)


class Doubled(nn.Conv2d):
    def forward(self, x):
        return 2 * super().forward(x)


def test_each_kind_is_for_some_convolutions_only():
    assert all(isinstance(stand_in(nn.Conv2d(few, 3, 5), "blocks"), BlockConv) for few in (1, 16))
    for conv in (*BY_PATCHES_ALONE, nn.Conv2d(17, 3, 5), nn.Conv2d(1, 3, 5, stride=2), nn.Conv2d(1, 3, 5, padding=1)):
        assert stand_in(conv, "blocks") is None
    assert all(isinstance(stand_in(conv, "rows"), MatmulConv) for conv in BY_ROWS)
    assert not any(stand_in(conv, "rows") for conv in BY_PATCHES_ALONE)
    assert not any(stand_in(Doubled(1, 3, 5), kind) for kind in ("matmul", "rows", "blocks"))


def test_convolution_by_rows_takes_shared_weights_and_unstacked_input():
    torch.manual_seed(0)
    conv, x = nn.Conv2d(2, 3, 5), torch.randn(3, 4, 2, 11, 11)
    for stack in (lambda f: vmap(f), lambda f: f):
        inputs = x if stack(len) is not len else x[0]
        expected, found = (
            stack(grad(lambda x, m=m: functional_call(m, dict(conv.named_parameters()), (x,)).sin().sum()))(inputs)
            for m in (conv, MatmulConv(conv, "rows"))
        )
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("case", ["pstn", "batch norm"])
@pytest.mark.parametrize(("conv", "groups", "blocks"), [("matmul", 1, 0), ("rows", 1, 0), ("blocks", 2, 4)])
def test_all_kinds_of_convolution_take_the_same_steps(case, conv, groups, blocks):
    make, data, recipe = CASES[case]
    (x, y), models, trained = data(), [seeded(make, i) for i in range(2)], []
    for kind in ("library", conv):
        population = Population(models, x, y, recipe=recipe, groups=groups, conv=kind, workers=False)
        population.fit(until=4)
        trained.append(population.models()[1])
    found = sum(isinstance(module, BlockConv) for module in population.stacks[0].module.modules())
    assert found == (blocks if case == "pstn" else 0)
    assert largest_difference(*trained) < TOLERANCE
