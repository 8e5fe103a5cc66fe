"""YAML files from anybody, read within limits: the only place of the package that reads YAML."""

from __future__ import annotations

import os
from typing import Any

from pstn.files import FileError, read_text_file
from pstn.limits import TEXT_DEPTH, YAML_BYTES, YAML_NUMBER
from pstn.text import excerpt

__all__ = ["parse_yaml", "read_yaml"]


def read_yaml(path: str | os.PathLike[str], *, limit: int = YAML_BYTES, error: type[FileError] = FileError) -> Any:
    """The value in a YAML file from anybody; see `parse_yaml`.

    Args:
        path: a regular file.
        limit: the most bytes that it may hold.
        error: the type of the error to raise.

    Raises:
        FileError: it is no regular file, is too long, or `parse_yaml` refuses it.
        OSError: it cannot be read.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.yaml"
        >>> _ = path.write_text("seed: 1")
        >>> read_yaml(path)
        {'seed': 1}
    """
    return parse_yaml(read_text_file(path, limit, error), path, limit=limit, error=error)


def parse_yaml(
    text: str, path: str | os.PathLike[str], *, limit: int = YAML_BYTES, strings: bool = False,
    error: type[FileError] = FileError,
) -> Any:  # fmt: skip
    """The value of a YAML text from anybody; needs PyYAML.

    Beside what YAML itself refuses: aliases, with which a short text describes an endless value, merge keys (`<<`), a
    key that occurs twice in a mapping, a depth above the limit, and tags other than those of plain values.

    Args:
        text: the text.
        path: the file that holds it, for messages.
        limit: the most characters that it may have.
        strings: leave every scalar the text that is written: class names such as "no" or "1".
        error: the type of the error to raise.

    Raises:
        FileError: the text is refused.

    Example:
        >>> parse_yaml("seed: 1", "settings.yaml"), parse_yaml("[no, 1]", "data.yaml", strings=True)
        ({'seed': 1}, ['no', '1'])
    """
    import yaml

    if len(text) > limit:
        raise error(path, f"is longer than {limit:,} characters, which is the limit")
    try:
        return _yaml_loader(text, path, error, strings).get_single_data()
    except FileError:
        raise
    except yaml.YAMLError as problem:
        raise error(path, f"is not YAML that can be read: {' '.join(str(problem).split())[:200]}") from problem
    except (ValueError, TypeError, OverflowError) as problem:  # a date that does not exist, a key that cannot be one
        raise error(path, f"is not YAML that can be read: {str(problem)[:120]}") from problem


def _yaml_loader(text: str, path: str | os.PathLike[str], error: type[FileError], strings: bool) -> Any:
    """PyYAML's loader of plain values, stricter."""
    import yaml

    base: Any = yaml.BaseLoader if strings else yaml.SafeLoader

    class Loader(base):  # type: ignore[misc]  # PyYAML has no annotations
        depth = 0

        def compose_node(self, parent: Any, index: Any) -> Any:
            event = self.peek_event()
            place = f"line {event.start_mark.line + 1}"
            if isinstance(event, yaml.AliasEvent):
                raise error(path, f"holds an alias, *{str(event.anchor)[:40]}: aliases are refused", place=place)
            if self.depth > TEXT_DEPTH:
                raise error(path, f"is nested more than {TEXT_DEPTH} levels deep", place=place)
            self.depth += 1
            node = super().compose_node(parent, index)
            self.depth -= 1
            return node

        def construct_object(self, node: Any, deep: bool = False) -> Any:
            long = isinstance(node, yaml.ScalarNode) and not strings and node.tag != "tag:yaml.org,2002:str"
            if long and len(node.value) > YAML_NUMBER:
                place = f"line {node.start_mark.line + 1}"
                raise error(path, f"{excerpt(node.value)} is too long for a value that is not text", place=place)
            return super().construct_object(node, deep)

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            seen = set()
            for key, _ in node.value:
                place = f"line {key.start_mark.line + 1}"
                if key.tag == "tag:yaml.org,2002:merge":
                    raise error(path, "holds a merge key (<<): they are refused", place=place)
                name = self.construct_object(key, deep=True)
                try:
                    twice = name in seen
                except TypeError:
                    raise error(path, "a key is a list or a mapping", place=place) from None
                if twice:
                    raise error(path, f"the key {excerpt(name)} occurs twice", place=place)
                seen.add(name)
            return super().construct_mapping(node, deep)

    return Loader(text)
