"""What is on record about files of the UCR archive: their shape, their checksums, and copies known to differ."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["UCR_RECORDS", "PartRecord", "SetRecord"]


@dataclass(frozen=True)
class PartRecord:
    """One file of the archive.

    Attributes:
        count: how many series the archive's file holds.
        sha256: of the archive's .tsv after unpacking; None where no copy known to be exact was at hand.
        copies: SHA-256 of copies in circulation that differ, and how they do.
    """

    count: int
    sha256: str | None = None
    copies: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SetRecord:
    """One data set of the archive: length of a series, classes, and its two files."""

    length: int
    classes: int
    train: PartRecord
    test: PartRecord
    aliases: tuple[str, ...] = ()


UCR_RECORDS: dict[str, SetRecord] = {
    "FaceAll": SetRecord(
        131,
        14,
        PartRecord(560, "ac1957cc8aac3cfd7951a0d46e7ea1147fd3a23db3eeda2a30484764584a3242"),
        PartRecord(1690, "ae3cc831966b5b28684ca2563813bd550beb8648b3c3737d585b3eca79271d11"),
    ),
    "PhalangesOutlinesCorrect": SetRecord(
        80,
        2,
        PartRecord(1800, "c9479797e88b57cbff8d764584011b15493a8c8b6a5bd2e2c627e477f18cc298"),
        PartRecord(858, "a57a9343d87a1a72f2cc31febdd13584b04952126a9bbdd3712ebc083082f10c"),
    ),
    "TwoPatterns": SetRecord(
        128,
        4,
        PartRecord(1000, "fe4756d0a92e39994e3cc410912ef4c6929a4559b6bece395a8f8d344e2e619f"),
        PartRecord(
            4000,
            copies={"b3e8286807f1523649bd4891a14d3699d9c38c86dea54aaa4f0439376141e459": "values rounded to float32"},
        ),
        aliases=("Two_Patterns",),
    ),
    "Wafer": SetRecord(
        152,
        2,
        PartRecord(1000, "a5d44c056e929ce6f406c9e88c135f1d0996bfe73f3aa4508804914956477a02"),
        PartRecord(
            6164,
            copies={"ff6c8f19ea34333359af153a5370fa897528bdf43a3b31219476f710ac9b4175": "its first series is missing"},
        ),
    ),
    "UWaveGestureLibraryX": SetRecord(
        315,
        8,
        PartRecord(896, "9e8d695d5a49a47a8322908c2000fb9fe8b593f9fbfce3332840d70de7503856"),
        PartRecord(3582),
        aliases=("uWaveGestureLibrary_X",),
    ),
    "ItalyPowerDemand": SetRecord(24, 2, PartRecord(67), PartRecord(1029)),
}
