"""What is not installed is said with the extra that holds it, by the commands and by the library."""

import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import numpy as np
import pytest

import pstn
from made_up_results import results_of
from pstn.cli import _EXTRAS, main
from pstn.experiments import EXPERIMENTS

ROOT = Path(__file__).parents[1]
OF_DEVELOPERS = ("dev", "docs")


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def extras():
    """The packages of each extra, with those of the extras that it names."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    listed = project["optional-dependencies"]

    def packages(extra):
        for requirement in listed[extra]:
            name, inner = re.match(r"([\w.-]+)(?:\[([\w,]+)\])?", requirement).groups()
            if name == "pstn":
                for other in inner.split(","):
                    yield from packages(other)
            else:
                yield normal(name)

    return {extra: set(packages(extra)) for extra in listed if extra not in OF_DEVELOPERS}


def modules_by_package():
    found = {}
    for module, packages in packages_distributions().items():
        for package in packages:
            found.setdefault(normal(package), set()).add(module)
    return found


def test_every_package_of_an_extra_is_explained_where_it_is_missing():
    modules = modules_by_package()
    for extra, packages in extras().items():
        for package in packages & set(modules):
            assert modules[package] & set(_EXTRAS), f"{package} of the extra {extra}: add it to _EXTRAS in cli.py"


def test_an_extra_that_is_named_brings_the_module():
    known, modules = extras(), modules_by_package()
    for module, extra in _EXTRAS.items():
        packages = {package for package, names in modules.items() if module in names}
        if packages:  # it is installed here
            assert packages & known[extra], f"{extra} does not bring {module}"


@pytest.mark.parametrize(
    ("module", "arguments", "extra"), [("jinja2", ["report"], "report"), ("matplotlib", ["demo"], "plot")]
)
def test_a_command_without_its_extra_says_what_to_install(module, arguments, extra, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    next(results_of(EXPERIMENTS["calibration"], np.random.default_rng(0))).write(tmp_path / "results")
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr(sys, "argv", ["pstn", *arguments])
    with pytest.raises(SystemExit, match=rf"needs {module}.*pip install 'pstn\[{extra}\]'"):
        main()


def test_the_core_without_safetensors_says_what_to_install(monkeypatch, tmp_path):
    folder = pstn.nn.mnist_cnn().save_pretrained(tmp_path / "model")
    for name in [name for name in sys.modules if name.partition(".")[0] == "safetensors"]:
        monkeypatch.setitem(sys.modules, name, None)
    message = r"needs safetensors, which is not installed: pip install 'pstn\[hub\]'"
    with pytest.raises(ImportError, match=message):
        pstn.nn.mnist_cnn().save_pretrained(tmp_path / "other")
    with pytest.raises(ImportError, match=message):
        pstn.from_pretrained(folder)
    with pytest.raises(ImportError, match=message):
        pstn.load_weights(pstn.nn.mnist_cnn(), folder / "model.safetensors")
    assert not (tmp_path / "other").exists()
