"""Untrusted run folders, current folders, settings and studies."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import optuna
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from pstn.experiments import reproduce
from pstn.files import DataError, require_writable
from pstn.limits import RESULT_BYTES
from pstn.training.runs.run import remember_run
from pstn.training.runs.settings import read_settings
from security.limited import run_limited_command
from small_experiment import SMALL, experiment, quiet
from small_runs import run_command

MODULES = {*sys.stdlib_module_names, "torch", "numpy", "yaml", "typer", "safetensors", "pstn", "site", "usercustomize"}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Series in two classes: a table that trains within seconds."""
    source, path = np.random.default_rng(0), tmp_path_factory.mktemp("data") / "series.tsv"
    rows = [np.concatenate([[k], source.normal(k, 1, 20)]) for k in (1, 2) * 12]
    np.savetxt(path, np.stack(rows), delimiter="\t", fmt="%.4f")
    return path


@pytest.fixture
def hostile_folder(tmp_path):
    """A folder that holds a module of every name, each of which leaves a mark."""
    folder, mark = tmp_path / "hostile", tmp_path / "mark"
    folder.mkdir()
    for name in MODULES:
        (folder / f"{name}.py").write_text(f"open({str(mark)!r}, 'a').write({name!r} + ' ')")
    return folder, mark


def run_script(tmp_path, code, *arguments, cwd, options=()):
    """Run code as a console script is run: its own folder is on the import path, not the current one."""
    script = tmp_path / "bin" / "script.py"
    script.parent.mkdir(exist_ok=True)
    script.write_text(code)
    return subprocess.run(
        [sys.executable, *options, str(script), *map(str, arguments)], cwd=cwd, capture_output=True, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=240, check=False,
    )  # fmt: skip


@pytest.mark.slow
def test_worker_processes_import_nothing_from_the_current_folder(tmp_path, data, hostile_folder):
    folder, mark = hostile_folder
    code = """
import pstn.training.population.trainer
from pstn.cli import main
if __name__ == "__main__":
    pstn.training.population.trainer._WORTH_WORKERS = 0
    main()
"""
    options = ["--models", 2, "--groups", 2, "--epochs", 1, "--batch-size", 4, "--out", tmp_path / "run"]
    done = run_script(tmp_path, code, "train", data, *options, cwd=folder)
    assert not mark.exists(), mark.read_text()
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "model-1" / "config.json").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_of_data_loaders_import_nothing_from_the_current_folder(tmp_path, hostile_folder, method):
    folder, mark = hostile_folder
    code = """
import multiprocessing, sys, torch
from pstn.training.lightning import LitData
if __name__ == "__main__":
    multiprocessing.set_start_method(sys.argv[1])
    x, y = torch.zeros(8, 1, 4, 4), torch.zeros(8, dtype=torch.long)
    assert len(list(LitData(x, y, test=(x, y), batch_size=4, workers=1).test_dataloader())) == 2
"""
    done = run_script(tmp_path, code, method, cwd=folder, options=["-W", "ignore"])
    assert not mark.exists(), mark.read_text()
    assert done.returncode == 0, done.stderr


FILES = ("config.json", "model.safetensors", "README.md", "checkpoint.safetensors")


@pytest.fixture
def victim(tmp_path):
    """A folder outside any run, with files of the names that a run replaces and removes."""
    folder = tmp_path / "victim"
    folder.mkdir()
    for name in FILES:
        (folder / name).write_text("mine")
    return folder


def untouched(victim):
    return {path.name: path.read_text() for path in victim.iterdir()} == dict.fromkeys(FILES, "mine")


def refused(*words, names):
    """Whether a command ends with a message that names something, and exit code 2."""
    done = run_command(*words)
    assert done.exit_code == 2, done.output
    assert len(done.output) < 1000
    return names in done.output


def train_small(data, out, *options):
    return run_command("train", data, "--out", out, "--epochs", 1, "--batch-size", 4, *options)


@pytest.fixture(scope="module")
def trained(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("trained") / "run"
    assert train_small(data, folder).exit_code == 0
    return folder


@pytest.fixture
def run(tmp_path, trained, data):
    """A finished run of one model, which this user has trained here."""
    folder = shutil.copytree(trained, tmp_path / "run")
    remember_run(folder, str(data))
    return folder


def test_the_probe_for_writability_follows_no_link(tmp_path, victim):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".probe").symlink_to(victim / "config.json")
    require_writable(tmp_path / "run")
    assert untouched(victim)
    assert [path.name for path in (tmp_path / "run").iterdir()] == [".probe"]


@pytest.mark.parametrize(
    ("option", "name"),
    [("--resume", "model-0"), ("--resume", "checkpoint.safetensors"), ("--resume", "parts.json"),
     ("--overwrite", "model-9"), ("--overwrite", "settings.yaml"), ("--overwrite", "results.json")],
)  # fmt: skip
def test_a_link_out_of_a_run_is_refused_before_anything_is_changed(tmp_path, data, run, victim, option, name):
    if (run / name).exists():
        (run / name).rename(tmp_path / "moved")
    (run / name).symlink_to(victim if name.startswith("model") else victim / "checkpoint.safetensors")
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    epochs = ["--epochs", 1] if option == "--overwrite" else []
    assert refused("train", data, "--out", run, option, *epochs, names=name)
    assert untouched(victim)
    assert before == {path: path.stat().st_mtime_ns for path in run.rglob("*")}


@pytest.mark.parametrize("name", ["quick", "quick/.work", "quick/.work/small", "quick/small"])
def test_reproduce_writes_through_no_link(tmp_path, victim, name):
    link = tmp_path / "results" / name
    link.parent.mkdir(parents=True)
    link.symlink_to(victim)
    with pytest.raises(DataError, match="quick"):
        reproduce([experiment(SMALL)], quiet(tmp_path / "results"))
    assert untouched(victim)


def test_a_sweep_appends_to_no_study_elsewhere(tmp_path, data, victim):
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "study.log").symlink_to(victim / "config.json")
    assert refused("sweep", data, "--out", tmp_path / "sweep", "--over", "kl_weight=0", names="study.log")
    assert untouched(victim)


def rewrite(run, change):
    """Change the tensors and the texts of a run's checkpoint."""
    path = run / "checkpoint.safetensors"
    with safe_open(str(path), framework="pt") as stream:
        texts = dict(stream.metadata())
    tensors = load_file(path)
    change(tensors, texts)
    save_file(tensors, path, metadata=texts)


def edit_text(name, **values):
    def change(_, texts):
        texts[name] = json.dumps({**json.loads(texts[name]), **values})

    return change


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors, _: tensors["rows"][0].fill_(float("nan")),
        lambda tensors, _: tensors.update(rows=tensors["rows"].to(torch.float8_e4m3fn)),
        lambda _, texts: texts.pop("progress"),
        lambda _, texts: texts.pop("format"),
        lambda _, texts: texts.update(format="pstn population 1"),
        lambda _, texts: texts.update(progress="[" * 10**6),
        lambda _, texts: texts.update(settings='{"seed": 1, "seed": 2}'),
        lambda _, texts: texts.update(members="{}"),
        lambda _, texts: texts.update(training="[]"),
        edit_text("progress", step=-1),
        edit_text("progress", history=[{"loss": "x"}]),
        edit_text("progress", failures=[{"model": 0}]),
        edit_text("progress", best={}),
        edit_text("progress", partial=[[0.0] * 3]),
        edit_text("progress", seconds=10**400),
        edit_text("settings", size=10**6),
        edit_text("settings", test_samples=10**9),
    ],
)
def test_a_damaged_or_hostile_checkpoint_is_refused_with_one_message(run, change):
    rewrite(run, change)
    before = (run / "checkpoint.safetensors").read_bytes()
    assert refused("train", "--resume", "--out", run, names="error: ")
    assert (run / "checkpoint.safetensors").read_bytes() == before


def test_a_checkpoint_of_ten_million_models_takes_no_memory(run):
    rewrite(run, edit_text("settings", models=10**7))
    done = run_limited_command("train", "--resume", "--out", run)
    assert done.returncode == 2, done.stderr
    assert "models must lie between" in done.stderr


@pytest.mark.parametrize(
    ("command", "name"),
    [(("train", "--resume", "--out"), "checkpoint.safetensors"), (("evaluate",), "settings.yaml")],
)
def test_a_named_pipe_in_a_run_is_refused(run, command, name):
    (run / name).unlink()
    os.mkfifo(run / name)
    assert refused(*command, run, names="regular file")


def test_a_foreign_study_puts_no_settings_of_its_own_into_the_best(tmp_path, data):
    folder = tmp_path / "sweep"
    folder.mkdir()
    backend = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(folder / "study.log")))
    study = optuna.create_study(storage=backend, study_name="pstn", direction="minimize")
    choice, number = optuna.distributions.CategoricalDistribution, optuna.distributions.FloatDistribution(0, 1e9)
    for params, distributions in (
        ({"data": "/etc"}, {"data": choice(["/etc"])}),
        ({"lr": 5.0}, {"lr": number}),
        ({"kl_weight": 0.0, "out": "/elsewhere"}, {"kl_weight": choice([0.0, 0.5]), "out": choice(["/elsewhere"])}),
    ):
        study.add_trial(optuna.trial.create_trial(params=params, distributions=distributions, value=-1.0))
    done = run_command("sweep", data, "--out", folder, "--epochs", 1, "--batch-size", 4, "--over", "kl_weight=0.0,0.5")
    assert done.exit_code == 0, done.output
    best = read_settings(folder / "best.yaml")
    assert (best["data"], best["out"]) == (str(data), "")
    assert best["kl_weight"] in ([0.0], [0.5])
    assert len(json.loads((folder / "sweep.json").read_text())["table"]) == 2


def journal_entry(**values):
    return json.dumps({"worker_id": "a", "op_code": 0, "study_name": "pstn", "directions": [1], **values}) + "\n"


def journal_trial(**values):
    """The journal of a study with one finished trial."""
    choices = optuna.distributions.CategoricalDistribution([0.0, 0.5])
    trial = {
        "state": 1, "value": 0.5, "values": None, "params": {"kl_weight": 0}, "user_attrs": {}, "system_attrs": {},
        "distributions": {"kl_weight": optuna.distributions.distribution_to_json(choices)}, "intermediate_values": {},
        "datetime_start": "2024-01-01T00:00:00", "datetime_complete": "2024-01-01T00:00:00", **values,
    }  # fmt: skip
    return journal_entry() + journal_entry(op_code=4, study_id=0, **trial)


@pytest.mark.parametrize(
    "journal",
    [
        "text\ntext\n",
        "[" * 10**5 + "\n\n",
        journal_entry(op_code=99),
        journal_entry(directions=[2]),
        journal_entry() + journal_entry(op_code=2, study_id=0, user_attr={"about": [1]}),
        journal_trial(distributions={"kl_weight": "{}"}),
        journal_trial(params={"kl_weight": 99}),
        journal_trial(state=0, user_attrs={"queued": 5}),
    ],
    ids=range(8),
)
def test_a_damaged_study_is_refused(tmp_path, data, journal):
    path = tmp_path / "sweep" / "study.log"
    path.parent.mkdir()
    path.write_text(journal)
    options = ["--epochs", 1, "--batch-size", 4, "--over", "kl_weight=0.0,0.5", "--take-over"]
    assert refused("sweep", data, "--out", path.parent, *options, names=str(path))
    assert path.read_text().startswith(journal)
    assert [entry.name for entry in path.parent.iterdir()] == ["study.log"]


def test_a_study_has_a_limit(tmp_path, data):
    path = tmp_path / "sweep" / "study.log"
    path.parent.mkdir()
    with path.open("wb") as file:
        file.truncate(RESULT_BYTES + 1)
    assert refused("sweep", data, "--out", path.parent, "--over", "kl_weight=0.0,0.5", names=f"{RESULT_BYTES:,}")


def test_evaluate_opens_no_path_that_only_a_file_names(tmp_path, run, data):
    assert run_command("evaluate", run).exit_code == 0  # this user has trained it, on this path
    assert run_command("evaluate", run / "model-0").exit_code == 0
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(run, elsewhere)
    for folder in (elsewhere, elsewhere / "model-0"):
        assert refused("evaluate", folder, names="DATA")
        assert run_command("evaluate", folder, data).exit_code == 0
    secret = tmp_path / "secret.tsv"
    shutil.copy(data, secret)
    (run / "settings.yaml").write_text((run / "settings.yaml").read_text().replace(str(data), str(secret)))
    assert run_command("evaluate", run).exit_code == 2


def test_resume_opens_no_path_that_only_a_file_names(tmp_path, run, data):
    assert run_command("train", "--resume", "--out", run).exit_code == 0
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(run, elsewhere)
    assert refused("train", "--resume", "--out", elsewhere, names="DATA")
    assert run_command("train", data, "--resume", "--out", elsewhere).exit_code == 0
