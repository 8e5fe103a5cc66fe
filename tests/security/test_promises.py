"""Every promise of SECURITY.md names tests that exist."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
PROMISES = re.findall(r"^\| (.+?) \| (.*`.*::.*) \|$", TEXT, flags=re.MULTILINE)


def test_every_row_of_the_table_of_promises_names_a_test():
    table = TEXT.partition("## What is promised")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("|")][2:]
    assert len(rows) == len(PROMISES) > 10


@pytest.mark.parametrize(("promise", "tests"), PROMISES, ids=[promise[:50] for promise, _ in PROMISES])
def test_the_tests_of_a_promise_exist(promise, tests):
    named = re.findall(r"`([^`]+)::([^`]+)`", tests)
    assert named
    for file, name in named:
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, f"{file}::{name}"
