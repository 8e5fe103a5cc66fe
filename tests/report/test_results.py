from __future__ import annotations

import dataclasses
import json

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


@pytest.mark.parametrize(
    "change",
    [{"metrics": {"accuracy": "high"}}, {"metrics": {"accuracy": float("nan")}}, {"metrics": [0.9]}, {"seed": "3"}],
)
def test_a_result_whose_numbers_are_none_is_named(tmp_path, change):
    path = CELL.write(tmp_path)
    path.write_text(json.dumps(dataclasses.asdict(CELL) | change))
    with pytest.raises(ValueError, match=r"mnist100-p-stn-3\.json is not a result file"):
        read_results(tmp_path)


def test_a_copy_under_another_cells_name_is_not_counted_as_that_cell(tmp_path):
    path = CELL.write(tmp_path)
    path.with_name("mnist100-p-stn-4.json").write_bytes(path.read_bytes())
    with pytest.raises(ValueError, match=r"mnist100-p-stn-4\.json holds the cell mnist-subsets/mnist100-p-stn-3"):
        read_results(tmp_path)
