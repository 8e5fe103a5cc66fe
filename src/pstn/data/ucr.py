"""The UCR and UEA archives of series: from a folder, the cache or the archive's site."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import tempfile
import warnings
from importlib.resources import files
from pathlib import Path, PurePosixPath

import numpy as np

from pstn.data.archives import open_zip, read_zip_member
from pstn.data.download import Progress, RemoteFile, download, missing
from pstn.data.errors import DataError, DataWarning, MissingDataError
from pstn.data.files import bounded_read, most_unpacked, open_stream
from pstn.data.labels import encode_labels, name_classes, sort_classes
from pstn.data.listing import require_inside
from pstn.data.places import cache_folder, offline, search_folders
from pstn.data.series import Policy, RawSeries, stack_series
from pstn.data.series_files import SERIES_SUFFIXES, read_series
from pstn.data.split import Split, Splits
from pstn.data.subsets import stratified_indices
from pstn.data.ucr_sums import UCR_RECORDS, PartRecord

__all__ = [
    "compare_with_archive",
    "fetch_ucr",
    "find_ucr",
    "load_italy_power_demand",
    "load_series_file",
    "load_ucr",
    "locate_ucr",
    "plain_name",
    "ucr_name",
    "values_sha256",
]

_SITE = "https://timeseriesclassification.com/aeon-toolkit/"
_MIRROR = "https://www.timeseriesclassification.com/aeon-toolkit/"
_SUFFIXES = tuple(suffix + packed for suffix in SERIES_SUFFIXES for packed in ("", ".gz"))
_NAME = r"[A-Za-z0-9][A-Za-z0-9_-]*"
_PART = re.compile(r"(.+)_(TRAIN|TEST|train|test)\..+")
_OTHER = {"TRAIN": "TEST", "TEST": "TRAIN", "train": "test", "test": "train"}


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
        return load_italy_power_demand(policy=policy, validation=validation, seed=seed)
    paths = []
    for part in ("TRAIN", "TEST"):
        try:
            paths.append(locate_ucr(name, part, root=root, fetch=fetch, progress=progress))
        except MissingDataError:
            if part == "TRAIN" or need_test:
                raise
    return _build(name, _read_parts(name, paths), policy, validation, seed)


def _read_parts(name: str, paths: list[Path]) -> list[RawSeries]:
    """The training and the test part, each compared with what is on record."""
    if len(paths) == 2 and paths[0].samefile(paths[1]):
        raise DataError(paths[1], f"is the same file as {paths[0].name}: nothing would be left to test on")
    parts = [read_series(path) for path in paths]
    for series, part in zip(parts, ("TRAIN", "TEST"), strict=False):
        for difference in compare_with_archive(name, part, series):
            warnings.warn(DataWarning(f"{series.path}: {difference}; it is used as it is"), stacklevel=3)
    return parts


def _build(
    name: str, parts: list[RawSeries], policy: Policy, validation: float, seed: int, length: int | None = None
) -> Splits[Split]:
    classes = sort_classes(parts[0].declared or parts[0].labels)
    known = set(classes)
    stacked = stack_series(parts, policy, length=length)
    splits = []
    for series, (x, mask), which in zip(parts, stacked, ("train", "test"), strict=False):
        for label, line in zip(series.labels, series.lines, strict=True):
            if label not in known:
                problem = f"unknown label {label!r}: the training part has {name_classes(classes)}"
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
    need_test: bool = True,
    length: int | None = None,
) -> Splits[Split]:
    r"""Series of your own from one file, or from NAME_TRAIN with NAME_TEST beside it, in whatever format each is.

    Args:
        path: a .tsv, .csv, .txt, .ts or .arff file, plain or gzipped.
        policy: as for `load_ucr`.
        validation: the share of the training part set aside.
        test: the share of a single file to test on. No part of a NAME_TRAIN file is ever used to test on.
        seed: of these divisions.
        need_test: whether a missing NAME_TEST is an error; else the test split is None.
        length: as for `stack_series`.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "mine.csv"
        >>> _ = path.write_text("up,1,2\ndown,3,4\n" * 10)
        >>> load_series_file(path).sizes()
        {'train': 12, 'validation': 4, 'test': 4}
    """
    path = Path(path)
    match = _PART.fullmatch(path.name)
    if match is not None and path.is_file():
        parts = _read_parts(_on_record(match[1]), _both(path, need_test))
        return _build(match[1], parts, policy, validation, seed, length)
    name = path.name.split(".")[0]
    whole = _build(name, [read_series(path)], policy, 0.0, seed, length).train
    rest, tested = stratified_indices(whole.y, test, seed=seed)
    held = dataclasses.replace(whole.take(tested), name=f"{name} test") if len(tested) else None
    return hold_out(whole.take(rest), validation, seed, held)


def _both(path: Path, need_test: bool) -> list[Path]:
    """NAME_TRAIN and NAME_TEST, of which `path` is one and the other lies beside it."""
    match = _PART.fullmatch(path.name)
    assert match is not None
    name, given = match[1], match[2]
    trains = given.upper() == "TRAIN"
    other = _in_folder(path.parent, name, _OTHER[given])
    if other is not None:
        require_inside(path.parent, other)
        return [path, other] if trains else [other, path]
    if trains and not need_test:
        return [path]
    wanted = path.parent / f"{name}_{_OTHER[given]}.tsv"
    advice = "; pass need_test=False to go without a test part" if trains else ""
    raise MissingDataError(wanted, f"is missing beside {path.name}, and so are .ts, .arff and .gz of it{advice}")


def _on_record(name: str) -> str:
    """The archive's spelling of the name of a file, which may hold anything."""
    return ucr_name(name) if re.fullmatch(_NAME, name) else name


def hold_out(train: Split, fraction: float, seed: int, test: Split | None) -> Splits[Split]:
    """Set a share of the training part aside, class by class."""
    if fraction == 0:
        return Splits(train, None, test)
    first, second = stratified_indices(train.y, fraction, seed=seed)
    if len(second) == 0:
        return Splits(train, None, test)
    named = dataclasses.replace(train.take(second), name=train.name.replace("train", "validation"))
    return Splits(train.take(first), named, test)


def load_italy_power_demand(*, policy: Policy = "refuse", validation: float = 0.25, seed: int = 0) -> Splits[Split]:
    """ItalyPowerDemand, which ships with the package: 67 training and 1,029 test series of length 24 in 2 classes.

    A day's electricity demand in Italy; the classes are October to March and April to September.

    Args:
        policy: as for `load_ucr`; no value is missing and all lengths agree, so that only "pad" adds anything: a mask.
        validation: the share of the training part set aside, class by class.
        seed: of the validation split.

    Example:
        >>> load_italy_power_demand().sizes()
        {'train': 50, 'validation': 17, 'test': 1029}
    """
    place = files("pstn.data") / "offline" / "italy_power_demand.npz"
    parts = []
    with place.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
        for part in ("train", "test"):
            values = tuple(arrays[f"{part}_x"].astype(np.float64)[:, None])
            labels = tuple(("1", "2")[y] for y in arrays[f"{part}_y"])
            parts.append(RawSeries(Path(place.name), values, labels, tuple(range(1, len(labels) + 1))))
    return _build("ItalyPowerDemand", parts, policy, validation, seed)


def ucr_name(name: str) -> str:
    """The archive's spelling of a name, where it is on record; else the name as given, if it can be a file's.

    Example:
        >>> ucr_name("uWaveGestureLibrary_X"), ucr_name("wafer")
        ('UWaveGestureLibraryX', 'Wafer')
    """
    if not re.fullmatch(_NAME, name):
        raise ValueError(f"name must be a data set's, of letters, digits, '_' and '-', got {name!r}")
    for known, record in UCR_RECORDS.items():
        if plain_name(name) in {plain_name(known), *map(plain_name, record.aliases)}:
            return known
    return name


def plain_name(name: str) -> str:
    """A name without case, dashes and underscores: what people remember of it.

    Example:
        >>> plain_name("Face_All")
        'faceall'
    """
    return name.lower().replace("_", "").replace("-", "")


def find_ucr(name: str, part: str, *, root: str | os.PathLike[str] | None = None) -> Path | None:
    """The file of one part, "TRAIN" or "TEST", of a set where it already lies, or None."""
    for folder in search_folders("ucr", root):
        found = _in_folder(folder, name, part) or _in_folder(folder / name, name, part)
        if found is not None:
            return require_inside(folder, found)
    return None


def _in_folder(folder: Path, name: str, part: str) -> Path | None:
    paths = (folder / f"{name}_{part}{suffix}" for suffix in _SUFFIXES)
    return next((path for path in paths if path.is_file()), None)


def locate_ucr(
    name: str,
    part: str,
    *,
    root: str | os.PathLike[str] | None = None,
    fetch: bool = True,
    progress: Progress | None = None,
) -> Path:
    """The file of one part of a set where it lies, fetched into the cache first where it lies nowhere."""
    found = find_ucr(name, part, root=root)
    if found is not None:
        return found
    failure = ""
    if root is None and fetch and not offline():
        try:
            fetch_ucr(name, progress=progress)
        except (DataError, ImportError) as error:
            failure = str(getattr(error, "problem", error))
        found = find_ucr(name, part)
        if found is not None:
            return found
    get = name if name in UCR_RECORDS else f"ucr:{name}"
    wanted = RemoteFile("ucr", f"{name}_{part}.tsv (or .ts, .arff, with or without .gz)", (), get=get)
    raise missing(wanted, root, failure)


def fetch_ucr(name: str, *, progress: Progress | None = None) -> list[Path]:
    """Fetch a set from the archive's site into the cache, and return its training and its test file.

    The site fixes no checksums. The archive is unpacked member by member, only what this package reads, with bounded
    sizes, in a folder of its own; both files are read before they are moved to their place. `load_ucr` compares them
    with what is on record.
    """
    name = ucr_name(name)
    if offline():
        raise DataError(f"{name}.zip", "is not fetched: $PSTN_OFFLINE says that the network is not to be used")
    remote = RemoteFile("ucr", f"{name}.zip", (f"{_SITE}{name}.zip", f"{_MIRROR}{name}.zip"), get=name)
    folder = cache_folder() / "ucr" / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".fetched-") as work:
        drafts = _unpack(download(remote, Path(work), progress=progress), name)
        for draft in drafts:
            try:
                read_series(draft)
            except DataError as error:
                raise DataError(remote.name, f"{draft.name} in it cannot be read: {error.problem}") from error
        folder.mkdir(exist_ok=True)
        # The training part last: it is what is looked for first.
        return [draft.replace(folder / draft.name) for draft in reversed(drafts)][::-1]


def _unpack(path: Path, name: str) -> list[Path]:
    """The training and the test file of a set, out of the site's zip and beside it."""
    drafts = []
    with open_zip(path, "a zip archive: there may be no set of that name") as archive:
        # By the last part of the name, which is all that is used of it: archives have a folder in them or not.
        members = {PurePosixPath(member).name: member for member in archive.namelist()}
        for part in ("TRAIN", "TEST"):
            wanted = [f"{name}_{part}{suffix}" for suffix in (".ts", ".tsv", ".arff")]
            found = next((file for file in wanted if file in members), None)
            if found is None:
                raise DataError(path.name, f"holds none of {', '.join(wanted)}")
            drafts.append(path.with_name(found))
            drafts[-1].write_bytes(read_zip_member(archive, members[found], path, limit=most_unpacked(path)))
    return drafts


def compare_with_archive(name: str, part: str, series: RawSeries) -> list[str]:
    """How a file differs from what is on record about the archive's: one sentence each, none if it agrees."""
    if name not in UCR_RECORDS:
        return []
    known = UCR_RECORDS[name]
    record: PartRecord = known.train if part == "TRAIN" else known.test
    text = _text_sha256(series.path) if ".tsv" in series.path.name.lower() else None
    if text is not None and text == record.sha256:
        return []
    if text in record.copies:
        return [f"differs from the archive's file: {record.copies[text]}"]
    found, expected = values_sha256(series), record.values
    if expected is None and text is not None:
        found, expected = text, record.sha256
    if expected is not None and found != expected:
        return [f"differs from the archive's checksum: SHA-256 is {found}, the archive's {expected}"]
    if len(series) != record.count:
        return [f"holds {len(series):,} series, the archive's file {record.count:,}"]
    return []


def _text_sha256(path: Path) -> str:
    """Of the unpacked text with plain line ends: copies made on Windows are no different."""
    with open_stream(path) as stream:
        content = bounded_read(stream, most_unpacked(path))
    return hashlib.sha256(content.replace(b"\r\n", b"\n")).hexdigest()


def values_sha256(series: RawSeries) -> str:
    """Of labels and float32 values, which is what is used of a file: the same whatever its format.

    Example:
        >>> one = RawSeries(Path("a.tsv"), (np.array([[1.0, 2.0]]),), ("up",), (1,))
        >>> values_sha256(one) == values_sha256(dataclasses.replace(one, path=Path("a.ts"), lines=(9,)))
        True
    """
    digest = hashlib.sha256()
    for values, label in zip(series.values, series.labels, strict=True):
        digest.update(f"{label}\0{values.shape}\0".encode())
        digest.update((values + 0.0).astype("<f4").tobytes())  # -0 and 0 are the same number
    return digest.hexdigest()
