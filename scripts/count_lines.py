"""Count lines of code, per package, and how much of the public interface is documented.

A line of code holds a token that is neither a comment nor part of a docstring; a string that is a statement by itself
(such as the one below an attribute) counts as a docstring. A public name is one in `__all__` of the module that defines
it, or a public attribute of a class among those.

    python scripts/count_lines.py [--json] [ROOT]
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import tokenize
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

_NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING,
    tokenize.ENDMARKER,
}  # fmt: skip
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass
class Counts:
    """What one package, or all of them, come to.

    Attributes:
        files: Python files.
        lines: all lines.
        code: lines of code.
        docs: lines of docstrings.
        comments: lines with a comment and nothing else.
        public: public names.
        documented: those of them that have a docstring, or stand in that of their class.
        public_docs: lines of the docstrings of public names.
    """

    files: int = 0
    lines: int = 0
    code: int = 0
    docs: int = 0
    comments: int = 0
    public: int = 0
    documented: int = 0
    public_docs: int = 0

    def add(self, other: Counts) -> None:
        """Add the counts of another package to these."""
        for name, value in asdict(other).items():
            setattr(self, name, getattr(self, name) + value)

    def to_json(self) -> dict[str, float]:
        """The counts, with the two ratios that are made from them."""
        held: dict[str, float] = asdict(self)
        if self.public:
            held["documented_share"] = round(self.documented / self.public, 4)
            held["docs_per_name"] = round(self.public_docs / self.public, 4)
        return held


def count(source: str) -> Counts:
    """Count one file.

    Args:
        source: its text.
    """
    tree = ast.parse(source)
    texts = [node for node in ast.walk(tree) if isinstance(node, ast.Expr) and _text_of(node) is not None]
    docs = {line for node in texts for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    code: set[int] = set()
    comments: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            comments.add(token.start[0])
        elif token.type not in _NO_CODE:
            code.update(range(token.start[0], token.end[0] + 1))
    code -= docs
    counts = Counts(1, len(source.splitlines()), len(code), len(docs), len(comments - code))
    for text in _public_docs(tree):
        counts.public += 1
        counts.documented += bool(text)
        counts.public_docs += len(text.splitlines())
    return counts


def _text_of(node: ast.AST | None) -> str | None:
    """The text of a string that is a statement by itself; None for anything else."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return node.value.value
    return None


def _public_docs(tree: ast.Module) -> Iterator[str]:
    """The documentation of each public name that this module defines; empty where there is none."""
    exported = _exported(tree)
    for name, node, text in _definitions(tree.body):
        if name in exported:
            yield text
            if isinstance(node, ast.ClassDef):
                yield from _members(node, text)


def _exported(tree: ast.Module) -> set[str]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            return {str(part.value) for part in ast.walk(node.value) if isinstance(part, ast.Constant)}
    return set()


def _members(owner: ast.ClassDef, owner_text: str) -> Iterator[str]:
    seen = set()
    for name, node, text in _definitions(owner.body):
        if name.startswith("_") or name in seen:  # a setter, an overload: one name
            continue
        seen.add(name)
        if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            yield text
        else:  # an attribute may stand in the docstring of its class
            entry = re.search(rf"^\s+{re.escape(name)}: .*$", owner_text, re.MULTILINE)
            yield text or (entry.group() if entry else "")


def _definitions(body: list[ast.stmt]) -> Iterator[tuple[str, ast.stmt, str]]:
    """Functions, classes and assigned names of a body, each with its documentation."""
    for node, below in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            yield node.name, node, ast.get_docstring(node) or ""
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                for name in ast.walk(target):
                    if isinstance(name, ast.Name):
                        yield name.id, node, _text_of(below) or ""


def count_packages(folder: Path) -> dict[str, Counts]:
    """Count each package under a folder; the modules of the folder itself are one, called ".".

    Args:
        folder: such as src/pstn.
    """
    found: dict[str, Counts] = {}
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).parts
        name = parts[0] if len(parts) > 1 else "."
        found.setdefault(name, Counts()).add(count(path.read_text(encoding="utf-8")))
    return found


def main(arguments: list[str] | None = None) -> None:
    """Print the table, or JSON."""
    parser = argparse.ArgumentParser(description="Count lines of code and documentation, per package.")
    parser.add_argument("root", nargs="?", type=Path, default=Path(__file__).parents[1], help="of the repository")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args(arguments)
    tables = {name: count_packages(options.root / name) for name in ("src/pstn", "tests")}
    for table in tables.values():
        total = Counts()
        for counts in list(table.values()):
            total.add(counts)
        table["total"] = total
    if options.json:
        print(json.dumps({n: {p: c.to_json() for p, c in table.items()} for n, table in tables.items()}, indent=1))
        return
    for name, table in tables.items():
        print(
            f"{name:16}{'files':>8}{'lines':>8}{'code':>8}{'docs':>8}{'public':>8}{'documented':>12}{'docs/name':>11}"
        )
        for package, counts in table.items():
            public = counts.to_json()
            share = f"{public['documented_share']:12.1%}{public['docs_per_name']:11.2f}" if counts.public else ""
            print(
                f"{package:16}{counts.files:8,}{counts.lines:8,}{counts.code:8,}{counts.docs:8,}{counts.public:8,}{share}"
            )
        print()


if __name__ == "__main__":
    main()
