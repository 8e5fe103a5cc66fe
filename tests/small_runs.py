"""Small runs for tests: the command, settings, and what a run leaves behind."""

from pathlib import Path

import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from pstn.cli import app
from pstn.training.runs.settings import TrainSettings


def run_command(*arguments: object):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def succeeds(*arguments: object):
    """What a command that ends with exit code 0 came back with."""
    done = run_command(*arguments)
    assert done.exit_code == 0, done.output
    return done


def fails(*arguments: object, says: str):
    """The same of one that ends with exit code 2, and says something."""
    done = run_command(*arguments)
    assert done.exit_code == 2, done.output
    assert says in done.output.replace("\n", " "), done.output
    return done


def small(data: str, out: Path, **values) -> TrainSettings:
    return TrainSettings(data=data, out=str(out), **{"epochs": 3, "models": 2, "batch_size": 8, "groups": 1, **values})


def final_weights(folder: Path) -> list[dict[str, torch.Tensor]]:
    return [load_file(folder / f"model-{i}" / "model.safetensors") for i in range(2)]


def same(a: list[dict[str, torch.Tensor]], b: list[dict[str, torch.Tensor]]) -> bool:
    return all(x.keys() == y.keys() and all(torch.equal(x[k], y[k]) for k in x) for x, y in zip(a, b, strict=True))
