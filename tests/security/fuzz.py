"""Seeded mutations of valid files."""

import copy
import json
import re
from random import Random
from typing import Any

_TOKENS = (
    b"\0", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f", b"\x80", b"\n", b"\r\n\n", b"\t", b",", b":",
    b";", b'"', b"'", b"{", b"[" * 3_000, b"{" * 80, b"]", b"}", b"@data\n", b"@", b"%", b"#", b"- ", b"&a [*a, *a]",
    b"*a", b"!!int ", b"!!python/object/apply:os.getcwd []", b"../../", b"/etc/passwd", b"NaN", b"-inf", b"null",
    b"true", b"\xc3\xa9", b"\xf0\x9f\x98\x80", b"\x1b[31m", b"$", b"=1+1", b"0x", b"_", b" " * 2_000, b"a" * 5_000,
)  # fmt: skip
_NUMBERS = (
    b"0", b"-1", b"-0", b"1", b"2147483647", b"2147483648", b"4294967296", b"9223372036854775807",
    b"18446744073709551616", b"1e308", b"1e999", b"-1e999", b"1e-400", b"0.1", b"nan", b"1_0", b"9" * 400, b"9" * 5_000,
    b"1048576", b"100000000",
)  # fmt: skip
_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**53, 2**63, 10**30, 1e308, -1e308, 0.5, "", "a", "../../x", "a" * 3_000, "\0",
    "\n", [], {}, [[]], [None], [0] * 2_000, {"a": 1}, "1", "NaN", [1, 2, 3, 4], "cpab", "/etc/passwd",
    [1, [2, [3, [4]]]],
)  # fmt: skip


def mutate(content: bytes, rng: Random) -> bytes:
    """A damaged copy: flipped bits, cuts, copies of parts in other places, and huge or odd numbers and tokens."""
    for _ in range(rng.randint(1, 3)):
        start, other = (rng.randrange(len(content) + 1) for _ in range(2))
        end, over = start + rng.randint(1, 64), start + rng.choice((0, 0, 1, 4))
        numbers = [*re.finditer(rb"\d+(\.\d+)?", content)]
        way = rng.choice(("flip", "flip", "cut", "remove", "copy", "insert", "number", "number"))
        if way == "flip":
            changed = bytes(byte ^ 1 << rng.randrange(8) for byte in content[start : start + 8])
            content = content[:start] + changed + content[start + 8 :]
        elif way == "cut":
            content = content[:start]
        elif way == "remove":
            content = content[:start] + content[end:]
        elif way == "copy":
            content = content[:other] + content[start:end] * rng.choice((1, 1, 2, 50)) + content[other:]
        elif way == "number" and numbers:
            spot = rng.choice(numbers)
            content = content[: spot.start()] + rng.choice(_NUMBERS) + content[spot.end() :]
        else:
            content = content[:start] + rng.choice(_TOKENS) + content[over:]
    return content


def mutate_json(content: bytes, rng: Random) -> bytes:
    """A copy of a JSON text in which values are replaced, removed or moved; some are damaged as any bytes are."""
    if rng.random() < 0.3:
        return mutate(content, rng)
    value = json.loads(content)
    for _ in range(rng.randint(1, 2)):
        places = [*_places(value)]
        holder, key = rng.choice(places)
        way = rng.random()
        if way < 0.2:
            del holder[key]
        elif way < 0.4:
            other, other_key = rng.choice(places)
            holder[key] = copy.deepcopy(other[other_key])
        else:
            holder[key] = copy.deepcopy(rng.choice(_VALUES))
        if not [*_places(value)]:
            break
    return json.dumps(value).encode()


def _places(value: Any) -> Any:
    """Every list or object in a value, with every position or key in it."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield value, key
        yield from _places(inner)
