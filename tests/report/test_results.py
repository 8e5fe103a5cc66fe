from __future__ import annotations

import errno
import json
import os
from dataclasses import asdict, replace

import pytest

from pstn.report.results import Result, read_results

CELL = Result("mnist-subsets", "P-STN", "MNIST100", 3, metrics={"accuracy": 0.92}, settings={"kl_weight": 3e-4})
OTHER = replace(CELL, seed=4)


def save(path, *cells):
    path.write_text("".join(f"{cell.to_line()}\n" for cell in cells))


def test_cells_that_differ_in_anything_that_names_them_are_all_read_as_they_were_written(tmp_path):
    changes = ({}, {"model": "STN"}, {"data": "MNIST1000"}, {"seed": 4}, {"variant": "w=0.0001"})
    cells = [replace(CELL, **change) for change in changes]
    for cell in (*cells, replace(CELL, experiment="calibration")):
        cell.write(tmp_path)
    assert read_results(tmp_path, "mnist-subsets") == sorted(cells, key=lambda cell: cell.full_name)
    assert len(read_results(tmp_path)) == 6
    assert len(list(tmp_path.iterdir())) == 2  # one shard of each experiment


def test_shards_and_the_experiments_file_are_merged_and_the_latest_record_counts(tmp_path):
    first, second, third = (replace(CELL, seconds=seconds) for seconds in (1.0, 2.0, 3.0))
    save(tmp_path / "mnist-subsets.jsonl", OTHER, first)
    assert read_results(tmp_path) == [first, OTHER]
    save(tmp_path / "mnist-subsets.20260102T030405-ab.jsonl", second, third)
    save(tmp_path / "mnist-subsets.20260102T030404-cd.jsonl", second)
    assert read_results(tmp_path) == [third, OTHER]
    assert read_results(tmp_path, "mnist") == []


def test_processes_write_shards_of_their_own(tmp_path, monkeypatch):
    for process, cell in ((11, CELL), (12, OTHER)):
        monkeypatch.setattr(os, "getpid", lambda process=process: process)
        cell.write(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    assert read_results(tmp_path) == [CELL, OTHER]


@pytest.mark.parametrize(("keep", "read"), [(1, [CELL]), (20, [CELL]), (-2, [CELL]), (-1, [CELL, OTHER])])
def test_a_last_line_that_was_cut_off_is_as_if_it_had_not_been_run(tmp_path, keep, read):
    path = CELL.write(tmp_path)
    path.write_bytes(path.read_bytes() + f"{OTHER.to_line()}\n".encode()[:keep])
    assert read_results(tmp_path) == read


def test_a_write_that_fails_leaves_no_part_of_a_line(tmp_path, monkeypatch):
    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    CELL.write(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            OTHER.write(tmp_path)
    OTHER.write(tmp_path)
    assert read_results(tmp_path) == [CELL, OTHER]


@pytest.mark.parametrize(
    "line",
    [
        b"", b"[]", b"{}", b'{"experiment": 1}', b"\x00", b"\xff",
        *(
            json.dumps(asdict(OTHER) | change).encode()
            for change in ({"metrics": {"accuracy": "high"}}, {"seed": "3"}, {"experiment": "calibration"})
        ),
    ],
)  # fmt: skip
def test_a_line_that_is_not_a_result_is_named(tmp_path, line):
    path = tmp_path / "mnist-subsets.jsonl"
    path.write_bytes(b"\n".join([CELL.to_line().encode(), line, OTHER.to_line().encode(), b""]))
    with pytest.raises(ValueError, match=r"mnist-subsets\.jsonl, line 2,"):
        read_results(tmp_path)
