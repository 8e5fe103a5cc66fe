"""Matplotlib as this package uses it: no other program is started, whatever file of settings it finds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_tex() -> Iterator[None]:
    """Matplotlib without TeX in the block: a `matplotlibrc` in the current folder may ask for it, and it is a program.

    Raises:
        ImportError: matplotlib is not installed, with how to install it.

    Example:
        >>> import matplotlib
        >>> with without_tex():
        ...     matplotlib.rcParams["text.usetex"]
        False
    """
    try:
        import matplotlib
    except ImportError as error:
        raise ImportError("drawing needs matplotlib, which is not installed: pip install 'pstn[plot]'") from error
    with matplotlib.rc_context({"text.usetex": False}):
        yield
