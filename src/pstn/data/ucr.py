"""The UCR and UEA archives of series: from a folder, the cache or the archive's site."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import warnings
import zipfile
from importlib.resources import files
from pathlib import Path, PurePosixPath
from typing import Literal

import numpy as np
import torch

from pstn.data.archives import read_zip_member
from pstn.data.download import Progress, RemoteFile, download, missing
from pstn.data.errors import DataError, DataWarning, MissingDataError
from pstn.data.files import open_stream
from pstn.data.labels import encode_labels, sort_classes
from pstn.data.places import cache_folder, offline, search_folders
from pstn.data.series import Policy, RawSeries, stack_series
from pstn.data.series_files import read_series
from pstn.data.split import Split, Splits
from pstn.data.subsets import stratified_indices
from pstn.data.ucr_sums import UCR_RECORDS, PartRecord
from pstn.files import write_atomically

__all__ = [
    "compare_with_archive",
    "fetch_ucr",
    "find_ucr",
    "load_italy_power_demand",
    "load_series_file",
    "load_ucr",
    "ucr_name",
]

_SITE = "https://timeseriesclassification.com/aeon-toolkit/"
_MIRROR = "https://www.timeseriesclassification.com/aeon-toolkit/"
_SUFFIXES = (".tsv", ".tsv.gz", ".ts", ".ts.gz", ".arff", ".arff.gz", ".txt", ".txt.gz")


def load_ucr(
    name: str,
    *,
    policy: Policy = "refuse",
    validation: float = 0.25,
    seed: int = 0,
    need_test: bool = True,
    root: str | os.PathLike[str] | None = None,
    fetch: bool = True,
    progress: Progress | None = None,
) -> Splits[Split]:
    """A data set of the UCR or UEA archive, with the archive's test split and a validation split of our own.

    Files are looked for as NAME_TRAIN and NAME_TEST with .tsv, .ts or .arff, plain or gzipped, in $PSTN_DATA/ucr, in a
    folder NAME within it, in the cache, and then on the archive's site. Values are used as they are: the paper does not
    normalise series. A file that differs from what is on record about the archive's is used, with a `DataWarning`.

    Args:
        name: e.g. "FaceAll"; the older spellings of the paper ("wafer", "uWaveGestureLibrary_X") work too.
        policy: what becomes of missing values and unequal lengths: "refuse", "resample" or "pad"; see `stack_series`.
        validation: the share of the training part set aside, class by class; the paper's is 0.25. 0 for none.
        seed: of the validation split.
        need_test: whether a missing test part is an error; else the test split is None.
        root: a folder that holds the files; then nothing else is looked at.
        fetch: whether a missing set may be downloaded.
        progress: told how far a download is.

    Returns:
        Series (N, C, L) float32; with policy "pad" a mask (N, L) too.

    Example:
        >>> load_ucr("ItalyPowerDemand").train.x.shape  # ships with the package; "FaceAll" is fetched
        torch.Size([50, 1, 24])
    """
    name = ucr_name(name)
    if name == "ItalyPowerDemand" and root is None and find_ucr(name, "TRAIN") is None:
        return load_italy_power_demand(validation=validation, seed=seed)
    parts = []
    for part in ("TRAIN", "TEST"):
        try:
            path = _locate(name, part, root, fetch, progress)
        except MissingDataError:
            if part == "TEST" and not need_test:
                break
            raise
        series = read_series(path)
        for difference in compare_with_archive(name, part, series):
            warnings.warn(DataWarning(f"{path}: {difference}; it is used as it is"), stacklevel=2)
        parts.append(series)
    return _build(name, parts, policy, validation, seed)


def _build(name: str, parts: list[RawSeries], policy: Policy, validation: float, seed: int) -> Splits[Split]:
    classes = sort_classes(parts[0].declared or parts[0].labels)
    stacked = stack_series(parts, policy)
    splits = []
    for series, (x, mask), which in zip(parts, stacked, ("train", "test"), strict=False):
        for label, line in zip(series.labels, series.lines, strict=True):
            if label not in classes:
                problem = f"unknown label {label!r}: the training part has {', '.join(classes)}"
                raise DataError(series.path, problem, place=f"line {line}")
        splits.append(Split(x, encode_labels(series.labels, classes), classes, f"{name} {which}", mask=mask))
    test = splits[1] if len(splits) > 1 else None
    return hold_out(splits[0], validation, seed, test)


def load_series_file(
    path: str | os.PathLike[str],
    *,
    policy: Policy = "refuse",
    validation: float = 0.25,
    test: float = 0.2,
    seed: int = 0,
) -> Splits[Split]:
    r"""Series of your own from one file, or from NAME_TRAIN with NAME_TEST beside it.

    Args:
        path: a .tsv, .ts or .arff file, plain or gzipped.
        policy: as for `load_ucr`.
        validation: the share of the training part set aside.
        test: the share of a single file to test on; a NAME_TRAIN file has its NAME_TEST.
        seed: of these divisions.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "mine.csv"
        >>> _ = path.write_text("up,1,2\ndown,3,4\n" * 10)
        >>> load_series_file(path).sizes()
        {'train': 12, 'validation': 4, 'test': 4}
    """
    path = Path(path)
    beside = path.with_name(path.name.replace("_TRAIN.", "_TEST."))
    name = path.name.split("_TRAIN.")[0].split(".")[0]
    if beside != path and beside.is_file():
        return _build(name, [read_series(path), read_series(beside)], policy, validation, seed)
    whole = _build(name, [read_series(path)], policy, 0.0, seed).train
    rest, tested = stratified_indices(whole.y, test, seed=seed)
    held = dataclasses.replace(whole.take(tested), name=f"{name} test") if len(tested) else None
    return hold_out(whole.take(rest), validation, seed, held)


def hold_out(train: Split, fraction: float, seed: int, test: Split | None) -> Splits[Split]:
    """Set a share of the training part aside, class by class."""
    if fraction == 0:
        return Splits(train, None, test)
    first, second = stratified_indices(train.y, fraction, seed=seed)
    if len(second) == 0:
        return Splits(train, None, test)
    named = dataclasses.replace(train.take(second), name=train.name.replace("train", "validation"))
    return Splits(train.take(first), named, test)


def load_italy_power_demand(*, validation: float = 0.25, seed: int = 0) -> Splits[Split]:
    """ItalyPowerDemand, which ships with the package: 67 training and 1,029 test series of length 24 in 2 classes.

    A day's electricity demand in Italy; the classes are October to March and April to September.

    Args:
        validation: the share of the training part set aside, class by class.
        seed: of the validation split.

    Example:
        >>> load_italy_power_demand().sizes()
        {'train': 50, 'validation': 17, 'test': 1029}
    """
    place = files("pstn.data") / "offline" / "italy_power_demand.npz"
    with place.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
        train, test = (
            Split(
                torch.from_numpy(arrays[f"{part}_x"])[:, None],
                torch.from_numpy(arrays[f"{part}_y"]).long(),
                ("1", "2"),
                f"ItalyPowerDemand {part}",
            )
            for part in ("train", "test")
        )
    return hold_out(train, validation, seed, test)


def ucr_name(name: str) -> str:
    """The archive's spelling of a name, where it is on record; else the name as given, if it can be a file's.

    Example:
        >>> ucr_name("uWaveGestureLibrary_X"), ucr_name("wafer")
        ('UWaveGestureLibraryX', 'Wafer')
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name):
        raise ValueError(f"name must be a data set's, of letters, digits, '_' and '-', got {name!r}")
    for known, record in UCR_RECORDS.items():
        if _plain(name) in {_plain(known), *map(_plain, record.aliases)}:
            return known
    return name


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


def find_ucr(
    name: str, part: Literal["TRAIN", "TEST"] | str, *, root: str | os.PathLike[str] | None = None
) -> Path | None:
    """The file of one part of a set where it already lies, or None."""
    for folder in search_folders("ucr", root):
        for place in (folder, folder / name):
            for suffix in _SUFFIXES:
                if (place / f"{name}_{part}{suffix}").is_file():
                    return place / f"{name}_{part}{suffix}"
    return None


def _locate(name: str, part: str, root: str | os.PathLike[str] | None, fetch: bool, progress: Progress | None) -> Path:
    found = find_ucr(name, part, root=root)
    if found is not None:
        return found
    why = ""
    if root is None and fetch and not offline():
        try:
            fetch_ucr(name, progress=progress)
        except DataError as error:
            why = f"; downloading it failed: {error.problem}"
        found = find_ucr(name, part)
        if found is not None:
            return found
    wanted = RemoteFile("ucr", f"{name}_{part}.tsv (or .ts, .arff, with or without .gz)", (), get=name)
    raise missing(wanted, root, why)


def fetch_ucr(name: str, *, progress: Progress | None = None) -> list[Path]:
    """Fetch a set from the archive's site into the cache, and return the files that were unpacked.

    The site fixes no checksums. The archive is unpacked member by member, only what this package reads, with bounded
    sizes; `load_ucr` compares the result with what is on record.
    """
    name = ucr_name(name)
    if offline():
        raise DataError(f"{name}.zip", "is not fetched: $PSTN_OFFLINE says that the network is not to be used")
    remote = RemoteFile("ucr", f"{name}.zip", (f"{_SITE}{name}.zip", f"{_MIRROR}{name}.zip"), get=name)
    folder = cache_folder() / "ucr" / name
    path = download(remote, folder, progress=progress)
    try:
        written = []
        with zipfile.ZipFile(path) as archive:
            # By the last part of the name, which is all that is used of it: archives have a folder in them or not.
            members = {PurePosixPath(member).name: member for member in archive.namelist()}
            for part in ("TRAIN", "TEST"):
                wanted = [f"{name}_{part}{suffix}" for suffix in (".ts", ".tsv", ".arff")]
                found = next((file for file in wanted if file in members), None)
                if found is None:
                    raise DataError(path, f"holds none of {', '.join(wanted)}")
                with write_atomically(folder / found) as draft:
                    draft.write_bytes(read_zip_member(archive, members[found], path))
                written.append(folder / found)
        return written
    except zipfile.BadZipFile as error:
        raise DataError(path, f"is not a zip archive ({error}): there may be no set of that name") from error
    finally:
        path.unlink(missing_ok=True)


def compare_with_archive(name: str, part: str, series: RawSeries) -> list[str]:
    """How a file differs from what is on record about the archive's: one sentence each, none if it agrees."""
    if name not in UCR_RECORDS:
        return []
    known = UCR_RECORDS[name]
    record: PartRecord = known.train if part == "TRAIN" else known.test
    if ".tsv" in series.path.name.lower():
        found = _content_sha256(series.path)
        if found == record.sha256:
            return []
        if found in record.copies:
            return [f"differs from the archive's file: {record.copies[found]}"]
        if record.sha256 is not None:
            return [f"differs from the archive's checksum: SHA-256 is {found}, the archive's {record.sha256}"]
    if len(series) != record.count:
        return [f"holds {len(series):,} series, the archive's file {record.count:,}"]
    return []


def _content_sha256(path: Path) -> str:
    """Of the unpacked text with plain line ends: copies made on Windows are no different."""
    with open_stream(path) as stream:
        return hashlib.sha256(stream.read().replace(b"\r\n", b"\n")).hexdigest()
