"""The scripts that measure the repository itself."""

import importlib.util
import json
import sys
from pathlib import Path

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


def test_the_count_of_the_repository_adds_up(capsys):
    load("count_lines").main(["--json"])
    for table in json.loads(capsys.readouterr().out).values():
        total = table.pop("total")
        for key in ("files", "lines", "code", "public"):
            assert total[key] == sum(package[key] for package in table.values())


def test_the_table_names_both_trees(capsys):
    load("count_lines").main([])
    out = capsys.readouterr().out
    assert "src/pstn" in out
    assert "tests" in out
