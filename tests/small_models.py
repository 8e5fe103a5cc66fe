"""Small models and data, and the plain loop that populations are compared with."""

import copy

import torch
from torch import nn

import pstn
from pstn.data import RandomRotation
from pstn.training import Member, Population, RandomWarp, Recipe

# Sums of float32 are taken in another order when models are stacked. Adam turns any gradient, however small, into a
# step of full size, even one that is zero but for rounding (a bias in front of batch norm): EPS keeps such steps small.
# A parameter moves by about 4e-3 in the four steps compared.
TOLERANCE, EPS = 2e-5, 1e-5


def small_cnn() -> nn.Module:
    return pstn.nn.ConvClassifier(1, (12, 12), classes=4, filters=(3, 4), hidden=6, kernel=3)


def small_layer(**options) -> pstn.SpatialTransformer:
    localizer = pstn.nn.ConvLocalizer(1, (12, 12), filters=(2, 3), kernel=3)
    return pstn.SpatialTransformer(pstn.Similarity(), localizer, **options)


def small_pstn() -> pstn.PSTN:
    return pstn.PSTN(small_layer(), small_cnn())


def small_stn() -> pstn.STN:
    return pstn.STN(small_layer(probabilistic=False), small_cnn())


def series_pstn() -> pstn.PSTN:
    localizer = pstn.nn.SeriesLocalizer(1, filters=(6, 5, 4), kernels=(7, 5, 3))
    layer = pstn.SpatialTransformer(pstn.Crop(ndim=1), localizer, size=(24,))
    classifier = pstn.nn.SeriesClassifier(1, classes=3, filters=(5, 6, 6, 5, 4), kernels=(7, 7, 5, 5, 3))
    return pstn.PSTN(layer, classifier, train_samples=3)


def without_dropout(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model


def images(count: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(count, 1, 12, 12, generator=generator), torch.arange(count) % 4


def series(count: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(count, 1, 24, generator=generator), torch.arange(count) % 3


def seeded(make, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return make()


def largest_difference(a: nn.Module, b: nn.Module) -> float:
    pairs = zip(a.state_dict().values(), b.state_dict().values(), strict=True)
    return max(float((p.double() - q.double()).abs().max()) for p, q in pairs)


def plain_loop(model: nn.Module, x, y, member: Member, recipe: Recipe, steps: int) -> nn.Module:
    """The same training with autograd and torch.optim, for one model; noise is taken from the trainer's streams."""
    population = Population([model], x, y, [member], recipe)
    noise, spe = population.stacks[0], population.steps_per_epoch
    model = copy.deepcopy(model).train()
    if isinstance(model, (pstn.PSTN, pstn.STN)):
        groups = model.parameter_groups(
            member.lr, localizer_factor=member.localizer_factor, weight_decay=member.weight_decay
        )
    else:
        groups = [{"params": model.parameters(), "lr": member.lr, "weight_decay": member.weight_decay}]
    optimiser = torch.optim.Adam(groups, eps=recipe.eps)
    schedule = torch.optim.lr_scheduler.StepLR(optimiser, recipe.lr_step or 10**9, recipe.lr_gamma)
    masks: list[torch.Tensor] = []

    def drop(module: nn.Dropout, args, output):
        return args[0] * (masks.pop(0) >= module.p) / (1 - module.p)

    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.register_forward_hook(drop)
    for step in range(steps):
        drawn = {name: t[0] for name, t in noise.draw(step, 1).items()}
        optimiser.zero_grad()
        for part in range(recipe.accumulate):
            masks = [u[0, part] for name, u in drawn.items() if name.startswith("dropout")]
            index = drawn["examples"][0, part]
            xb = x[index] if recipe.augment is None else recipe.augment(x[index], drawn["augment"][0, part])
            if isinstance(model, (pstn.PSTN, pstn.STN)):
                options = {"noise": drawn["theta"][0, part]} if "theta" in drawn else {}
                loss = pstn.elbo_loss(model(xb, **options), y[index], member.kl_weight)
            else:
                loss = nn.functional.cross_entropy(model(xb), y[index])
            (loss / recipe.accumulate).backward()
        if recipe.clip_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), recipe.clip_norm)
        optimiser.step()
        if (step + 1) % spe == 0:
            schedule.step()
    return model.eval()


def recipe(epochs: int = 2, batch_size: int = 8, **options) -> Recipe:
    return Recipe(epochs=epochs, batch_size=batch_size, eps=EPS, **options)


CASES = {
    "pstn": (small_pstn, images, recipe()),
    "stn": (small_stn, images, recipe()),
    "cnn": (small_cnn, images, recipe()),
    "batch norm": (series_pstn, series, recipe()),
    "schedule": (small_cnn, images, recipe(epochs=3, batch_size=20, lr_step=1)),
    "accumulated": (small_pstn, images, recipe(epochs=3, accumulate=2)),
    "clipped": (small_pstn, images, recipe(clip_norm=0.1)),
    "samples": (small_pstn, images, recipe(samples=3)),
    "rotated": (small_cnn, images, recipe(augment=RandomWarp(RandomRotation()))),
}
