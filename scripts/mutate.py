"""Mutation testing: change the code in small ways, and see which changes no test notices.

    python scripts/mutate.py distributions warping.py nn/layer.py --count 50 --seed 0 --reasons scripts/mutants.json

A mutant is one module with one operator, constant, statement or branch changed. A seeded sample of all mutants of the
given modules is run against the tests of its module (tests/FOLDER/test_NAME.py and the module's own doctests, or what
`--tests MODULE=PATH,PATH` says; tests/FOLDER where there is no such file); those that survive are run against the whole
suite, as `make test` runs it. Everything happens in temporary copies of the repository. A mutant counts as killed if
the tests fail, or take five times as long as without it.

A survivor is a gap in the tests, or does not change behaviour. `--reasons FILE`, JSON that maps the name of a mutant to
the reason, lists the latter, and those in code that needs a device that is not there; they do not count.
`scripts/mutants.json` has those known so far.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import queue
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path

ROOT = Path(__file__).parents[1]
_NOT_COPIED = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache", ".hypothesis", ".make", "site", "dist")
_LEAST_TIMEOUT, _TOO_LONG = 60.0, "took too long"
_SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip


@dataclass
class Mutant:
    """One change of one module.

    Attributes:
        module: its path under src/pstn.
        owner: the function or class that it is in.
        line: of the statement that is changed.
        kind: "operator", "constant", "statement" or "branch".
        change: the statement before and after.
        index: which of the module's mutants it is.
        status: "", "killed", "killed by time", "killed by the whole suite", "survived" or "no change" (of
            behaviour, by a given reason).
    """

    module: str
    owner: str
    line: int
    kind: str
    change: str
    index: int
    status: str = ""

    @property
    def name(self) -> str:
        """What tells it from others; it does not depend on line numbers."""
        return f"{self.module}, {self.owner}: {self.change}"


@dataclass
class Edit:
    """A change that can be made in a tree and undone.

    Attributes:
        kind: as in `Mutant`.
        place: the statement that it is in, or that it drops.
        owner: the function or class around it, empty for the module.
        make: makes it.
        undo: undoes it.
    """

    kind: str
    place: ast.AST
    owner: str
    make: Callable[[], None]
    undo: Callable[[], None]


def edits(tree: ast.AST) -> Iterator[Edit]:
    """All changes of a module.

    Left out are docstrings, annotations, imports, `__all__`, decorators, text, and what only words an error message.

    Args:
        tree: of the module; a change is made in it.
    """
    for node, place, owner in _reachable(tree, tree, ""):
        for kind, name, value in _changes(node):
            yield Edit(kind, place, owner, *_setting(node, name, value))
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list):
                dropped = [at for at, statement in enumerate(block) if _can_be_dropped(statement)]
                for at in dropped:
                    yield Edit("statement", block[at], owner, *_replacing(block, at, ast.Pass()))


def _reachable(node: ast.AST, place: ast.AST, owner: str) -> Iterator[tuple[ast.AST, ast.AST, str]]:
    """The nodes whose change can change behaviour, each with its statement and the name of what it is in."""
    if isinstance(node, ast.stmt):
        place = node
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        owner = f"{owner}.{node.name}" if owner else node.name
    yield node, place, owner
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_params", "exc", "cause", "msg"):
            continue
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, (ast.Import, ast.ImportFrom, ast.JoinedStr)) or _is_text(part) or _is_all(part):
                continue
            if isinstance(part, ast.AST) and not (isinstance(part, ast.If) and "TYPE_CHECKING" in ast.dump(part.test)):
                yield from _reachable(part, place, owner)


def _changes(node: ast.AST) -> Iterator[tuple[str, str, object]]:
    """Kind, field and new value of each change of one node."""
    if isinstance(node, (ast.BinOp, ast.AugAssign, ast.BoolOp)) and type(node.op) in _SWAPPED:
        yield "operator", "op", _SWAPPED[type(node.op)]()
    elif isinstance(node, ast.Compare):
        for at, op in enumerate(node.ops):
            yield "operator", "ops", [*node.ops[:at], _SWAPPED[type(op)](), *node.ops[at + 1 :]]
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield "operator", "op", ast.UAdd()
    elif isinstance(node, ast.UnaryOp) and _is_negation(node):
        yield "operator", "operand", ast.UnaryOp(ast.Not(), node.operand)
    elif isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float)):
        value = node.value
        other = not value if isinstance(value, bool) else value + 1 if isinstance(value, int) else 2 * value or 1.0
        yield "constant", "value", other
    elif isinstance(node, (ast.If, ast.IfExp, ast.While)) and not _is_negation(node.test):  # which is an operator
        yield "branch", "test", ast.UnaryOp(ast.Not(), node.test)


def _setting(node: ast.AST, name: str, value: object) -> tuple[Callable[[], None], Callable[[], None]]:
    old = getattr(node, name)
    return partial(setattr, node, name, value), partial(setattr, node, name, old)


def _replacing(block: list[ast.stmt], at: int, new: ast.stmt) -> tuple[Callable[[], None], Callable[[], None]]:
    return partial(block.__setitem__, at, new), partial(block.__setitem__, at, block[at])


def _can_be_dropped(statement: ast.stmt) -> bool:
    kinds = (ast.Expr, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Raise, ast.Assert, ast.Delete, ast.Return)
    if not isinstance(statement, kinds) or _is_text(statement) or _is_all(statement):
        return False
    return not (isinstance(statement, ast.AnnAssign) and statement.value is None)


def _is_negation(node: ast.AST) -> bool:
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)


def _is_text(node: object) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _is_all(node: object) -> bool:
    return isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets)


def find_mutants(module: str, source: str) -> list[Mutant]:
    """All mutants of a module.

    Args:
        module: its path under src/pstn.
        source: its text.
    """
    found = []
    for index, edit in enumerate(edits(ast.parse(source))):
        before, after = _shown(edit.place), "pass"
        if edit.kind != "statement":
            edit.make()
            after = _shown(edit.place)
            edit.undo()
        change = f"{before} -> {after}"
        found.append(Mutant(module, edit.owner, getattr(edit.place, "lineno", 0), edit.kind, change, index))
    return found


def _shown(statement: ast.AST) -> str:
    """A statement as code; of one with a body, its first line."""
    lines = ast.unparse(ast.fix_missing_locations(statement)).splitlines()
    return next(line for line in lines if not line.startswith("@"))


def mutate(source: str, index: int | None) -> str:
    """The source of a mutant, or the unchanged code in the same form.

    Args:
        source: of the module.
        index: which mutant; None for no change.
    """
    tree = ast.parse(source)
    if index is not None:
        next(islice(edits(tree), index, None)).make()
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"


def tests_of(module: str, given: dict[str, list[str]]) -> list[str]:
    """What to run for a module: its own tests by the layout of the repository, and its doctests.

    Args:
        module: its path under src/pstn.
        given: tests by module, where they are others.
    """
    path, own = Path(module), f"src/pstn/{module}"
    if module in given:
        return [*given[module], own]
    for place in (Path("tests") / path.parent / f"test_{path.stem.lstrip('_')}.py", Path("tests") / path.parent):
        if (ROOT / place).exists() and place != Path("tests"):
            return [str(place), own]
    raise SystemExit(f"there is no tests/test_{path.stem}.py: say --tests {module}=PATH,PATH")


def run_tests(folder: Path, arguments: Sequence[str], timeout: float | None) -> tuple[bool, str]:
    """Whether the tests pass, and what they printed.

    Args:
        folder: a copy of the repository.
        arguments: of pytest.
        timeout: seconds; tests that take longer do not pass.
    """
    environment = os.environ | {
        "PYTHONPATH": str(folder / "src"), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    with subprocess.Popen(
        command, cwd=folder, env=environment, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as process:  # fmt: skip
        try:
            output, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return False, _TOO_LONG
    if process.returncode == 5:
        raise SystemExit(f"no tests in {' '.join(arguments)}")
    return process.returncode == 0, output


class Runner:
    """Runs mutants in copies of the repository, one for each job.

    Args:
        folder: where to put the copies.
        jobs: how many.
        given: tests by module, where they are others than the layout says.
    """

    def __init__(self, folder: Path, jobs: int, given: dict[str, list[str]]) -> None:
        self.given, self.jobs = given, jobs
        self.copies: queue.Queue[Path] = queue.Queue()
        self.timeouts: dict[str, float] = {}
        for job in range(jobs):
            self.copies.put(Path(shutil.copytree(ROOT, folder / str(job), ignore=_NOT_COPIED)))

    def survives(self, module: str, index: int | None, arguments: Sequence[str], timeout: float | None) -> bool:
        """Whether the tests pass with a mutant in place."""
        return self._run(module, index, arguments, timeout)[0]

    def _run(self, module: str, index: int | None, arguments: Sequence[str], timeout: float | None) -> tuple[bool, str]:
        folder = self.copies.get()
        path = folder / "src" / "pstn" / module
        source = path.read_text(encoding="utf-8")
        try:
            path.write_text(mutate(source, index), encoding="utf-8")
            return run_tests(folder, arguments, timeout)
        finally:
            path.write_text(source, encoding="utf-8")
            self.copies.put(folder)

    def check(self, module: str) -> None:
        """Run a module's tests without a mutant: they have to pass, and say how long they may take."""
        started = time.perf_counter()
        passed, output = self._run(module, None, ["-x", *tests_of(module, self.given)], None)
        if not passed:
            raise SystemExit(f"the tests of {module} fail without any mutant:\n{output[-3000:]}")
        self.timeouts[module] = max(_LEAST_TIMEOUT, 5 * (time.perf_counter() - started))

    def against_module(self, mutant: Mutant) -> Mutant:
        """Run a mutant against the tests of its module."""
        arguments = ["-x", *tests_of(mutant.module, self.given)]
        survived, output = self._run(mutant.module, mutant.index, arguments, self.timeouts[mutant.module])
        mutant.status = "survived" if survived else "killed by time" if output == _TOO_LONG else "killed"
        _say(mutant)
        return mutant

    def against_all(self, survivors: Sequence[Mutant]) -> None:
        """Run survivors against the whole suite, without the tests that fail as it is."""
        parallel = ["-n", str(self.jobs)] if self.jobs > 1 else []
        started = time.perf_counter()
        _, output = self._run(survivors[0].module, None, parallel, None)
        timeout = max(_LEAST_TIMEOUT, 5 * (time.perf_counter() - started))
        failing = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output, re.MULTILINE)
        left_out = [f"--deselect={name}" for name in failing]
        print(f"whole suite: {len(failing)} tests fail without any mutant and are left out: {failing}", flush=True)
        for mutant in survivors:
            if not self.survives(mutant.module, mutant.index, ["-x", *parallel, *left_out], timeout):
                mutant.status = "killed by the whole suite"
            _say(mutant)


def _say(mutant: Mutant) -> None:
    print(f"{mutant.status:26}{mutant.module}:{mutant.line} {mutant.kind}: {mutant.change}", flush=True)


def main(arguments: list[str] | None = None) -> None:
    """Sample, run, and print what survived."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="+", help="paths under src/pstn, such as nn/layer.py, or folders")
    parser.add_argument("--count", type=int, default=300, help="how many mutants, over all modules")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--jobs", type=int, default=1, help="mutants at a time")
    parser.add_argument("--tests", action="append", default=[], metavar="MODULE=PATH,PATH", help="tests of a module")
    parser.add_argument("--module-only", action="store_true", help="do not run survivors against the whole suite")
    parser.add_argument("--list", action="store_true", dest="show", help="print the sample and run nothing")
    parser.add_argument("--reasons", type=Path, help="JSON: mutants that do not change behaviour, and why")
    parser.add_argument("--out", type=Path, help="write all mutants and what became of them to this file")
    options = parser.parse_args(arguments)
    given = {name: paths.split(",") for name, _, paths in (text.partition("=") for text in options.tests)}
    sample = sample_mutants(options.modules, options.count, options.seed)
    if options.show:
        for mutant in sample:
            _say(mutant)
        return
    reasons = json.loads(options.reasons.read_text(encoding="utf-8")) if options.reasons else {}
    with tempfile.TemporaryDirectory() as folder:
        runner = Runner(Path(folder), options.jobs, given)
        with ThreadPoolExecutor(options.jobs) as pool:
            list(pool.map(runner.check, sorted({mutant.module for mutant in sample})))
            list(pool.map(runner.against_module, sample))
        for mutant in sample:
            if mutant.status == "survived" and mutant.name in reasons:
                mutant.status = "no change"
        survivors = [mutant for mutant in sample if mutant.status == "survived"]
        if survivors and not options.module_only:
            runner.against_all(survivors)
    _report(sample, reasons)
    if options.out:
        held = {"seed": options.seed, "mutants": [asdict(mutant) | {"name": mutant.name} for mutant in sample]}
        options.out.write_text(json.dumps(held, indent=1) + "\n", encoding="utf-8")


def sample_mutants(modules: Sequence[str], count: int, seed: int) -> list[Mutant]:
    """A seeded sample of the mutants of modules and of all modules in folders.

    Args:
        modules: paths under src/pstn.
        count: how many; all if there are fewer.
        seed: of the sample.
    """
    base = ROOT / "src" / "pstn"
    paths = sorted({path for name in modules for path in (base / name).rglob("*.py")} | {
        base / name for name in modules if (base / name).is_file()
    })  # fmt: skip
    if not paths:
        raise SystemExit(f"modules must be paths under {base}, got {', '.join(modules)}")
    everything = [
        mutant
        for path in paths
        for mutant in find_mutants(path.relative_to(base).as_posix(), path.read_text(encoding="utf-8"))
    ]
    return random.Random(seed).sample(everything, min(count, len(everything)))


def _report(sample: Sequence[Mutant], reasons: dict[str, str]) -> None:
    changed = [mutant for mutant in sample if mutant.status != "no change"]
    killed = sum(mutant.status.startswith("killed") for mutant in changed)
    print(f"\n{len(sample)} mutants, {len(sample) - len(changed)} of which do not change behaviour")
    print(f"killed: {killed} of {len(changed)}, {killed / max(1, len(changed)):.1%}")
    for mutant in sample:
        if not mutant.status.startswith("killed"):
            print(f"{mutant.module}:{mutant.line} {mutant.kind}: {mutant.change}  {reasons.get(mutant.name, '')}")


if __name__ == "__main__":
    main()
