"""Finding what to draw among results."""

from __future__ import annotations

from collections.abc import Sequence

from pstn.report.results import Result

__all__ = ["cells", "first", "holds"]


def holds(result: Result, *names: str) -> bool:
    """Whether a result's figure has all of `names`, none of them empty."""
    return all(result.figure.get(name) not in (None, [], {}) for name in names)


def cells(results: Sequence[Result], *names: str) -> dict[tuple[str, str, str], list[Result]]:
    """The results whose figures have all of `names`, by data, model and variant, in the order they come."""
    found: dict[tuple[str, str, str], list[Result]] = {}
    for result in results:
        if holds(result, *names):
            found.setdefault((result.data, result.model, result.variant), []).append(result)
    return found


def first(results: Sequence[Result], *names: str, model: str | None = None) -> Result | None:
    """The result with the lowest seed whose figure has all of `names`; None where there is none."""
    having = [r for r in results if holds(r, *names) and model in (None, r.model)]
    return min(having, key=lambda r: r.seed, default=None)
