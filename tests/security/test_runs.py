"""Run folders, worker processes, settings and studies that a stranger had a hand in."""

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

from made_up_results import make_results
from pstn.demo import run_demo
from pstn.experiments import EXPERIMENTS, reproduce
from pstn.files import FileError, require_writable
from pstn.limits import RESULT_BYTES
from pstn.report.page import write_report
from pstn.training.runs.settings import read_settings
from security.limited import run_limited_command
from small_experiment import SMALL, experiment, quiet
from small_runs import run_command

MODULES = sorted(
    {*sys.stdlib_module_names, "torch", "numpy", "yaml", "typer", "safetensors", "pstn", "site", "usercustomize"}
)


@pytest.fixture
def data(tmp_path):
    """Series in two classes: a table that trains within seconds."""
    source, path = np.random.default_rng(0), tmp_path / "series.tsv"
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


@pytest.mark.slow
def test_processes_are_refused_where_they_cannot_be_kept_from_the_current_folder(tmp_path):
    code = "from pstn.processes import safe_import_path\nwith safe_import_path():\n    print('started')\n"
    code = f"import sys\nsys.path[:0] = {sys.path!r}\n{code}"
    assert "RuntimeError" in run_script(tmp_path, code, cwd=tmp_path, options=["-E"]).stderr
    assert run_script(tmp_path, code, cwd=tmp_path, options=["-E", "-P"]).stdout == "started\n"
    command = f"import sys\nsys.path[:0] = {sys.path!r}\nfrom pstn.cli import main\nmain()"
    done = run_script(tmp_path, command, "--help", cwd=tmp_path, options=["-E"])
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")


def test_the_current_folder_is_imported_from_where_module_and_name_ask_for_it(tmp_path):
    (tmp_path / "mine.py").write_text("found = 5")
    code = "from pstn.experiments.backbones import find_backbone\nfind_backbone('mine:found')"
    done = run_script(tmp_path, code, cwd=tmp_path)
    assert "got 5" in done.stderr


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


def train_small(data, out, *options):
    return run_command("train", data, "--out", out, "--epochs", 1, "--batch-size", 4, *options)


def test_the_probe_for_writability_follows_no_link(tmp_path, victim):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".probe").symlink_to(victim / "config.json")
    require_writable(tmp_path / "run")
    assert untouched(victim)
    assert [path.name for path in (tmp_path / "run").iterdir()] == [".probe"]


@pytest.mark.parametrize("option", ["--resume", "--overwrite"])
@pytest.mark.parametrize("name", ["model-0", "model-9", "checkpoint.safetensors", "settings.yaml", "results.json"])
def test_a_link_out_of_a_run_is_refused_before_anything_is_changed(tmp_path, data, victim, option, name):
    run = tmp_path / "run"
    assert train_small(data, run).exit_code == 0
    if (run / name).exists():
        (run / name).rename(tmp_path / "moved")
    (run / name).symlink_to(victim if name.startswith("model") else victim / "checkpoint.safetensors")
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    done = run_command("train", data, "--out", run, option, *(["--epochs", 1] if option == "--overwrite" else []))
    assert done.exit_code == 2
    assert name in done.output
    assert untouched(victim)
    assert before == {path: path.stat().st_mtime_ns for path in run.rglob("*")}


def test_a_link_within_a_run_is_not_followed_to_remove_files(tmp_path, data):
    run = tmp_path / "run"
    assert train_small(data, run).exit_code == 0
    (run / "config.json").write_text("{}")
    (run / "model-9").symlink_to(run)
    assert train_small(data, run, "--overwrite").exit_code == 0
    assert (run / "config.json").read_text() == "{}"


def test_evaluate_follows_no_link_out_of_a_run(tmp_path, data):
    run = tmp_path / "run"
    assert train_small(data, run).exit_code == 0
    (run / "model-0").rename(tmp_path / "elsewhere")
    (run / "model-0").symlink_to(tmp_path / "elsewhere")
    done = run_command("evaluate", run, data)
    assert done.exit_code == 2
    assert "model-0" in done.output


@pytest.mark.parametrize("name", ["cnn", "pstn"])
def test_the_demo_writes_through_no_link(tmp_path, victim, name):
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / name).symlink_to(victim)
    with pytest.raises(FileError, match=name):
        run_demo(tmp_path / "demo", images=10, epochs=1)
    assert untouched(victim)


@pytest.mark.parametrize("name", ["quick", "quick/.work", "quick/.work/small", "quick/small"])
def test_reproduce_writes_through_no_link(tmp_path, victim, name):
    link = tmp_path / "results" / name
    link.parent.mkdir(parents=True)
    link.symlink_to(victim)
    with pytest.raises(FileError, match="quick"):
        reproduce([experiment(SMALL)], quiet(tmp_path / "results"))
    assert untouched(victim)


def test_a_sweep_appends_to_no_study_elsewhere(tmp_path, data, victim):
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "study.log").symlink_to(victim / "config.json")
    done = run_command("sweep", data, "--out", tmp_path / "sweep", "--epochs", 1, "--over", "kl_weight=0")
    assert done.exit_code == 2
    assert "study.log" in done.output
    assert untouched(victim)


def test_a_report_draws_through_no_link(tmp_path, victim):
    make_results()[0].write(tmp_path / "results")
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "figures").symlink_to(victim)
    with pytest.raises(FileError, match="figures"):
        write_report(
            tmp_path / "results", [EXPERIMENTS["rotated-mnist"]], tmp_path / "report", title="", introduction=""
        )
    assert untouched(victim)


@pytest.fixture
def run(tmp_path, data):
    """A finished run of one model."""
    folder = tmp_path / "run"
    assert train_small(data, folder).exit_code == 0
    return folder


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


def add_nan(tensors, _):
    tensors["rows"][0, 0] = float("nan")


def make_float8(tensors, _):
    tensors["rows"] = tensors["rows"].to(torch.float8_e4m3fn)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(add_nan, id="NaN"),
        pytest.param(make_float8, id="float8"),
        pytest.param(lambda _, texts: texts.pop("progress"), id="no progress"),
        pytest.param(lambda _, texts: texts.update(progress="{}"), id="empty progress"),
        pytest.param(lambda _, texts: texts.update(progress="[" * 10**6), id="deep"),
        pytest.param(lambda _, texts: texts.update(settings="[]"), id="no settings"),
        pytest.param(lambda _, texts: texts.update(settings='{"seed": 1, "seed": 2}'), id="duplicate keys"),
        pytest.param(lambda _, texts: texts.update(members="{}"), id="no members"),
        pytest.param(lambda _, texts: texts.update(training="[]"), id="no training"),
        pytest.param(edit_text("progress", step=-1), id="negative step"),
        pytest.param(edit_text("progress", step=0.5), id="half a step"),
        pytest.param(edit_text("progress", history=[{"loss": "x"}]), id="text in the history"),
        pytest.param(edit_text("progress", failures=[{"model": 0}]), id="half a failure"),
        pytest.param(edit_text("progress", failures={}), id="failures that are no list"),
        pytest.param(edit_text("progress", history={}), id="a history that is no list"),
        pytest.param(edit_text("progress", best=[]), id="no best"),
        pytest.param(edit_text("progress", best={}), id="best that is no list"),
        pytest.param(edit_text("progress", waited=[0] * 7), id="waited of seven models"),
        pytest.param(edit_text("progress", partial=[]), id="no sums"),
        pytest.param(edit_text("progress", partial=[[0.0] * 3]), id="three sums"),
        pytest.param(edit_text("progress", seconds=10**400), id="endless seconds"),
        pytest.param(edit_text("settings", models=10**7), id="10**7 models"),
        pytest.param(edit_text("settings", models=10**4), id="10**4 models"),
        pytest.param(edit_text("settings", size=10**6), id="a size of 10**6"),
        pytest.param(edit_text("settings", test_samples=10**9), id="10**9 samples"),
    ],
)
def test_a_damaged_or_hostile_checkpoint_is_refused_with_one_message(run, change):
    rewrite(run, change)
    before = (run / "checkpoint.safetensors").read_bytes()
    done = run_command("train", "--resume", "--out", run)
    assert done.exit_code == 2
    assert done.output.startswith("error: ")
    assert len(done.output) < 1000
    assert (run / "checkpoint.safetensors").read_bytes() == before


def test_a_checkpoint_that_is_written_anew_is_read_as_before(run):
    rewrite(run, lambda tensors, texts: None)
    assert run_command("train", "--resume", "--out", run).exit_code == 0


def test_a_checkpoint_of_ten_million_models_takes_no_memory(run):
    rewrite(run, edit_text("settings", models=10**7))
    done = run_limited_command("train", "--resume", "--out", run)
    assert done.returncode == 2, done.stderr
    assert "models must lie between" in done.stderr


def test_a_sparse_checkpoint_is_refused_before_it_is_read(run):
    path = run / "checkpoint.safetensors"
    with safe_open(str(path), framework="pt") as stream:
        texts = stream.metadata()
    size = 1 << 33
    header = {"__metadata__": texts, "rows": {"dtype": "F32", "shape": [1, size // 4], "data_offsets": [0, size]}}
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + size)
    done = run_limited_command("train", "--resume", "--out", run, memory=1 << 35)
    assert done.returncode == 2, done.stderr
    assert "another shape" in done.stderr


@pytest.mark.parametrize("command", [("train", "--resume", "--out"), ("evaluate",)])
@pytest.mark.parametrize("name", ["checkpoint.safetensors", "settings.yaml"])
def test_a_named_pipe_in_a_run_is_refused(run, command, name):
    if (command[0], name) in {("train", "settings.yaml"), ("evaluate", "checkpoint.safetensors")}:
        pytest.skip("it is not read")
    (run / name).unlink()
    os.mkfifo(run / name)
    done = run_command(*command, run)
    assert done.exit_code == 2
    assert "regular file" in done.output


@pytest.mark.parametrize("text", ["a: &a [1]\nb: [*a]", "[" * 100_000, "seed: 1\nseed: 2", f"data: [{'x' * 100_000}]"])
def test_hostile_settings_are_refused_with_a_short_message(tmp_path, text):
    (tmp_path / "settings.yaml").write_text(text)
    done = run_command("train", "--config", tmp_path / "settings.yaml")
    assert done.exit_code == 2
    assert len(done.output) < 1000


def test_settings_with_aliases_take_no_memory(tmp_path):
    """Nine lines that stand for 10**9 values."""
    lines = ["a: &a [x,x,x,x,x,x,x,x,x,x]"]
    lines += [f"{b}: &{b} [{','.join([f'*{a}'] * 10)}]" for a, b in zip("abcdefgh", "bcdefghi", strict=True)]
    (tmp_path / "settings.yaml").write_text("\n".join(lines))
    done = run_limited_command("train", "digits", "--config", tmp_path / "settings.yaml", memory=1 << 28)
    assert done.returncode == 2, done.stderr
    assert len(done.stderr) < 500


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
        pytest.param("text\ntext\n", id="text"),
        pytest.param("{}\n", id="no keys"),
        pytest.param("[" * 10**5 + "\n\n", id="deep"),
        pytest.param(journal_entry(op_code=99), id="unknown operation"),
        pytest.param(journal_entry(directions=[1, 1]), id="two values"),
        pytest.param(journal_entry(directions=[2]), id="the largest value"),
        pytest.param(journal_entry() + journal_entry(op_code=2, study_id=0, user_attr={"about": [1]}), id="about"),
        pytest.param(journal_trial(distributions={"kl_weight": "{}"}), id="distribution"),
        pytest.param(journal_trial(params={"kl_weight": 99}), id="choice"),
        pytest.param(journal_trial(value="a"), id="value"),
        pytest.param(journal_trial(user_attrs=[1]), id="attributes"),
        pytest.param(journal_trial(state=0, user_attrs={"queued": 5}), id="queued"),
    ],
)
def test_a_damaged_study_is_refused(tmp_path, data, journal):
    path = tmp_path / "sweep" / "study.log"
    path.parent.mkdir()
    path.write_text(journal)
    options = ["--epochs", 1, "--batch-size", 4, "--over", "kl_weight=0.0,0.5", "--take-over"]
    done = run_command("sweep", data, "--out", path.parent, *options)
    assert done.exit_code == 2, done.output
    assert str(path) in done.output
    assert path.read_text().startswith(journal)
    assert [entry.name for entry in path.parent.iterdir()] == ["study.log"]


def test_a_study_has_a_limit(tmp_path, data):
    path = tmp_path / "sweep" / "study.log"
    path.parent.mkdir()
    with path.open("wb") as file:
        file.truncate(RESULT_BYTES + 1)
    done = run_command("sweep", data, "--out", path.parent, "--over", "kl_weight=0.0,0.5")
    assert done.exit_code == 2
    assert f"{RESULT_BYTES:,}" in done.output


def test_evaluate_opens_no_path_that_only_a_file_names(tmp_path, run, data):
    assert run_command("evaluate", run).exit_code == 0  # this user has trained it, on this path
    assert run_command("evaluate", run / "model-0").exit_code == 0
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(run, elsewhere)
    for folder in (elsewhere, elsewhere / "model-0"):
        done = run_command("evaluate", folder)
        assert done.exit_code == 2
        assert "DATA" in done.output
        assert run_command("evaluate", folder, data).exit_code == 0
    secret = tmp_path / "secret.tsv"
    shutil.copy(data, secret)
    (run / "settings.yaml").write_text((run / "settings.yaml").read_text().replace(str(data), str(secret)))
    assert run_command("evaluate", run).exit_code == 2


def test_resume_opens_no_path_that_only_a_file_names(tmp_path, run, data):
    assert run_command("train", "--resume", "--out", run).exit_code == 0
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(run, elsewhere)
    done = run_command("train", "--resume", "--out", elsewhere)
    assert done.exit_code == 2
    assert "DATA" in done.output
    assert run_command("train", data, "--resume", "--out", elsewhere).exit_code == 0


def test_a_model_that_could_not_be_loaded_is_refused_before_training(tmp_path):
    rows = [np.concatenate([[k], np.random.default_rng(0).normal(k, 1, 4000)]) for k in (1, 2) * 4]
    np.savetxt(tmp_path / "long.tsv", np.stack(rows), delimiter="\t", fmt="%.2f")
    done = train_small(tmp_path / "long.tsv", tmp_path / "run", "--test-samples", 65536)
    assert done.exit_code == 2
    assert "numbers for one input" in done.output
    assert not (tmp_path / "run").exists()
