"""Parts of an experiment as SLURM and torchrun start them."""

import os
import re
import shlex
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from pstn.experiments.__main__ import main
from pstn.report.results import read_results

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "deploy" / "reproduce.slurm"
PAGE = ROOT / "docs" / "many-machines.md"


@pytest.fixture
def pstn(tmp_path, monkeypatch) -> Path:
    """The command `pstn`, on the PATH."""
    command = tmp_path / "bin" / "pstn"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m pstn.cli "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{command.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return command


def run(*command: object, **environment: str) -> str:
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, env={**os.environ, **environment}, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_job_array_runs_every_part_once(pstn):
    (first, last) = re.search(r"^#SBATCH --array=(\d+)-(\d+)$", SCRIPT.read_text(), re.MULTILINE).groups()
    pstn.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    tasks = range(int(first), int(last) + 1)
    given = [run("bash", SCRIPT, "all", "--results", "a b", SLURM_ARRAY_TASK_ID=str(task)) for task in tasks]
    assert given == [f"reproduce\nall\n--results\na b\n--shard\n{task}/{last}\n" for task in tasks]
    assert first == "1"


@pytest.mark.slow
def test_a_task_of_the_job_array_runs_its_part(pstn, tmp_path):
    cells = ["--quick", "--cells", "mnist30-*"]
    options = ["mnist-subsets", *cells, "--results", tmp_path, "--device", "cpu"]
    run("bash", SCRIPT, *options, SLURM_ARRAY_TASK_ID="1")
    assert {result.model for result in read_results(tmp_path / "quick")} == {"CNN"}


@pytest.mark.slow
def test_two_processes_of_torchrun_share_an_experiment(pstn, tmp_path):
    """The command of the page, on the quick data: the same records as from one process."""
    [command] = re.findall(r"^torchrun .*?(?<!\\)$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    options = "mnist-subsets --quick --cells mnist30-* --cells mnist100-cnn-* --device cpu"
    for old, new in (
        ("torchrun ", f"{shlex.quote(sys.executable)} -m torch.distributed.run "), ("-node 8", "-node 2"),
        ("reproduce all", f"reproduce {options}"), ("/shared/results", str(tmp_path / "two")),
        (" --device cuda:$LOCAL_RANK", ""),
    ):  # fmt: skip
        assert old in command
        command = command.replace(old, new)
    run("bash", "-c", command)
    assert len(list((tmp_path / "two" / "quick").glob("mnist-subsets.*.jsonl"))) == 2
    assert main([*options.split(), "--results", str(tmp_path / "one")]) == 0

    def records(folder: Path) -> list[dict]:
        own = ("commit", "machine", "versions", "seconds")
        return [{k: v for k, v in asdict(r).items() if k not in own} for r in read_results(folder / "quick")]

    assert records(tmp_path / "two") == records(tmp_path / "one")
