"""The example of docs/extending-experiments.md: an experiment of one's own, run and reported by the commands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pstn.cli import app
from pstn.report.results import read_results

PAGE = Path(__file__).parents[2] / "docs" / "extending-experiments.md"


@pytest.mark.slow
def test_an_experiment_of_ones_own_has_table_significance_and_figure(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = re.search(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[1]
    assert len([line for line in code.splitlines() if line.strip()]) <= 50
    assert not re.search(r"[.\s]_[a-z]", code)  # public names alone
    (tmp_path / "mine.py").write_text(code)
    for arguments in (["reproduce", "mine:STUDY", "--device", "cpu"], ["report", "--experiment", "mine:STUDY"]):
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 0, done.output
    assert len(read_results(tmp_path / "results", "my-weights")) == 10
    assert "my-weights       10 of 10 runs, claimed orders: 1 holds" in done.output
    text = (tmp_path / "report" / "report.md").read_text()
    assert "| w | accuracy (%) | NLL | scale of the angle |" in text
    assert "| holds |" in text
    assert re.search(r"\*\*0\.\d+\N{NO-BREAK SPACE}±", text)  # the significantly better scale is bold
    assert (tmp_path / "report" / "figures" / "my-weights.png").exists()
