"""Reading and writing files: JSON and YAML within limits, paths that stay in a folder, atomic writes."""

from __future__ import annotations

import errno
import hashlib
import importlib
import json
import math
import os
import stat
import tempfile
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO, Any, NoReturn

from pstn.limits import JSON_BYTES, TEXT_DEPTH, YAML_BYTES, YAML_NUMBER
from pstn.text import excerpt, printable, shorten

__all__ = [
    "DataError", "import_optional", "inside", "load_safetensors", "open_regular_file", "parse_json", "parse_yaml",
    "read_json", "read_text_file", "read_yaml", "require_regular_file", "require_writable", "sha256_of", "to_json",
    "write_atomically",
]  # fmt: skip


class DataError(ValueError):
    """A file that cannot be used as it is.

    Args:
        path: the file or folder.
        problem: what is wrong with it, and what is accepted; shortened if it repeats much of the file.
        place: where in the file: a line, an offset, a key; also shortened.

    Example:
        >>> print(DataError("settings.yaml", "the key 'seed' occurs twice", place="line 3"))
        settings.yaml: line 3: the key 'seed' occurs twice
    """

    def __init__(self, path: str | os.PathLike[str], problem: str, *, place: str | None = None) -> None:
        problem, place = shorten(problem), None if place is None else shorten(place, 200)
        name = printable(path, lines=False)
        super().__init__(f"{name}: {problem}" if place is None else f"{name}: {place}: {problem}")
        self.path, self.problem, self.place = path, problem, place

    def __reduce__(self) -> tuple[object, ...]:
        # The default would call __init__ with the final message only, and fail in a worker process.
        return partial(type(self), place=self.place), (self.path, self.problem)


def require_regular_file(path: str | os.PathLike[str]) -> Path:
    """Refuse anything but a regular file: opening a named pipe blocks, and a device has no end.

    Args:
        path: a file; a link to one is followed.

    Returns:
        The path.

    Raises:
        DataError: it is a folder, a named pipe, a socket or a device.
        FileNotFoundError: it does not exist.

    Example:
        >>> require_regular_file(os.devnull)
        Traceback (most recent call last):
        pstn.files.DataError: /dev/null: is not a regular file
    """
    path = Path(path)
    if not stat.S_ISREG(path.stat().st_mode):
        raise DataError(path, "is not a regular file")
    return path


@contextmanager
def open_regular_file(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Open a regular file for reading bytes; anything else is refused without blocking.

    Args:
        path: a file; a link to one is followed.

    Raises:
        DataError: it is a folder, a named pipe, a socket or a device.
    """
    require_regular_file(path)
    # Checked again once it is open: it may have been replaced by a pipe in between.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    with os.fdopen(os.open(path, flags), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise DataError(path, "is not a regular file")
        yield file


def read_text_file(path: str | os.PathLike[str], limit: int) -> str:
    """The text of a regular file of at most `limit` bytes, as UTF-8 with or without a byte-order mark."""
    with open_regular_file(path) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise DataError(path, f"is longer than {limit:,} bytes, which is the limit")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise DataError(path, f"is not UTF-8 text ({problem.reason})", place=f"byte {problem.start}") from problem


def read_json(path: str | os.PathLike[str], *, limit: int = JSON_BYTES) -> Any:
    """The value in an untrusted JSON file; see `parse_json`.

    Args:
        path: a regular file.
        limit: the most bytes that it may hold.

    Raises:
        DataError: it is no regular file, is too long, or `parse_json` refuses it.
        OSError: it cannot be read.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "a.json"
        >>> _ = path.write_text('{"seed": 1}')
        >>> read_json(path)
        {'seed': 1}
    """
    return parse_json(read_text_file(path, limit), path, limit=limit)


def parse_json(text: str, path: str | os.PathLike[str], *, limit: int = JSON_BYTES, constants: bool = False) -> Any:
    """The value of an untrusted JSON text.

    A key that occurs twice in an object, a depth above the limit and numbers that are not finite are refused.

    Args:
        text: the text.
        path: the file that holds it, for messages.
        limit: the most characters that it may have.
        constants: whether NaN and Infinity, which Python writes though JSON has neither, are accepted.

    Raises:
        DataError: the text is refused.

    Example:
        >>> parse_json('{"seed": 1, "seed": 2}', "config.json")
        Traceback (most recent call last):
        pstn.files.DataError: config.json: the key 'seed' occurs twice in one object
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            [(twice, _)] = Counter(name for name, _ in pairs).most_common(1)
            raise DataError(path, f"the key {excerpt(twice)} occurs twice in one object")
        return found

    def finite(digits: str) -> float:
        value = float(digits)
        if not math.isfinite(value):
            raise DataError(path, f"holds {excerpt(digits)}, which is not a finite number")
        return value

    if len(text) > limit:
        raise DataError(path, f"is longer than {limit:,} characters, which is the limit")
    options: dict[str, Any] = {} if constants else {"parse_constant": finite, "parse_float": finite}
    try:
        value = json.loads(text, object_pairs_hook=unique, **options)
        if _is_deep(value):
            raise RecursionError
        return value
    except DataError:
        raise
    except RecursionError:
        raise DataError(path, f"is nested more than {TEXT_DEPTH} levels deep") from None
    except ValueError as problem:  # not JSON, or an integer with more digits than Python reads
        raise DataError(path, f"is not JSON that can be read: {str(problem)[:120]}") from problem


def _is_deep(value: Any) -> bool:
    """Whether lists and mappings within each other have more levels than the limit."""
    level = [value]
    for _ in range(TEXT_DEPTH + 1):
        held = [part.values() if isinstance(part, dict) else part for part in level if isinstance(part, (dict, list))]
        level = [part for parts in held for part in parts]
    return bool(held)


def read_yaml(path: str | os.PathLike[str], *, limit: int = YAML_BYTES) -> Any:
    """The value in an untrusted YAML file; see `parse_yaml`.

    Args:
        path: a regular file.
        limit: the most bytes that it may hold.

    Raises:
        DataError: it is no regular file, is too long, or `parse_yaml` refuses it.
        OSError: it cannot be read.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.yaml"
        >>> _ = path.write_text("seed: 1")
        >>> read_yaml(path)
        {'seed': 1}
    """
    return parse_yaml(read_text_file(path, limit), path, limit=limit)


def parse_yaml(text: str, path: str | os.PathLike[str], *, limit: int = YAML_BYTES, strings: bool = False) -> Any:
    """The value of an untrusted YAML text; needs PyYAML.

    Beside what YAML itself refuses: aliases, with which a short text describes an endless value, merge keys (`<<`), a
    key that occurs twice in a mapping, a depth above the limit, and tags other than those of plain values.

    Args:
        text: the text.
        path: the file that holds it, for messages.
        limit: the most characters that it may have.
        strings: leave every scalar the text that is written: class names such as "no" or "1".

    Raises:
        DataError: the text is refused.

    Example:
        >>> parse_yaml("seed: 1", "settings.yaml"), parse_yaml("[no, 1]", "data.yaml", strings=True)
        ({'seed': 1}, ['no', '1'])
    """
    import yaml

    if len(text) > limit:
        raise DataError(path, f"is longer than {limit:,} characters, which is the limit")
    base: Any = yaml.BaseLoader if strings else yaml.SafeLoader

    def refuse(at: Any, problem: str) -> NoReturn:
        raise DataError(path, problem, place=f"line {at.start_mark.line + 1}")

    class Loader(base):  # type: ignore[misc]  # PyYAML has no annotations
        depth = 0

        def compose_node(self, parent: Any, index: Any) -> Any:
            event = self.peek_event()
            if isinstance(event, yaml.AliasEvent):
                refuse(event, f"holds an alias, *{str(event.anchor)[:40]}: aliases are refused")
            if self.depth > TEXT_DEPTH:
                refuse(event, f"is nested more than {TEXT_DEPTH} levels deep")
            self.depth += 1
            node = super().compose_node(parent, index)
            self.depth -= 1
            return node

        def construct_object(self, node: Any, deep: bool = False) -> Any:
            long = isinstance(node, yaml.ScalarNode) and not strings and node.tag != "tag:yaml.org,2002:str"
            if long and len(node.value) > YAML_NUMBER:
                refuse(node, f"{excerpt(node.value)} is too long for a value that is not text")
            return super().construct_object(node, deep)

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            seen = set()
            for key, _ in node.value:
                if key.tag == "tag:yaml.org,2002:merge":
                    refuse(key, "holds a merge key (<<): they are refused")
                if (name := self.construct_object(key, deep=True)) in seen:
                    refuse(key, f"the key {excerpt(name)} occurs twice")
                seen.add(name)
            return super().construct_mapping(node, deep)

    try:
        return Loader(text).get_single_data()
    except DataError:
        raise
    # The last three: a date that does not exist, a key that cannot be one.
    except (yaml.YAMLError, ValueError, TypeError, OverflowError) as problem:
        raise DataError(path, f"is not YAML that can be read: {' '.join(str(problem).split())[:200]}") from problem


def inside(root: Path, name: str, *, owner: str | os.PathLike[str] | None = None) -> Path:
    """`root / name`, refused if it would lead out of `root`.

    Names in index files and archives, and links in a folder, are untrusted. Absolute names, drive letters, ".." and
    links to elsewhere are refused on every platform.

    Args:
        root: the folder to stay in; it may itself be a link.
        name: a relative name with forward slashes.
        owner: the file that contains the name, for the message.

    Returns:
        The path, whether or not it exists.

    Raises:
        DataError: it leads out of the folder.

    Example:
        >>> inside(Path("images"), "../secret.jpg")
        Traceback (most recent call last):
        pstn.files.DataError: images: '../secret.jpg' leads out of the folder
    """
    posix, windows = PurePosixPath(name), PureWindowsPath(name)
    relative = not (posix.is_absolute() or windows.drive or windows.root or ".." in {*posix.parts, *windows.parts})
    try:
        stays = relative and bool(name.strip()) and (root / name).resolve().is_relative_to(root.resolve())
    except (OSError, RuntimeError, ValueError):  # a cycle of links, or a zero byte
        stays = False
    if not stays:
        raise DataError(root if owner is None else owner, f"{excerpt(name)} leads out of the folder")
    return root / name


def import_optional(module: str, package: str, extra: str) -> Any:
    """Import a module of an optional package, or raise an error that says how to install it.

    Args:
        module: what to import.
        package: the name of the package.
        extra: the extra of pstn that installs it.

    Example:
        >>> import_optional("json", "json", "cli").loads("1")
        1
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        text = f"this needs {package}, which is not installed: pip install 'pstn[{extra}]'"
        raise ModuleNotFoundError(text, name=error.name) from error


def load_safetensors(extra: str) -> Any:
    """The package safetensors with its torch module, or an error that says how to install it.

    Args:
        extra: the extra that installs it.

    Example:
        >>> load_safetensors("hub").torch.load(load_safetensors("hub").torch.save({"a": torch.ones(1)}))
        {'a': tensor([1.])}
    """
    import_optional("safetensors.torch", "safetensors", extra)
    return import_optional("safetensors", "safetensors", extra)


@contextmanager
def write_atomically(path: str | Path) -> Iterator[Path]:
    """Write to a temporary file next to `path`, which replaces `path` when the block ends without an error.

    Args:
        path: the file to write; its folder is created if necessary.

    Yields:
        The path of the temporary file, which is removed if the block raises.

    Raises:
        OSError: it cannot be written; the error names `path` and not the temporary file.

    Example:
        >>> import tempfile
        >>> target = Path(tempfile.mkdtemp()) / "folder" / "note.txt"
        >>> with write_atomically(target) as draft:
        ...     _ = draft.write_text("whole")
        >>> target.read_text(), [p.name for p in target.parent.iterdir()]
        ('whole', ['note.txt'])
    """
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = (
            "a part of it is a file" if isinstance(error, (FileExistsError, NotADirectoryError)) else error.strerror
        )
        raise OSError(error.errno, f"its folder cannot be made ({reason}): choose another path", str(target)) from error
    draft = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.draft")
    try:
        draft.touch(exist_ok=False)  # a link of this name would not be followed
        yield draft
        with draft.open("rb+") as stream:
            os.fsync(stream.fileno())
        draft.replace(target)
    except OSError as error:
        if str(error.filename) != str(draft):
            raise
        raise OSError(error.errno, error.strerror, str(target)) from error
    finally:
        draft.unlink(missing_ok=True)


def require_writable(folder: Path, option: str = "--out") -> None:
    """Create a folder, and refuse it if nothing can be written there: a check before long work.

    Args:
        folder: where something will be written.
        option: the command-line option that chooses another folder.

    Raises:
        OSError: with what is wrong and what to do.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as probe:  # with a new name: a link with a known name would be followed
            probe.write(b"\0")
    except OSError as error:
        problem = f"cannot write to the folder ({os.strerror(error.errno or errno.EIO)}); choose another with {option}"
        raise OSError(error.errno, problem, str(folder)) from error


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file on disk."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def to_json(value: Any, **options: Any) -> str:
    """JSON with null for every NaN and infinity, which a diverged model leaves behind and JSON does not have.

    Args:
        value: as `json.dumps` takes it.
        options: of `json.dumps`.

    Example:
        >>> to_json({"nll": [0.5, float("nan")]})
        '{"nll": [0.5, null]}'
    """
    return json.dumps(json.loads(json.dumps(value), parse_constant=lambda name: None), **options)
