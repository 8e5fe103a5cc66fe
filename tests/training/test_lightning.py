"""The Lightning module: trains, logs, and takes the same steps in two processes as in one."""

import logging
import warnings
from pathlib import Path

import pytest
import torch

import pstn
from pstn.data import RandomRotation
from pstn.training import one_cycle
from refusals import refused

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pl = pytest.importorskip("lightning.pytorch")
    from pstn.training.lightning import LitData, LitPSTN

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's own advice, and what it warns of in others
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


def make_model() -> pstn.PSTN:
    torch.manual_seed(0)
    localizer = pstn.nn.ConvLocalizer(1, (12, 12), filters=(2, 3), kernel=3)
    classifier = pstn.nn.ConvClassifier(1, (12, 12), classes=4, filters=(3, 4), hidden=6, kernel=3, dropout=0.0)
    return pstn.PSTN(pstn.SpatialTransformer(pstn.Similarity(), localizer), classifier, train_samples=2)


def make_data(**options) -> LitData:
    generator = torch.Generator().manual_seed(1)
    x, y = torch.rand(16, 1, 12, 12, generator=generator), torch.arange(16) % 4
    return LitData(x, y, valid=(x, y), test=(x, y), **options)


class KeepGradients(pl.Callback):
    def __init__(self, path: Path) -> None:
        self.path = path

    def on_before_optimizer_step(self, trainer, module, optimizer) -> None:
        if trainer.global_rank == 0:
            grads = [p.grad.clone() for p in module.parameters() if p.grad is not None]
            torch.save(grads, self.path / f"{trainer.global_step}.pt")


def make_trainer(folder: Path, **options) -> pl.Trainer:
    settings = {"accelerator": "cpu", "devices": 1, "logger": False, "enable_progress_bar": False, **options}
    return pl.Trainer(
        default_root_dir=folder, enable_model_summary=False, enable_checkpointing=False, log_every_n_steps=1, **settings
    )


def test_trains_with_clipping_accumulation_and_a_schedule(tmp_path):
    model = make_model()
    before = [p.detach().clone() for p in model.parameters()]
    module = LitPSTN(model, kl_weight=1e-3, lr_step=1, weight_decay=0.01)
    trainer = make_trainer(tmp_path, max_epochs=2, gradient_clip_val=1.0, accumulate_grad_batches=2)
    trainer.fit(module, make_data(batch_size=4))
    assert trainer.global_step == 4
    assert any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert trainer.optimizers[0].param_groups[0]["lr"] == pytest.approx(1e-3 * 0.008 * 0.01)
    assert {"train_loss", "train_kl", "val_nll", "val_accuracy"} <= set(trainer.callback_metrics)


def test_tests_and_predicts(tmp_path):
    module, data, trainer = LitPSTN(make_model()), make_data(batch_size=4), make_trainer(tmp_path)
    (scores,) = trainer.test(module, data, verbose=False)
    assert set(scores) == {"test_nll", "test_accuracy"}
    found = trainer.predict(module, data.test_dataloader())
    alone = trainer.predict(module, torch.utils.data.DataLoader(data.parts["test"][0], batch_size=4))
    assert len(found) == 4
    for log_probs, again in zip(found, alone, strict=True):
        assert torch.equal(log_probs, again)
        assert torch.allclose(log_probs.exp().sum(1), torch.ones(4))


def test_one_step_is_the_elbo_of_the_batch(tmp_path):
    model = make_model()
    module = LitPSTN(model, kl_weight=1e-2, seed=3)
    make_trainer(tmp_path, max_steps=1, limit_val_batches=0, callbacks=[KeepGradients(tmp_path)]).fit(
        module, make_data(batch_size=16, shuffle=False)
    )
    from pstn.noise import stream_keys, uniform

    data, fresh = make_data(), make_model()
    x, y = data.parts["train"]
    noise = uniform(stream_keys([3], "theta"), 0, 1, (2, 16, 4))[0, 0]
    pstn.elbo_loss(fresh.train()(x, noise=noise), y, 1e-2).backward()
    found = torch.load(tmp_path / "0.pt")
    for parameter, grad in zip(fresh.parameters(), found, strict=True):
        torch.testing.assert_close(parameter.grad, grad)


def test_a_batch_larger_than_the_data_is_refused(tmp_path):
    with pytest.raises(ValueError, match="batch_size must"):
        make_trainer(tmp_path, max_epochs=1).fit(LitPSTN(make_model()), make_data(batch_size=32))


class KeepLosses(pl.Callback):
    """The mean loss of the processes at every step, and the scores of every validation."""

    def __init__(self, path: Path) -> None:
        self.path, self.losses = path, []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx) -> None:
        self.losses.append(float(trainer.strategy.reduce(outputs["loss"].detach(), reduce_op="mean")))

    def on_validation_end(self, trainer, module) -> None:
        self.losses += [float(v) for name, v in sorted(trainer.callback_metrics.items()) if name.startswith("val_")]

    def on_fit_end(self, trainer, module) -> None:
        if trainer.global_rank == 0:
            torch.save(torch.tensor(self.losses), self.path / "losses.pt")


def labelled():
    return LitPSTN(make_model(), kl_weight=1e-3)


def taught():
    """Taught alone: the classifier gets no gradients."""
    return LitPSTN(make_rotating(), teach=RandomRotation())


@pytest.mark.slow
@pytest.mark.parametrize("make", [labelled, taught])
def test_two_processes_have_the_gradients_and_losses_of_one(make, tmp_path, monkeypatch):
    from lightning.pytorch.strategies import DDPStrategy

    monkeypatch.setenv("MASTER_PORT", "0")
    monkeypatch.delenv("MASTER_PORT")  # which Lightning sets: it is to be gone afterwards
    folders = {devices: tmp_path / str(devices) for devices in (1, 2)}
    for devices, folder in folders.items():
        folder.mkdir()
        strategy = DDPStrategy(process_group_backend="gloo", start_method="spawn") if devices > 1 else "auto"
        kept = [KeepGradients(folder), KeepLosses(folder)]
        trainer = make_trainer(
            folder, max_epochs=5, devices=devices, strategy=strategy, callbacks=kept, num_sanity_val_steps=0
        )
        trainer.fit(make(), make_data(batch_size=8 // devices))
    for step in range(2):
        alone, shared = (torch.load(folders[devices] / f"{step}.pt") for devices in (1, 2))
        assert max(float(g.abs().max()) for g in alone) > 1e-3
        for a, b in zip(alone, shared, strict=True):
            torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-4)
    alone, shared = (torch.load(folders[devices] / "losses.pt") for devices in (1, 2))
    assert len(alone) >= 5 * (2 + 1)
    assert len(set(alone.tolist())) > 10  # it learns
    torch.testing.assert_close(alone, shared, atol=1e-5, rtol=1e-4)


def make_rotating() -> pstn.PSTN:
    torch.manual_seed(0)
    localizer = pstn.nn.PoseLocalizer(1, (12, 12), (8, 16), 3, 32)
    family = pstn.Mixture(2, pstn.StudentT(alpha=2.0, var_init=0.0))
    return pstn.PSTN(pstn.SpatialTransformer(pstn.Rotation(), localizer, posterior=family), make_model().classifier)


def test_a_pose_is_taught_without_labels_and_the_classifier_stays(tmp_path):
    model = make_rotating()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    bar = torch.zeros(16, 1, 12, 12)
    bar[:, :, 2:7, 5:7], bar[:, :, 5:7, 7:10] = 1.0, 0.6
    loader = torch.utils.data.DataLoader(bar, batch_size=8)
    module = LitPSTN(model, teach=RandomRotation(), lr=3e-3, weight_decay=1e-5, lr_schedule=one_cycle)
    trainer, losses = make_trainer(tmp_path, max_epochs=60), []
    trainer.callbacks.append(pl.callbacks.LambdaCallback(
        on_train_batch_end=lambda trainer, *_: losses.append(float(trainer.callback_metrics["train_loss"]))
    ))  # fmt: skip
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*The pose was not learned")
        trainer.fit(module, loader, loader)
    assert sum(losses[-10:]) < sum(losses[:10]) - 5
    assert set(trainer.callback_metrics) == {"train_loss", "val_loss"}
    assert trainer.optimizers[0].param_groups[0]["lr"] < 1e-5
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert {name.partition(".")[0] for name in changed} == {"layer"}
    assert trainer.predict(module, loader)[0].shape == (8, 4)


def test_a_pose_that_is_not_learned_is_reported_at_once_and_at_the_end(tmp_path):
    blank, seen = torch.zeros(16, 1, 12, 12), []  # every pose looks the same
    trainer = make_trainer(tmp_path, max_epochs=103)
    trainer.callbacks.append(
        pl.callbacks.LambdaCallback(on_train_epoch_start=lambda trainer, _: seen.append(len(said)))
    )
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("ignore")
        warnings.filterwarnings("always", "epoch .* The pose was not learned")
        trainer.fit(LitPSTN(make_rotating(), teach=RandomRotation()), torch.utils.data.DataLoader(blank, batch_size=8))
    assert seen == [0] * 100 + [1] * 3
    assert len(said) == 2


def test_a_pose_is_taught_beside_labels(tmp_path):
    module = LitPSTN(make_rotating(), teach=RandomRotation(), teach_weight=2.0, kl_weight=0.1)
    trainer = make_trainer(tmp_path, max_epochs=1)
    trainer.fit(module, make_data(batch_size=8))
    assert {"train_loss", "train_kl", "train_accuracy", "val_nll", "val_accuracy"} <= set(trainer.callback_metrics)


test_what_cannot_be_taught_is_refused = refused(
    (lambda: LitPSTN(make_rotating(), teach_weight=1.0), ValueError, "teach_weight must"),
    (lambda: LitPSTN(make_rotating(), teach="rotation"), TypeError, "teach must"),
    (lambda: LitPSTN(make_rotating(), lr_schedule=one_cycle, lr_step=1), ValueError, "lr_schedule must"),
)
