"""Text from files in messages: shortened, and without control characters."""

from __future__ import annotations

import difflib
import re
import reprlib
from collections.abc import Iterable
from typing import Any

__all__ = ["ShortError", "did_you_mean", "excerpt", "printable", "shorten"]

# Control characters other than tab and newline; characters that change the direction of text or end a line; lone
# surrogates, by which Python represents bytes of a file name that are not text.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 80


def excerpt(value: Any, most: int = 80) -> str:
    """The `repr` of a value, shortened: a message about a file never repeats the whole file.

    Args:
        value: anything that JSON or YAML can hold.
        most: the approximate number of characters.

    Returns:
        One line without control characters.

    Example:
        >>> excerpt("a" * 1000, most=10)
        "'aaaaaa ... aa'"
        >>> excerpt([1, 2]), excerpt(list(range(1000)))
        ('[1, 2]', '[0, 1, 2, 3, 4, 5, ...]')
    """
    if isinstance(value, int) and value.bit_length() > 256:  # Python refuses to print very long ones
        return f"a whole number of {value.bit_length():,} bits"
    return shorten(_REPR.repr(value), most)


def shorten(text: str, most: int = 600) -> str:
    """A text whose middle is omitted if it is longer than `most` characters.

    Example:
        >>> shorten("a" * 10 + "b" * 10, most=9)
        'aaaaaa ... bbb'
    """
    return text if len(text) <= most else f"{text[: most - most // 3]} ... {text[-(most // 3) :]}"


class ShortError(ValueError):
    """An error about a file, with a shortened message: libraries repeat what they found, however long.

    Example:
        >>> len(str(ShortError("a" * 10_000)))
        805
    """

    def __init__(self, message: str) -> None:
        super().__init__(shorten(message, 800))


def did_you_mean(given: object, known: Iterable[object]) -> str:
    """The end of a message about a name that is not known: the known one that is nearest, or nothing.

    Args:
        given: what was given.
        known: what is accepted.

    Example:
        >>> did_you_mean("similarty", ["affine", "similarity"]), did_you_mean("qqq", ["affine"])
        ("; did you mean 'similarity'?", '')
    """
    names = {str(name).lower(): name for name in known if isinstance(name, str)}
    text = str(given)[:80].lower()
    begun = [name for name in names if len(text) > 1 and name.startswith(text)]
    close = begun or difflib.get_close_matches(text, names, n=1)
    return f"; did you mean {names[close[0]]!r}?" if close else ""


def printable(text: object, *, lines: bool = True) -> str:
    r"""Text for a terminal, with every control character replaced by its escape sequence in Python and JSON.

    Names of files and classes are untrusted, and a terminal executes control sequences.

    Args:
        text: anything; it is converted with `str`.
        lines: whether tabs and newlines are kept.

    Example:
        >>> printable("\x1b[2Jphoto.png")
        '\\u001b[2Jphoto.png'
    """
    found = str(text)
    if not lines:
        found = found.replace("\t", "\\t").replace("\n", "\\n")
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", found)
