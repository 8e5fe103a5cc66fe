"""Untrusted JSON and YAML: what is refused, within little memory and time."""

import os
import re
from pathlib import Path

import pytest

import pstn
from data_files import refused
from pstn.files import inside, parse_json, parse_yaml, read_json, read_yaml, require_regular_file
from pstn.limits import JSON_BYTES, TEXT_DEPTH, YAML_BYTES
from security.limited import run_limited

LAUGHS = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{b}: &{b} [{','.join([f'*{a}'] * 10)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize("read", [read_json, read_yaml, require_regular_file])
def test_a_named_pipe_is_refused_without_waiting(read, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    refused("pipe", read, tmp_path / "pipe")
    refused("null", read, os.devnull)


@pytest.mark.parametrize(("read", "limit"), [(read_json, JSON_BYTES), (read_yaml, YAML_BYTES)])
def test_a_file_above_the_limit_is_refused(read, limit, tmp_path):
    with (tmp_path / "large").open("wb") as file:
        file.truncate(1 << 40)
    refused(f"{limit:,}", read, tmp_path / "large")


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1, "a": 2}', '{"b": {"a": 1, "a": 1}}', "[NaN]", "[-Infinity]", "[1e999]", "[" + "9" * 5000 + "]", "[1",
        "", "\0", "[" * 65 + '"\\' * (1 << 22),
    ],
)  # fmt: skip
def test_json_that_is_ambiguous_or_none_is_refused(text):
    refused(r"x\.json", parse_json, text, "x.json")


@pytest.mark.parametrize(
    "text",
    [
        "a: 1\na: 2", "{1: 2, 0x1: 3}", "{[a]: 1}", "1:" * 50_000 + "1", "0x" + "f" * 9999, "9" * 5000, "2001-99-99",
        "\0", "a: b: c", "[" * 100_000, "- " * 100_000, "? " * 1000, "\n".join(" " * i + "a:" for i in range(300)),
    ],
)  # fmt: skip
def test_yaml_that_is_ambiguous_deep_or_none_is_refused(text):
    assert len(str(refused(r"x\.yaml", parse_yaml, text, "x.yaml"))) < 400


@pytest.mark.parametrize("text", ["!!python/object/apply:os.getcwd []", "!!python/name:os.getcwd", "a: !x" + "y" * 999])
def test_yaml_tags_of_python_are_refused(text):
    assert len(str(refused(r"x\.yaml", parse_yaml, text, "x.yaml"))) < 400


def test_the_depth_of_json_is_counted_outside_strings():
    within = "[" * TEXT_DEPTH + "]" * TEXT_DEPTH
    assert parse_json(within, "x.json") is not None
    for deep in (f"[{within}]", '{"a":' * 100 + "1" + "}" * 100, "[" * 10**6, '["\\"", ' + "[" * 100 + "]" * 101):
        refused("levels", parse_json, deep, "x.json")
    brackets = "[" * 200 + '\\"'
    assert parse_json(f'["{brackets}", "\\\\", [1]]', "x.json") == ["[" * 200 + '"', "\\", [1]]


def test_yaml_aliases_are_refused():
    for text in (LAUGHS, "a: &a [*a]", "a: &a {b: 1}\nc:\n  <<: *a", "a: {<<: {b: 1}}"):
        assert len(str(refused("alias|merge", parse_yaml, text, "x.yaml"))) < 200
    assert parse_yaml("a: &a 1", "x.yaml") == {"a": 1}


def test_a_link_out_of_a_folder_is_refused(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    (root / "out").symlink_to(tmp_path)
    (root / "circle").symlink_to(root / "circle")
    (root / "within").symlink_to(root)
    for name in ("out/x", "out", "circle/x", "../x", "/x", "C:x", "", " ", "a\0b"):
        refused("leads out", inside, root, name)
    assert inside(root, "within/x") == root / "within" / "x"


@pytest.mark.slow
def test_the_largest_texts_take_bounded_memory():
    done = run_limited(
        """
        from pstn.files import parse_json
        from pstn.files import parse_yaml
        from pstn.limits import JSON_BYTES, YAML_BYTES
        parse_json("[" + "[]," * (JSON_BYTES // 3 - 2) + "1]", "x.json")
        parse_yaml("[" + "[]," * (YAML_BYTES // 3 - 2) + "1]", "x.yaml")
        """,
        imports="import yaml",
        memory=1 << 30,
    )
    assert done.returncode == 0, done.stderr


def test_json_and_yaml_are_read_in_one_place_each():
    package = Path(pstn.__file__).parent
    readers = re.compile(r"\bjson\.loads?\(|\byaml\.\w*(load|compose|parse)\w*\(")
    found = {path.relative_to(package).as_posix() for path in package.rglob("*.py") if readers.search(path.read_text())}
    assert found == {"files.py"}
