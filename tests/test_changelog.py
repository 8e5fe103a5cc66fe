"""Every entry of CHANGELOG.md for 0.1.0 has tests, named in `changelog_map.yaml`."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest
import yaml

TESTS = Path(__file__).parent
MAP = yaml.safe_load((TESTS / "changelog_map.yaml").read_text(encoding="utf-8"))


def entries():
    """The entries of 0.1.0, each on one line."""
    changelog = (TESTS.parent / "CHANGELOG.md").read_text(encoding="utf-8")
    section = re.search(r"^## \[0\.1\.0\].*?(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL).group()
    return [" ".join(entry.split()) for entry in re.split(r"^- ", section, flags=re.MULTILINE)[1:]]


@cache
def functions_in(path):
    return {
        node.name for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.FunctionDef)
    }


def test_every_entry_is_mapped_once_and_nothing_else_is():
    keys = [[key for key in MAP if entry.startswith(key)] for entry in entries()]
    assert [entry for entry, found in zip(entries(), keys, strict=True) if len(found) != 1] == []
    assert {key for found in keys for key in found} == MAP.keys()


@pytest.mark.parametrize("beginning", MAP)
def test_the_tests_of_an_entry_exist(beginning):
    named = MAP[beginning]
    assert all(named.values())
    missing = [
        f"{file}::{name}"
        for file, names in named.items()
        for name in names
        if not (TESTS / file).is_file() or not name.startswith("test_") or name not in functions_in(TESTS / file)
    ]
    assert missing == []
