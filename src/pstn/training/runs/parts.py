"""Which examples of a user's own data a run learned from: folders and files change after the training."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pstn.data.split import Split, Splits
from pstn.files import DataError, inside, read_json, to_json, write_atomically
from pstn.limits import MODEL_PIXELS, RESULT_BYTES

PARTS = "parts.json"


class Parts(NamedTuple):
    """The examples of each part by their content, which is the same wherever a file is moved and however it is called.

    Example:
        >>> one = Split(torch.zeros(1, 1, 4, 4), torch.tensor([0]), ("a",))
        >>> found = Parts.of(Splits(one, None, one))
        >>> found.shape, found.train == found.test
        ((1, 4, 4), True)
    """

    shape: tuple[int, ...]
    """(C, *size), as the examples were read."""
    train: tuple[str, ...]
    """Hashes of those to learn from and to validate on."""
    test: tuple[str, ...]
    """Hashes of those to test on."""

    @classmethod
    def of(cls, splits: Splits[Split]) -> Parts:
        """The parts of data as they were read."""
        held = [part for part in (splits.train, splits.validation) if part is not None]
        train = tuple(text for part in held for text in _hashes(part.x))
        return cls(tuple(held[0].x.shape[1:]), train, () if splits.test is None else tuple(_hashes(splits.test.x)))

    def save(self, folder: Path, validation: Sequence[Tensor | None]) -> None:
        """Write them into the folder of a run.

        Args:
            folder: of the run.
            validation: the positions of each model's validation examples in `train`.
        """
        with write_atomically(folder / PARTS) as draft:
            positions = [[] if index is None else index.tolist() for index in validation]
            draft.write_text(to_json({**self._asdict(), "validation": positions}))

    @classmethod
    def load(cls, folder: Path) -> Parts | None:
        """Those of the run in a folder; None for one of known data, or of a version that did not write them."""
        path = inside(folder, PARTS)
        if not path.exists():
            return None
        held = read_json(path, limit=RESULT_BYTES)
        lists: list[Any] = [held.get(name) for name in cls._fields] if isinstance(held, dict) else []
        kinds = [{type(v) for v in values} if isinstance(values, list) else {None} for values in lists]
        whole = bool(kinds) and kinds[0] == {int} and kinds[1] | kinds[2] <= {str}
        if not whole or min(lists[0]) < 1 or len(lists[0]) < 2 or math.prod(lists[0]) > MODEL_PIXELS:
            raise DataError(path, f"must hold a shape of at most {MODEL_PIXELS:,} values, and lists of hashes")
        return cls(*(tuple(values) for values in lists))

    def again(self, splits: Splits[Split], data: str) -> tuple[Splits[Split], int]:
        """Data that have changed since: the test part is what was not learned from; and how many of it are new.

        Args:
            splits: the data as they are now, read to the same shape.
            data: their name, for messages.
        """
        whole = join(splits)
        learned, tested, hashes = set(self.train), set(self.test), _hashes(whole.x)
        if not (learned | tested) & set(hashes):
            problem = "holds none of the examples that the run was trained and tested on"
            raise ValueError(f"{data} {problem}: to score all of it as other data, copy it to another folder")
        unknown = [place for place, text in enumerate(hashes) if text not in learned]
        if not unknown:
            raise ValueError(f"{data} holds nothing to test on: the run was trained on every example that is there")
        return Splits(whole, None, whole.take(unknown)), sum(hashes[place] not in tested for place in unknown)


def join(splits: Splits[Split]) -> Split:
    """All examples as one part."""
    held = [part for part in splits if part is not None]
    x, y = (torch.cat([getattr(part, name) for part in held]) for name in ("x", "y"))
    masks = [part.mask for part in held if part.mask is not None]
    mask = torch.cat(masks) if len(masks) == len(held) else None
    return dataclasses.replace(splits.train, x=x, y=y, mask=mask, theta=None, source=None)


def _hashes(x: Tensor) -> list[str]:
    return [hashlib.blake2b(row.tobytes(), digest_size=8).hexdigest() for row in x.contiguous().numpy()]
