"""Untrusted series: what is filled up to the length of the longest is bounded, and so is the time for bad rows."""

import time

import pytest

from data_files import refused
from pstn.data import read_series, stack_series

HEADER = "@timeStamps false\n@classLabel true a b\n@data\n"


def test_channels_of_very_different_length_are_refused(tmp_path):
    path = tmp_path / "a_TRAIN.ts"
    path.write_text(HEADER + ",".join(["1"] * 20_000) + ":1" * 20_000 + ":a\n")  # 3 GB in an array
    refused("line 4", read_series, path)


@pytest.mark.parametrize("policy", ["pad", "resample"])
def test_series_of_very_different_length_are_refused(tmp_path, policy):
    path = tmp_path / "a_TRAIN.csv"
    path.write_text("a," + ",".join(["1"] * 200_000) + "\n" + "b,1,2\n" * 20_000)  # 15 GB in an array
    refused("longest", stack_series, [read_series(path)], policy)


def test_rows_of_unknown_classes_take_linear_time(tmp_path):
    path, errors = tmp_path / "a_TRAIN.ts", []
    classes = " ".join(f"c{number}" for number in range(200_000))
    path.write_text(f"@classLabel true {classes}\n@data\n" + "1:x\n" * 3_000 + "1:c1\n")
    start = time.process_time()
    assert len(read_series(path, on_error=errors.append)) == 1
    assert time.process_time() - start < 3
    assert len(errors) == 3_000
