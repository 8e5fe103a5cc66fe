"""The scripts that measure the repository itself."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pstn.report.results import Result, read_results

SCRIPTS = Path(__file__).parents[1] / "scripts"


def load(name):
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


MODULE = '''"""A module.

Two paragraphs.
"""

__all__ = ["LIMIT", "Public", "run"]

# A comment.
LIMIT = 3  # code
"""Of something."""


class Public:
    """One line.

    Attributes:
        size: of it.
    """

    size: int
    other: int

    def method(self):
        return """text,
        not a docstring"""

    def _hidden(self):
        pass


def run(): ...


def _helper():
    """Not public."""
'''


def test_code_is_what_is_neither_comment_nor_docstring():
    counts = load("count_lines").count(MODULE)
    # __all__, LIMIT, class, size, other, method (3), _hidden (2), run, _helper
    assert (counts.lines, counts.code, counts.docs, counts.comments) == (35, 12, 11, 1)
    # LIMIT, Public and size are documented; other, method and run are not.
    assert (counts.public, counts.documented, counts.public_docs) == (6, 3, 1 + 4 + 1)


def test_shards_are_merged_into_one_file_per_experiment(tmp_path):
    script = load("merge_results")
    cells = [Result("small", "CNN", "A", seed) for seed in (0, 1)] + [Result("other", "CNN", "A", 0)]
    for cell in cells:
        cell.write(tmp_path)
    assert script.merge(tmp_path) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other.jsonl", "small.jsonl"]
    again = Result("small", "CNN", "A", 1, seconds=2.0)
    again.write(tmp_path)
    assert script.merge(tmp_path) == 1
    assert read_results(tmp_path) == [cells[2], cells[0], again]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other.jsonl", "small.jsonl"]


def coverage_report(tmp_path, covered):
    summary = {"num_statements": 10, "covered_lines": 8, "num_branches": 4, "covered_branches": covered}
    files = {name: {"summary": summary} for name in ("src/pstn/warp.py", "src/pstn/nn/a.py", "src/pstn/nn/b.py")}
    path = tmp_path / "coverage.json"
    path.write_text(json.dumps({"files": files}))
    return str(path)


def test_coverage_is_summed_by_package_and_less_than_the_baseline_fails(tmp_path, capsys):
    script, baseline = load("coverage_by_package"), str(tmp_path / "baseline.json")
    assert script.main([coverage_report(tmp_path, 3), "--out", baseline, "--commit", "abc"]) == 0
    held = json.loads(Path(baseline).read_text())
    assert held["commit"] == "abc"
    assert {name: sums["num_branches"] for name, sums in held["packages"].items()} == {".": 4, "nn": 8, "total": 12}
    assert held["packages"]["nn"]["branch_percent"] == 75.0
    assert script.main([coverage_report(tmp_path, 3), "--baseline", baseline]) == 0
    assert script.main([coverage_report(tmp_path, 2), "--baseline", baseline]) == 1
    assert "nn has less" in capsys.readouterr().err
    packages = held["packages"]
    for others in ({**packages, "old": packages["nn"]}, {name: packages[name] for name in (".", "total")}):
        Path(baseline).write_text(json.dumps({"packages": others}))  # of other packages than those that are there
        assert script.main([coverage_report(tmp_path, 3), "--baseline", baseline]) == 1


CODE = '''"""Text, with 1 + 1."""

import math

__all__ = ["f"]


def f(x: int, low: float = 0.5) -> int:
    """Text."""
    if not x < low:
        raise ValueError(f"x must be below {1 + 1}")
    y = -x + 1 if x else 2
    return y
'''


def test_mutants_change_code_and_neither_text_nor_annotations():
    script = load("mutate")
    found = script.find_mutants("a.py", CODE)
    unchanged = script.mutate(CODE, None)
    sources = [script.mutate(CODE, mutant.index) for mutant in found]
    assert len({unchanged, *sources}) == len(found) + 1  # all differ
    assert all(source.startswith('"""Text, with 1 + 1."""') for source in sources)
    assert sum("below {1 + 1}" in source for source in sources) == len(found) - 1  # one drops the statement
    assert all("x: int" in source and "__all__ = ['f']" in source and "import math" in source for source in sources)
    changes = {(mutant.kind, mutant.change) for mutant in found}
    assert {
        ("constant", "def f(x: int, low: float=0.5) -> int: -> def f(x: int, low: float=1.0) -> int:"),
        ("operator", "if not x < low: -> if not x <= low:"),
        ("operator", "if not x < low: -> if not not x < low:"),
        ("statement", "raise ValueError(f'x must be below {1 + 1}') -> pass"),
        ("operator", "y = -x + 1 if x else 2 -> y = -x - 1 if x else 2"),
        ("branch", "y = -x + 1 if x else 2 -> y = -x + 1 if not x else 2"),
        ("statement", "return y -> pass"),
    } <= changes
    assert {mutant.owner for mutant in found} == {"f"}


def test_the_mutants_that_do_not_count_are_there():
    """So that a module that is renamed, or a line that is changed, does not leave a reason behind."""
    script, sources = load("mutate"), SCRIPTS.parent / "src" / "pstn"
    reasons = json.loads((SCRIPTS / "mutants.json").read_text())
    modules = {name.partition(",")[0] for name in reasons}
    there = {
        mutant.name for module in modules for mutant in script.find_mutants(module, (sources / module).read_text())
    }
    assert reasons.keys() <= there


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_what_was_killed_goes_on_to_the_same_bits(tmp_path):
    command = [sys.executable, SCRIPTS / "survival.py", "--kills", "3", "--out", tmp_path / "out.json"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "out.json").read_text())
    assert (found["kills"], found["differing"]) == ({"train": 1, "sweep": 1, "reproduce": 1}, [])
