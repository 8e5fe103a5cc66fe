"""The door to the command line: says what to install where that is missing."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run `pstn` as a command."""
    try:
        from pstn.commands import app
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        sys.exit(f"The pstn command needs {error.name}: pip install 'pstn[cli]'")
    app()


if __name__ == "__main__":
    main()
