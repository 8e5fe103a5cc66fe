from __future__ import annotations

import dataclasses

import pytest

from pstn.report.results import Result, read_results

CELL = Result("mnist-subsets", "P-STN", "MNIST100", 3, metrics={"accuracy": 0.92}, settings={"kl_weight": 3e-4})


def test_a_result_is_read_as_it_was_written(tmp_path):
    assert Result.read(CELL.write(tmp_path)) == CELL


def test_cells_that_differ_in_anything_that_names_them_have_files_of_their_own(tmp_path):
    cells = [CELL, *(dataclasses.replace(CELL, **change) for change in (
        {"model": "STN"}, {"data": "MNIST1000"}, {"seed": 4}, {"variant": "w=0.0001"}))]  # fmt: skip
    for cell in cells:
        cell.write(tmp_path)
    dataclasses.replace(CELL, experiment="calibration").write(tmp_path)
    assert sorted(r.name for r in read_results(tmp_path, "mnist-subsets")) == sorted(c.name for c in cells)
    assert len(read_results(tmp_path)) == 6


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"experiment": 1}', "\x00"])
def test_a_foreign_file_is_named(tmp_path, text):
    path = tmp_path / "mnist-subsets" / "broken.json"
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(ValueError, match=r"broken\.json is not a result file"):
        read_results(tmp_path)
