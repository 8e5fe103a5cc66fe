"""Write the table of limits in SECURITY.md from `pstn.limits`: python docs/make_limits_table.py."""

from __future__ import annotations

import re
from pathlib import Path

from pstn.limits import limits

PAGE = Path(__file__).parents[1] / "SECURITY.md"


def with_table(text: str) -> str:
    """The page with the table as it should be."""
    rows = [f"| `{name}` | {value:,} | {meaning} |" for name, value, meaning in limits()]
    table = "\n".join(["| limit | at most | of |", "| --- | ---: | --- |", *rows])
    return re.sub(
        r"(<!-- limits: begin -->\n).*?(<!-- limits: end -->)", rf"\g<1>\n{table}\n\n\g<2>", text, flags=re.DOTALL
    )


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
