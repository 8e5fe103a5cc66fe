"""`pstn bench`: figures that are of this machine, taken in turns."""

import json
import time

import pytest

from pstn.bench import PARTS, measure, time_in_turns
from small_runs import run_command


def test_works_take_turns_and_the_first_turn_does_not_count():
    calls = []
    works = {"a": lambda: calls.append("a"), "b": lambda: (calls.append("b"), time.sleep(0.002))}
    times = time_in_turns(works, seconds=0.05)
    assert calls == ["a", "b"] * (len(times["a"]) + 1)
    assert len(times["a"]) == len(times["b"]) >= 3
    assert min(times["b"]) >= 0.002 > sorted(times["a"])[len(times["a"]) // 2]


@pytest.mark.parametrize(
    "part", [pytest.param(part, marks=[pytest.mark.slow] if part == "train" else []) for part in PARTS]
)
def test_every_part_gives_figures(part):
    figures = measure(part, "cpu", seconds=0.01)
    assert all(figure.part == part and figure.value > 0 for figure in figures)
    assert len({figure.what for figure in figures}) == len(figures) >= 3


def test_figures_come_with_where_they_were_taken(tmp_path):
    out = tmp_path / "bench.json"
    result = run_command("bench", "warp", "--device", "cpu", "--seconds", "0.01", "--json", "--out", str(out))
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    assert record == json.loads(out.read_text())
    assert {"commit", "machine", "versions", "device", "figures"} <= record.keys()
    table = run_command("bench", "warp", "--device", "cpu", "--seconds", "0.01")
    assert all(figure["what"] in table.stdout for figure in record["figures"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["nonsense"], "predict"), (["warp", "--device", "nonsense"], "device must be"), (["--seconds", "-1"], "seconds")],
)
def test_mistakes_are_answered(arguments, said):
    result = run_command("bench", *arguments)
    assert result.exit_code == 2
    assert said in result.output
