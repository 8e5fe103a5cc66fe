"""`pstn bench`: figures that are of this machine, taken in turns."""

import json
import platform
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import pstn
from pstn import bench
from pstn.bench import PARTS, Figure, measure, time_in_turns
from pstn.report import speed
from small_runs import run_command

ROOT = Path(__file__).parents[1]


def test_works_take_turns_and_the_first_turn_does_not_count():
    calls = []
    works = {"a": lambda: calls.append("a"), "b": lambda: (calls.append("b"), time.sleep(0.002))}
    times = time_in_turns(works, seconds=0.05)
    assert calls == ["a", "b"] * (len(times["a"]) + 1)
    assert len(times["a"]) == len(times["b"]) >= 3
    assert min(times["b"]) >= 0.002 > sorted(times["a"])[len(times["a"]) // 2]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators have other rules")
def test_memory_is_kept_between_turns():
    code = """
import resource, torch
from pstn.bench import time_in_turns
faults = []
def work():
    results = [torch.empty(600_000).fill_(1.0) for _ in range(4)]  # more than twice the largest of them
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
time_in_turns({"work": work}, seconds=0.1)
print((faults[-1] - faults[1]) / (len(faults) - 2))
"""
    said = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, timeout=120, check=True)
    assert float(said.stdout) < 500  # of 2,344 pages of 4 KiB


@pytest.mark.parametrize(
    "part", [pytest.param(part, marks=[pytest.mark.slow] if part == "train" else []) for part in PARTS]
)
def test_every_part_gives_figures(part):
    figures = measure(part, "cpu", seconds=0.01)
    assert all(figure.part == part and figure.value > 0 for figure in figures)
    assert len({(figure.what, figure.peer) for figure in figures}) == len(figures) >= 3
    assert any(figure.peer for figure in figures)


def test_figures_come_with_where_they_were_taken(tmp_path):
    out = tmp_path / "bench.json"
    result = run_command("bench", "warp", "--device", "cpu", "--seconds", "0.01", "--json", "--out", str(out))
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    assert record == json.loads(out.read_text())
    assert {"commit", "machine", "versions", "device", "figures"} <= record.keys()
    table = run_command("bench", "warp", "--device", "cpu", "--seconds", "0.01")
    assert all(figure["what"] in table.stdout for figure in record["figures"])
    assert all(figure["peer"] in table.stdout for figure in record["figures"])


def made_up(value, *, unit="ms", machine="a machine", peer=""):
    figures = [{"part": "warp", "what": "some work", "value": value, "unit": unit, "peer": peer}]
    now = {"date": "2026-01-01", "device": "cpu", "machine": machine, "commit": "abc", "versions": {}, "load": 0.0}
    return {**now, "absent": ["kornia"], "figures": figures}


@pytest.mark.parametrize(
    ("now", "before", "unit", "found"),
    [
        (1.11, 1.0, "ms", True), (1.09, 1.0, "ms", False), (0.5, 1.0, "ms", False),
        (0.9, 1.0, "images/s", True), (0.92, 1.0, "images/s", False), (2.0, 1.0, "images/s", False),
    ],
)  # fmt: skip
def test_what_takes_ten_percent_longer_than_in_the_last_entry_is_named(now, before, unit, found):
    history = [made_up(100.0, unit=unit), made_up(before, unit=unit), made_up(now / 9, unit=unit, machine="other")]
    sentences = speed.find_regressions(made_up(now, unit=unit), history)
    assert [("some work" in sentence, "abc" in sentence) for sentence in sentences] == [(True, True)] * found


def test_peers_and_other_machines_are_not_compared():
    assert speed.find_regressions(made_up(9.0), []) == []
    assert speed.find_regressions(made_up(9.0), [made_up(1.0, machine="other")]) == []
    assert speed.find_regressions(made_up(9.0, peer="a peer"), [made_up(1.0, peer="a peer")]) == []


@pytest.fixture
def quick(monkeypatch):
    """`pstn bench` of one figure that is made up."""
    work = SimpleNamespace(value=1.0)

    def figures(device, seconds):
        return [Figure("warp", "some work", work.value, "ms"), Figure("warp", "some work", 3.0, "ms", "a peer")]

    monkeypatch.setitem(PARTS, "warp", figures)
    return work


def test_a_regression_is_said_and_fails_on_request(quick, tmp_path):
    pytest.importorskip("jinja2")
    command = ("bench", "warp", "--device", "cpu", "--history", str(tmp_path / "history.jsonl"))
    assert run_command(*command, "--fail").exit_code == 0
    quick.value = 1.2
    told = run_command(*command)
    assert told.exit_code == 0
    assert "some work: 1 -> 1.2 ms" in told.output
    quick.value = 1.5
    assert run_command(*command, "--fail").exit_code == 1
    assert [r["figures"][0]["value"] for r in speed.read_history(tmp_path / "history.jsonl")] == [1.0, 1.2, 1.5]


def test_the_page_has_every_figure_beside_its_peers(quick, tmp_path, monkeypatch):
    pytest.importorskip("jinja2")
    monkeypatch.setattr(bench, "import_kornia", lambda: None)
    page, history = tmp_path / "docs" / "speed.md", tmp_path / "history.jsonl"
    speed.add_to_history(history, made_up(7.0, machine="a second machine"))
    written = ("--page", str(page), "--history", str(history))
    result = run_command("bench", "warp", "--device", "cpu", *written)
    assert result.exit_code == 0, result.output
    text = page.read_text()
    assert "| some work | **1 ms** | a peer | 3 ms | 3 times |" in text
    assert "a second machine" in text
    assert "kornia does not import there" in text
    assert (page.parent / "images" / "speed.png").stat().st_size > 1000
    page.unlink()
    quick.value = 5.0
    assert run_command("bench", "--redraw", *written).exit_code == 0
    assert page.read_text() == text


@pytest.mark.skipif(not (ROOT / "docs" / "speed.md").exists(), reason="only a clone has the page")
def test_the_committed_page_is_that_of_the_committed_measurements():
    pytest.importorskip("jinja2")
    records = speed.read_history(ROOT / "benchmarks" / "results" / "history.jsonl")
    made = speed.speed_page(speed.sections_of(records, ROOT / speed.COMMITTED), "images/speed.png")
    redraw = "pstn bench --redraw --page docs/speed.md --history benchmarks/results/history.jsonl"
    assert (ROOT / "docs" / "speed.md").read_text(encoding="utf-8") == made, f"run: {redraw}"
    peers = {
        peer for section in speed.committed_sections(ROOT / speed.COMMITTED) for r in section.rows for peer in r.values
    }
    assert {"the authors' code", "difw", "libcpab"} <= peers


def test_kornia_warps_as_this_package_does():
    kornia = bench.import_kornia()
    if kornia is None:
        pytest.skip("kornia is not installed")
    theta, x = torch.rand(4, 4), torch.rand(4, 1, 12, 12)
    matrices = torch.cat([pstn.Similarity().matrix(theta), torch.tensor([0.0, 0, 1]).expand(4, 1, 3)], 1)
    ours = pstn.warp(x, pstn.Similarity().grid(theta, (12, 12)))
    torch.testing.assert_close(kornia(x, matrices, (12, 12)), ours, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nonsense"], "predict"),
        (["warp", "--device", "nonsense"], "device must be"),
        (["--seconds", "-1"], "seconds"),
        (["--fail"], "--history"),
        (["--redraw", "--page", "x.md"], "--history"),
    ],
)
def test_mistakes_are_answered(arguments, said):
    result = run_command("bench", *arguments)
    assert result.exit_code == 2
    assert said in result.output
