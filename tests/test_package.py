"""What `import pstn` gives, in an interpreter that has imported nothing else; and what a source distribution holds."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import pstn
from pstn.cli import _EXTRAS

ROOT = Path(__file__).parents[1]
ROOMS = ("data", "experiments", "export", "predict", "report", "training")
WITHOUT_EXTRAS = f"""
import inspect, sys
for name in {sorted(_EXTRAS)}:
    sys.modules[name] = None
import torch, pstn
assert set({ROOMS}) <= set(dir(pstn))
pstn.data.load("digits"), pstn.data.load("ItalyPowerDemand")
pstn.experiments.EXPERIMENTS, pstn.export.export_onnx, pstn.predict.predict_files
pstn.report.pictures.draw_samples, pstn.training.Population
assert len(inspect.getmembers(pstn)) > 40  # as help(pstn) reads them
assert not hasattr(pstn, "dating")
assert pstn.nn.mnist_pstn().eval()(torch.rand(2, 1, 28, 28)).log_probs.shape == (2, 10)
from pstn import warp
assert callable(warp)  # no module, whatever was imported before
"""


def run(code):
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True
    ).stdout


def test_importing_pstn_loads_nothing_and_its_first_name_the_core_alone():
    assert "torch" not in run("import sys, pstn; print(*sys.modules)").split()
    loaded = run("import sys, pstn; pstn.PSTN; print(*sys.modules)").split()
    assert "pstn.nn" in loaded
    assert not {f"pstn.{name}" for name in (*ROOMS, "estimators", "app", "commands") if name != "training"} & set(
        loaded
    )
    assert not set(_EXTRAS) & set(loaded)


def test_everything_that_is_listed_is_there_without_any_extra():
    run(WITHOUT_EXTRAS)


def test_a_source_distribution_holds_what_its_tests_read():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    included = project["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    for test in ROOT.glob("tests/**/*.py"):
        named = re.findall(r"(?:ROOT|root|parents\[\d\]) / \"([\w.]+)\"", test.read_text(encoding="utf-8"))
        # pyproject.toml is always there; what reads results is skipped where there are none.
        read = {name for name in named if (ROOT / name).exists()} - {"pyproject.toml", "results"}
        assert read <= set(included), test


def test_citation_changelog_and_recipe_are_of_this_version():
    yaml = pytest.importorskip("yaml")
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    version, released = re.search(r"^## \[([\d.]+)\] - (\S+)$", changelog, re.MULTILINE).groups()
    recipe = re.search(r'set version = "([^"]+)"', (ROOT / "recipe" / "meta.yaml").read_text(encoding="utf-8"))[1]
    assert version == citation["version"] == recipe == pstn.__version__
    # A release has its date in both.
    assert released == str(citation.get("date-released", "unreleased"))
    assert citation["preferred-citation"]["url"] in (ROOT / "README.md").read_text(encoding="utf-8")
