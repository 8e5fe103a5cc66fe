"""One loss for every trainer: what `loss=` and `kl_weight=` mean in fit, a population and Lightning."""

import math
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

import pstn
from pstn.training import Population, Recipe, make_members
from refusals import refused
from small_models import images, seeded, small_pstn

# A few steps leave a localizer where it started, which fit remarks upon.
pytestmark = pytest.mark.filterwarnings("ignore:The transformation is")


def importance_weighted(prediction, y):
    log_p = pstn.objective.class_log_likelihood(prediction, y)
    return -(log_p.logsumexp(0) - math.log(log_p.shape[0])).mean()


def doubled(prediction, y, kl_weight, weights=None):
    return 2 * pstn.elbo_loss(prediction, y, kl_weight, weights=weights)


class Regression(NamedTuple):
    mean: Tensor
    posterior: pstn.ThetaDistribution


class Regressor(pstn.nn.TransformerModel):
    def __init__(self):
        super().__init__()
        self.layer = pstn.SpatialTransformer(pstn.Crop(ndim=1), nn.Flatten(), size=20, features=20)
        self.head = nn.Linear(20, 1)

    def forward(self, x, samples=None, *, noise=None, generator=None):
        out = self.layer(x, samples or self.samples, noise=noise, generator=generator)
        return Regression(self.head(out.warped)[..., 0, 0], out.posterior)


def gaussian(prediction, y, kl_weight):
    def log_likelihood(prediction, y):
        return torch.distributions.Normal(prediction.mean, 0.5).log_prob(y)

    return pstn.objective.elbo_parts(prediction, y, kl_weight, log_likelihood=log_likelihood)


def series(count=32):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, 1, 20, generator=generator)
    return x, x[:, 0, 5:15].mean(1)


def test_a_loss_with_a_weight_is_given_each_models_own():
    x, y = images(16)
    members = make_members(2, seed=0, kl_weight=[0.0, 0.5])
    runs = {}
    for name, loss in {"elbo": None, "doubled": doubled}.items():
        models = [seeded(small_pstn, 0) for _ in members]
        with Population(models, x, y, members, Recipe(epochs=1, batch_size=16), groups=1, loss=loss) as population:
            runs[name] = population.fit().history[0]["loss"]
    assert runs["elbo"][1] > runs["elbo"][0]
    assert runs["doubled"] == pytest.approx([2 * loss for loss in runs["elbo"]], rel=1e-5)


def test_the_elbo_is_the_default_and_its_parts_are_reported():
    x, y = images(16)
    histories = []
    for loss in (None, pstn.elbo_loss):
        with Population([seeded(small_pstn, 0)], x, y, recipe=Recipe(epochs=2, batch_size=8), loss=loss) as population:
            histories.append(population.fit().history)
    assert histories[0] == histories[1]
    entry = histories[0][0]
    weight = pstn.defaults.default_kl_weight(16)
    assert entry["loss"][0] == pytest.approx(entry["nll"][0] + weight * entry["kl"][0], rel=1e-5)
    assert {"nll", "kl", "accuracy"} <= set(entry)


LOSS = {"loss": importance_weighted}
test_a_weight_that_the_loss_does_not_take_is_refused = refused(
    (lambda m, x, y: pstn.fit(m, [(x, y)], **LOSS, kl_weight=0.1), ValueError, "kl_weight"),
    (lambda m, x, y: Population([m], x, y, make_members(1, kl_weight=0.1), **LOSS), ValueError, "kl_weight"),
    (lambda m, x, y: Population([m], x, y, **LOSS, weights=torch.ones(16)), ValueError, "weights"),
    given=lambda: (small_pstn(), *images(16)),
)


test_a_loss_must_return_a_scalar = refused(
    (lambda m, data: pstn.fit(m, data, loss=lambda prediction, y: prediction.log_probs), ValueError, "loss must"),
    (lambda m, data: pstn.fit(m, data, loss=lambda prediction, y: 1.0), TypeError, "loss"),
    (lambda m, data: pstn.fit(m, data, loss="elbo"), TypeError, "loss"),
    (lambda m, data: Recipe(loss=3), TypeError, "loss"),
    given=lambda: (small_pstn(), [images(16)]),
)


def test_a_schedule_of_the_weight_runs_from_0_to_1_in_every_trainer():
    x, y = images(16)
    for_fit, for_population = [], []

    def schedule(seen):
        return lambda progress: seen.append(progress) or 0.1 * progress

    pstn.fit(small_pstn(), [(x, y)] * 2, epochs=3, kl_weight=schedule(for_fit))
    # It is also checked before training.
    assert sorted(set(for_fit)) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    members = make_members(1, kl_weight=schedule(for_population))
    with Population([small_pstn()], x, y, members, Recipe(epochs=3, batch_size=8)) as population:
        population.fit()
        history = population.progress.history
    assert sorted(set(for_population)) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    weights = [(entry["loss"][0] - entry["nll"][0]) / entry["kl"][0] for entry in history]
    assert weights == pytest.approx([0.01, 0.05, 0.09], rel=0.05)


def test_regression_trains_with_fit_and_in_a_population():
    x, y = series()
    torch.manual_seed(0)
    seen = []
    model = Regressor()
    pstn.fit(
        model, [(x, y)], epochs=60, lr=1e-2, loss=gaussian, kl_weight=1e-3, on_epoch=lambda e: seen.append(e) or False
    )
    assert seen[-1].nll < seen[0].nll
    assert math.isnan(seen[0].accuracy)
    models = [Regressor() for _ in range(2)]
    members = make_members(2, lr=1e-2, kl_weight=1e-3, train=torch.arange(24), valid=torch.arange(24, 32))
    recipe = Recipe(epochs=30, batch_size=24, loss=gaussian, patience=30)
    with Population(models, x, y, members, recipe) as population:
        history = population.fit().history
        scores = population.evaluate(x[24:], y[24:])
        own = population.evaluate_members()
        trained = population.models()[1]
    assert set(scores) == {"loss"}
    assert history[-1]["nll"][0] < history[0]["nll"][0]
    assert "accuracy" not in history[0]
    assert {"valid_loss"} == {name for name in history[0] if name.startswith("valid")}
    # Each example by itself, at the quantiles of the noise that the population draws, is close to all at once.
    with torch.no_grad():
        expected = gaussian(trained(x[24:], 500), y[24:], 0.0).nll
    assert scores["loss"][1] == pytest.approx(float(expected), abs=0.2)
    assert own["loss"] == pytest.approx(scores["loss"], abs=1e-4) or population.progress.best != own["loss"]


@pytest.mark.filterwarnings("ignore")  # Lightning's own advice, and what it warns of in others
def test_lightning_minimises_the_loss_that_it_is_given(tmp_path):
    pl = pytest.importorskip("lightning.pytorch")
    from pstn.training.lightning import LitData, LitPSTN

    x, y = series()
    torch.manual_seed(0)
    seen = []
    module = LitPSTN(Regressor(), lr=1e-2, loss=gaussian, kl_weight=lambda progress: seen.append(progress) or 1e-3)
    trainer = pl.Trainer(
        max_epochs=2, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, LitData(x, y, valid=(x, y), batch_size=16))
    assert seen == pytest.approx([0, 1 / 3, 2 / 3, 1])
    assert {"train_loss", "train_kl", "val_loss"} == set(trainer.callback_metrics)
    with pytest.raises(ValueError, match="kl_weight"):
        LitPSTN(small_pstn(), loss=importance_weighted, kl_weight=0.1)
