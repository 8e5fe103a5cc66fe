from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pstn.data import Box, Photo, Sign
from pstn.experiments import Lab
from pstn.experiments.traffic_signs import _box_in_crop, overlap, wide


def test_a_box_is_found_again_in_its_crop():
    # The crop runs from 50 to 200 and from 40 to 190, so a box from 100 to 150 is its middle third.
    box = Box(100.0, 90.0, 150.0, 140.0, "stop")
    sign = Sign(Photo("street", Path("street.jpg"), 600, 400, (box,)), box)
    assert _box_in_crop(sign) == pytest.approx([-1 / 3, -1 / 3, 1 / 3, 1 / 3])
    # At the photo's edge the crop ends, and the box is no longer in the middle.
    edge = Box(0.0, 90.0, 50.0, 140.0, "stop")
    sign = Sign(Photo("street", Path("street.jpg"), 600, 400, (edge,)), edge)
    assert _box_in_crop(sign) == pytest.approx([-1.0, -1 / 3, 0.0, 1 / 3])


def test_overlap_of_boxes():
    one = torch.tensor([[0.0, 0.0, 2.0, 2.0]] * 3)
    others = torch.tensor([[0.0, 0.0, 2.0, 2.0], [1.0, 1.0, 3.0, 3.0], [5.0, 5.0, 6.0, 6.0]])
    torch.testing.assert_close(overlap(one, others), torch.tensor([1.0, 1 / 7, 0.0]))


def test_the_stand_in_of_a_quick_run_knows_where_its_digits_are(tmp_path):
    task = wide(Lab(tmp_path, quick=True))
    boxes = (task.test.theta + 1) * 32
    for image, (left, top, right, bottom) in zip(task.test.x[:, 0], boxes, strict=True):
        rows, columns = torch.nonzero(image > 1e-3).unbind(1)  # a warp by whole pixels rounds
        assert left <= columns.min()
        assert columns.max() < right
        assert top <= rows.min()
        assert rows.max() < bottom
