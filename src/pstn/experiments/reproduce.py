"""Running experiments: which cells are missing, which are this machine's, one group after the other."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Collection, Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path

from pstn.data import KNOWN
from pstn.experiments.declare import Evaluation, Experiment, Group
from pstn.experiments.execute import carry_out
from pstn.experiments.lab import Lab
from pstn.files import inside, require_writable
from pstn.report.results import Result, read_results

__all__ = ["Piece", "Shard", "choose", "done_cells", "out_of_reach", "plan", "reproduce"]


@dataclasses.dataclass(frozen=True)
class Shard:
    """One of several machines that share the work.

    Args:
        index: which one, counted from 1.
        count: how many there are.

    Example:
        >>> Shard.parse("3/8")
        Shard(index=3, count=8)
    """

    index: int = 1
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Read "3/8"."""
        first, _, second = text.partition("/")
        if not (first.isdecimal() and second.isdecimal() and 1 <= int(first) <= int(second)):
            raise ValueError(f"shard must be i/n with i from 1 to n, such as 3/8, got {text!r}")
        return cls(int(first), int(second))

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


@dataclasses.dataclass(frozen=True)
class Piece:
    """A group with the cells of it that are asked for."""

    group: Group
    cells: list[Result]


def choose(names: Sequence[str], known: dict[str, Experiment], *, search: bool = False) -> list[Experiment]:
    """The experiments called by `names`; "all" is the paper, with the searches for w only if they are asked for.

    Args:
        names: of experiments, or "all".
        known: all of them.
        search: whether "all" has the searches too, and a name stands for its search as well.
    """
    chosen: dict[str, Experiment] = {}
    for name in names:
        if name == "all":
            chosen |= {n: e for n, e in known.items() if search or not e.extra}
        elif name in known:
            chosen[name] = known[name]
            if search and f"{name}-search" in known:
                chosen[f"{name}-search"] = known[f"{name}-search"]
        else:
            raise ValueError(f"experiment must be one of {', '.join(known)}, or all, got {name!r}")
    return list(chosen.values())


def out_of_reach(experiments: Sequence[Experiment], lab: Lab) -> dict[str, list[str]]:
    """The experiments whose data are not here and cannot be downloaded, with the names of those data."""
    absent = {experiment.name: lab.absent(experiment.needs) for experiment in experiments}
    return {name: data for name, data in absent.items() if any(KNOWN[d].by_hand for d in data)}


def plan(
    experiments: Sequence[Experiment], lab: Lab, shard: Shard | None = None, cells: Sequence[str] = ()
) -> list[Piece]:
    """The groups of these experiments that are this shard's, with the cells that match.

    Args:
        experiments: what to run.
        lab: where: a quick run has fewer seeds and groups.
        shard: which machine this is. Groups are dealt out in order, whatever is done already.
        cells: patterns such as "mnist100-p-stn-*" or "calibration/*"; a cell is taken if it matches any.

    Raises:
        ValueError: when no cell of any shard matches.
    """
    dealt = [Piece(group, _matching(group.cells(lab), cells)) for group in _groups(experiments, lab)]
    if not any(piece.cells for piece in dealt):
        raise ValueError(f"no cell matches {', '.join(cells)}: --list without --cells shows them all")
    shard = shard or Shard()
    return [piece for piece in dealt[shard.index - 1 :: shard.count] if piece.cells]


def _groups(experiments: Sequence[Experiment], lab: Lab) -> Iterator[Group]:
    for experiment in experiments:
        for group in experiment.groups:
            if not lab.quick or experiment.quick is None or group.name in experiment.quick:
                yield group


def _matching(cells: list[Result], patterns: Sequence[str]) -> list[Result]:
    def wanted(cell: Result) -> bool:
        return any(fnmatch(cell.name, p) or fnmatch(f"{cell.experiment}/{cell.name}", p) for p in patterns)

    return [cell for cell in cells if not patterns or wanted(cell)]


def done_cells(lab: Lab, pieces: Sequence[Piece]) -> set[Path]:
    """The files of the cells that are done, in the experiments of these pieces.

    Where nothing is to be shortened, cells that were are not done.

    Raises:
        ValueError: for a result file that cannot be read, naming it.
    """
    asked = sorted({piece.group.experiment for piece in pieces})
    found = (result for name in asked for result in read_results(lab.folder, name))
    return {result.path(lab.folder) for result in found if lab.epochs_scale < 1 or not result.shortened}


def reproduce(
    experiments: Sequence[Experiment],
    lab: Lab,
    shard: Shard | None = None,
    cells: Sequence[str] = (),
    leave_out: Collection[str] = (),
) -> int:
    """Run what is missing of these experiments.

    Args:
        experiments: what to run.
        lab: where.
        shard: which machine this is.
        cells: patterns of cells; all when empty.
        leave_out: names of experiments that other machines are to run: they keep their share of the work.

    Returns:
        How many results were written.

    Raises:
        MissingDataError: before anything is trained.
        ValueError: for a result file that cannot be read, naming it; when no cell matches.
        FileError: when a folder in it is a link that leads out of it, before anything is trained.
        OSError: when nothing can be written to the folder, before anything is trained.
        Stopped: after Ctrl-C or SIGTERM, with everything saved.
    """
    pieces = [piece for piece in plan(experiments, lab, shard, cells) if piece.group.experiment not in leave_out]
    if not pieces:  # more parts than groups: some machines of a job array have nothing to do
        lab.say(f"Part {shard} has nothing to do.")
        return 0
    named = {experiment.name: experiment for experiment in experiments}
    lab.require_data(need for p in pieces for need in named[p.group.experiment].needs_of(p.group))
    for experiment in {piece.group.experiment for piece in pieces}:
        for folder in (lab.folder, lab.work):  # what is replaced or removed there must be this folder's own
            inside(lab.results, (folder / experiment).relative_to(lab.results).as_posix())
    done = done_cells(lab, pieces)
    pending = [
        Piece(piece.group, missing)
        for piece in pieces
        if (missing := [cell for cell in piece.cells if cell.path(lab.folder) not in done])
    ]
    if pending:
        require_writable(lab.work, "--results")
    before = ""
    for batch in _batches(pending, lab.together):
        if batch[0].group.experiment != before:
            lab.forget()
            before = batch[0].group.experiment
        lab.say(f"{before}: {', '.join(piece.group.name for piece in batch)}")
        started = time.perf_counter()
        carry_out(lab, [(piece.group, piece.cells) for piece in batch])
        lab.say(f"  {sum(len(piece.cells) for piece in batch)} results in {time.perf_counter() - started:.1f} s")
    return sum(len(piece.cells) for piece in pending)


def _batches(pieces: Sequence[Piece], together: int) -> Iterator[list[Piece]]:
    """Pieces that run side by side: trainings of one experiment, and no others build on them."""
    batch: list[Piece] = []
    for piece in pieces:
        alone = isinstance(piece.group, Evaluation) or piece.group.keep
        if batch and (alone or len(batch) == together or batch[0].group.experiment != piece.group.experiment):
            yield batch
            batch = []
        if alone:
            yield [piece]
        else:
            batch.append(piece)
    if batch:
        yield batch
