"""Branch coverage per package, from the report that coverage.py writes as JSON.

    OMP_NUM_THREADS=1 python -m pytest -q -n 1 --cov=pstn --cov-branch --cov-report=json:coverage.json
    python scripts/coverage_by_package.py coverage.json --out scripts/coverage_baseline.json --commit COMMIT
    python scripts/coverage_by_package.py coverage.json --baseline scripts/coverage_baseline.json

The second form prints both and exits with 1 if a package has less than the baseline, or is in one of the two only: a
package that was renamed or is new has nothing to be compared with, and needs a baseline that was measured with it.
Coverage is that of the tests' own process: what commands do in processes of their own is not counted. The tests need
pytest-cov.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

_TOLERANCE = 0.05  # percent: runs differ by a branch or two


def by_package(report: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Sum up the files of each package of pstn; the modules of pstn itself are one, called ".".

    Args:
        report: as coverage.py writes it.

    Returns:
        For each package, and for "total": the numbers of statements and branches, those that were run, and the share
        of branches that were taken, in percent.
    """
    found: dict[str, dict[str, float]] = {}
    for name, held in report["files"].items():
        parts = Path(name).parts
        inside = parts[len(parts) - 1 - parts[::-1].index("pstn") + 1 :]
        package = inside[0] if len(inside) > 1 else "."
        for group in (package, "total"):
            sums = found.setdefault(group, {})
            for key in ("num_statements", "covered_lines", "num_branches", "covered_branches"):
                sums[key] = sums.get(key, 0) + held["summary"][key]
    for sums in found.values():
        sums["branch_percent"] = _percent(sums["covered_branches"], sums["num_branches"])
        sums["line_percent"] = _percent(sums["covered_lines"], sums["num_statements"])
    return dict(sorted(found.items()))


def _percent(part: float, whole: float) -> float:
    return round(100 * part / whole, 2) if whole else 100.0


def main(arguments: list[str] | None = None) -> int:
    """Print the table; write it as JSON, or compare it with a baseline."""
    parser = argparse.ArgumentParser(description="Branch coverage per package.")
    parser.add_argument("report", type=Path, help="coverage.py's JSON")
    parser.add_argument("--out", type=Path, help="write the figures to this file")
    parser.add_argument("--commit", default="unknown", help="what was measured, for --out")
    parser.add_argument("--baseline", type=Path, help="compare with a file that --out wrote")
    options = parser.parse_args(arguments)
    packages = by_package(json.loads(options.report.read_text(encoding="utf-8")))
    before = json.loads(options.baseline.read_text(encoding="utf-8"))["packages"] if options.baseline else packages
    failures = [f"{name} is in the baseline only" for name in sorted(before.keys() - packages.keys())]
    print(f"{'package':16}{'branches':>10}{'taken':>10}{'percent':>10}{'baseline':>10}")
    for name, sums in packages.items():
        line = f"{name:16}{sums['num_branches']:10,}{sums['covered_branches']:10,}{sums['branch_percent']:10.2f}"
        old = before[name]["branch_percent"] if name in before else None
        print(line + (f"{'none':>10}" if old is None else f"{old:10.2f}"))
        if old is None:
            failures.append(f"{name} is not in the baseline")
        elif sums["branch_percent"] < old - _TOLERANCE:
            failures.append(f"{name} has less than the baseline")
    if options.out:
        text = json.dumps({"commit": options.commit, "packages": packages}, indent=1)
        options.out.write_text(text + "\n", encoding="utf-8")
    for failure in failures:
        print(failure, file=sys.stderr)
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
