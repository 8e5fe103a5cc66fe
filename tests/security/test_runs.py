"""Run folders, worker processes, settings and studies that a stranger had a hand in."""

import os
import subprocess
import sys

import numpy as np
import pytest

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
import pstn.training.population
from pstn.cli import main
if __name__ == "__main__":
    pstn.training.population._WORTH_WORKERS = 0
    main()
"""
    options = ["--models", 2, "--groups", 2, "--epochs", 1, "--batch-size", 4, "--out", tmp_path / "run"]
    done = run_script(tmp_path, code, "train", data, *options, cwd=folder)
    assert not mark.exists(), mark.read_text()
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "model-1" / "config.json").is_file()


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


def test_processes_are_refused_where_they_cannot_be_kept_from_the_current_folder(tmp_path):
    code = "from pstn.processes import safe_import_path\nwith safe_import_path():\n    print('started')\n"
    code = f"import sys\nsys.path[:0] = {sys.path!r}\n{code}"
    assert "RuntimeError" in run_script(tmp_path, code, cwd=tmp_path, options=["-E"]).stderr
    assert run_script(tmp_path, code, cwd=tmp_path, options=["-E", "-P"]).stdout == "started\n"


def test_the_current_folder_is_imported_from_where_module_and_name_ask_for_it(tmp_path):
    (tmp_path / "mine.py").write_text("found = 5")
    code = "from pstn.experiments.backbones import find_backbone\nfind_backbone('mine:found')"
    done = run_script(tmp_path, code, cwd=tmp_path)
    assert "got 5" in done.stderr
