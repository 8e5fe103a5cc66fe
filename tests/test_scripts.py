"""The scripts that measure the repository itself."""

import importlib.util
import json
import sys
from pathlib import Path

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


def test_public_names_are_exported_ones_and_the_public_attributes_of_exported_classes():
    counts = load("count_lines").count(MODULE)
    # LIMIT, Public and size are documented; other, method and run are not.
    assert (counts.public, counts.documented, counts.public_docs) == (6, 3, 1 + 4 + 1)


def test_files_are_counted_by_package(tmp_path, capsys):
    for name in ("src/pstn/warp.py", "src/pstn/nn/layer.py", "src/pstn/nn/deep/heads.py", "tests/test_warp.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(MODULE)
    script = load("count_lines")
    script.main([str(tmp_path), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert {name: held["files"] for name, held in found["src/pstn"].items()} == {".": 1, "nn": 2, "total": 3}
    assert found["src/pstn"]["total"]["code"] == 3 * 12
    assert found["tests"]["total"]["documented_share"] == 0.5
    script.main([str(tmp_path)])
    assert capsys.readouterr().out.count("total") == 2


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
    assert "nn" in capsys.readouterr().err
