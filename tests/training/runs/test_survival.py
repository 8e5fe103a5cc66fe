"""Runs that survive: checkpoints, Ctrl-C, kills, a disk without room."""

import os
import signal
import subprocess
import sys
import time

import pytest
import torch

import pstn
from pstn.training import Augmentation, Population, Recipe, make_members
from pstn.training.runs.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from small_models import images, seeded, small_pstn


def test_a_checkpoint_continues_to_the_same_bits(tmp_path):
    x, y = torch.rand(24, 1, 28, 28, generator=torch.Generator().manual_seed(0)), torch.arange(24) % 10
    torch.manual_seed(0)
    models = [pstn.nn.mnist_pstn() for _ in range(2)]
    members = make_members(2, kl_weight=1e-3, train=torch.arange(16), valid=torch.arange(16, 24))

    def fresh() -> Population:
        return Population(models, x, y, members, Recipe(epochs=3, patience=5), groups=1)

    whole = fresh()
    whole.fit()
    first = fresh()
    first.fit(until=3)  # in the middle of an epoch
    save_checkpoint(tmp_path / "c.safetensors", first, {"note": 1})
    second = fresh()
    load_checkpoint(tmp_path / "c.safetensors", second)
    second.fit()
    assert all(torch.equal(a, b) for a, b in zip(whole.tensors().values(), second.tensors().values(), strict=True))
    assert second.progress.best == whole.progress.best
    assert [e["loss"] for e in second.progress.history] == [pytest.approx(e["loss"]) for e in whole.progress.history]


def test_a_foreign_checkpoint_is_refused(tmp_path):
    x, y = torch.rand(16, 1, 28, 28), torch.arange(16) % 10
    save_checkpoint(tmp_path / "c.safetensors", Population([pstn.nn.mnist_cnn()], x, y, recipe=Recipe(epochs=1)))
    other = Population([pstn.nn.mnist_cnn()], x, y, make_members(1, seed=[4]), Recipe(epochs=1))
    with pytest.raises(CheckpointError, match="belongs to other models"):
        load_checkpoint(tmp_path / "c.safetensors", other)


def test_a_checkpoint_of_another_training_is_refused_with_what_differs(tmp_path):
    x, y = torch.rand(32, 1, 28, 28), torch.arange(32) % 10
    path, model = tmp_path / "c.safetensors", pstn.nn.mnist_cnn()

    def made(x=x, y=y, weights=None, **values) -> Population:
        return Population([model], x, y, recipe=Recipe(**{"epochs": 1, **values}), weights=weights)

    save_checkpoint(path, made(lr_step=3))
    load_checkpoint(path, made(lr_step=3, epochs=5))  # only for longer
    with pytest.raises(CheckpointError, match=r"batch_size was 8, is 16.*clip_norm was None, is 1\.0"):
        load_checkpoint(path, made(lr_step=3, batch_size=16, clip_norm=1.0))
    with pytest.raises(CheckpointError, match="another training: lr_step was 3, is None"):
        load_checkpoint(path, made())
    flipped, relabelled = x.flip(0), y.roll(1)
    for other in (made(flipped, lr_step=3), made(x, relabelled, lr_step=3), made(weights=torch.ones(32), lr_step=3)):
        with pytest.raises(CheckpointError, match="another training: data was"):
            load_checkpoint(path, other)


class Lighter(Augmentation):
    """An augmentation as a user writes one, with no `__repr__`."""

    width = 1

    def __init__(self, most: float) -> None:
        self.most = most

    def __call__(self, x, u):
        return x + self.most * u[:, :, None, None]


def test_an_augmentation_of_ones_own_is_known_again(tmp_path):
    def make(most: float) -> Population:
        return Population([seeded(small_pstn, 0)], *images(), recipe=Recipe(epochs=2, augment=Lighter(most)))

    save_checkpoint(tmp_path / "c.safetensors", make(0.5))
    load_checkpoint(tmp_path / "c.safetensors", make(0.5))


def test_a_failed_write_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    x, y = torch.rand(16, 1, 28, 28), torch.arange(16) % 10
    population = Population([pstn.nn.mnist_cnn()], x, y, recipe=Recipe(epochs=1))
    save_checkpoint(tmp_path / "c.safetensors", population)
    before = (tmp_path / "c.safetensors").read_bytes()
    population.fit()

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        save_checkpoint(tmp_path / "c.safetensors", population)
    assert (tmp_path / "c.safetensors").read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["c.safetensors"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "wait"), [(signal.SIGINT, 12.0), (signal.SIGTERM, 0.5)], ids=["training", "starting"]
)
def test_a_signal_to_every_process_saves_too(data, tmp_path, number, wait):
    """A terminal sends Ctrl-C to every process, a cluster SIGTERM: they must leave the answer to the parent."""
    code = "from pstn.cli import main; main()"
    options = ["--epochs", "400", "--models", "2", "--groups", "2", "--batch-size", "8", "--save-every", "0.05"]
    process = subprocess.Popen(
        [sys.executable, "-c", code, "train", data, "--out", str(tmp_path / "run"), *options],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, start_new_session=True, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    while not (tmp_path / "run" / "checkpoint.safetensors").exists():  # written right before training begins
        assert process.poll() is None
        time.sleep(0.01)
    time.sleep(wait)
    os.killpg(process.pid, number)
    _, errors = process.communicate(timeout=120)
    assert "To go on: pstn train --resume" in errors
    assert "Traceback" not in errors
    assert process.returncode == 130
