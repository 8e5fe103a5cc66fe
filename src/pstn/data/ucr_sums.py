"""What is on record about files of the UCR archive: their shape, their checksums, and copies known to differ.

Both parts of FaceAll and PhalangesOutlinesCorrect and the training parts of TwoPatterns, Wafer and UWaveGestureLibraryX
were at hand as the archive publishes them. Of the other files only the number of series is on record.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["UCR_RECORDS", "PartRecord", "SetRecord"]


@dataclass(frozen=True)
class PartRecord:
    """One file of the archive.

    Attributes:
        count: how many series the archive's file holds.
        sha256: of the archive's .tsv after unpacking; None where no copy known to be exact was at hand.
        values: of what is in it, labels and float32 values, whatever the format; see `pstn.data.ucr.values_sha256`.
            None where no complete copy was at hand.
        copies: SHA-256 of copies in circulation that differ, and how they do.
    """

    count: int
    sha256: str | None = None
    values: str | None = None
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
        PartRecord(
            560,
            "ac1957cc8aac3cfd7951a0d46e7ea1147fd3a23db3eeda2a30484764584a3242",
            "9e879cfac05c268505863a6ead31b7354077e5d81f4a3b6044e94208c16c103a",
        ),
        PartRecord(
            1690,
            "ae3cc831966b5b28684ca2563813bd550beb8648b3c3737d585b3eca79271d11",
            "13869b5f0832e2023d056b60fe7a47f89c3b6dbcf6066f086d2c1dc10dc772ba",
        ),
    ),
    "PhalangesOutlinesCorrect": SetRecord(
        80,
        2,
        PartRecord(
            1800,
            "c9479797e88b57cbff8d764584011b15493a8c8b6a5bd2e2c627e477f18cc298",
            "43aaefb8cea086c8cd1254a29ad9ef2d43faeeeb1571f317d5187e937a8b7ae2",
        ),
        PartRecord(
            858,
            "a57a9343d87a1a72f2cc31febdd13584b04952126a9bbdd3712ebc083082f10c",
            "c43faac6a697f0edb40fc20142b616df6cd912aa945d2b42f1927edefd132f0c",
        ),
    ),
    "TwoPatterns": SetRecord(
        128,
        4,
        PartRecord(
            1000,
            "fe4756d0a92e39994e3cc410912ef4c6929a4559b6bece395a8f8d344e2e619f",
            "bd57de75293964f9a4ec23585d68d044b20436720f10bc7aa75df3fb45edda1e",
        ),
        PartRecord(
            4000,
            copies={"b3e8286807f1523649bd4891a14d3699d9c38c86dea54aaa4f0439376141e459": "values rounded to float32"},
        ),
        aliases=("Two_Patterns",),
    ),
    "Wafer": SetRecord(
        152,
        2,
        PartRecord(
            1000,
            "a5d44c056e929ce6f406c9e88c135f1d0996bfe73f3aa4508804914956477a02",
            "20861fe5b15f39076fb3efdc7b7264c59c545f0de9b02c1f43fa39243e37fea2",
        ),
        PartRecord(
            6164,
            copies={"ff6c8f19ea34333359af153a5370fa897528bdf43a3b31219476f710ac9b4175": "its first series is missing"},
        ),
    ),
    "UWaveGestureLibraryX": SetRecord(
        315,
        8,
        PartRecord(
            896,
            "9e8d695d5a49a47a8322908c2000fb9fe8b593f9fbfce3332840d70de7503856",
            "9801045aa0329e01c7f03b902d590e946deb1cfca6c4136b1e5291a6627d650c",
        ),
        PartRecord(3582),
        aliases=("uWaveGestureLibrary_X",),
    ),
    "ItalyPowerDemand": SetRecord(24, 2, PartRecord(67), PartRecord(1029)),
}
