"""Which boxes stand alone, and the piece of a photo around one."""

from pathlib import Path

import pytest

from pstn.data import (
    Box,
    Photo,
    Sign,
    commonest_classes,
    isolated,
    isolated_signs,
)
from pstn.data.photos import region_around


def photo(*corners, width=1000, height=500, panorama=False):
    return Photo("p", Path("p.jpg"), width, height, tuple(Box(*c, "a") for c in corners), panorama)


@pytest.mark.parametrize(("gap", "alone"), [(149.9, False), (150.0, True), (151, True)])
@pytest.mark.parametrize("axis", [0, 1])
def test_the_margin_counts_on_each_side(gap, alone, axis):
    first, second = [0, 0, 10, 10], [0, 0, 10, 10]
    second[axis], second[axis + 2] = 10 + gap, 20 + gap
    assert isolated(photo(first, second)) == [alone, alone]


def test_a_far_box_on_one_axis_is_enough():
    assert isolated(photo((0, 0, 10, 10), (300, 0, 310, 10))) == [True, True]
    assert isolated(photo((0, 0, 10, 10), (100, 300, 110, 310))) == [True, True]


def test_a_panorama_goes_round():
    corners = (20, 0, 60, 40), (940, 0, 980, 40)
    assert isolated(photo(*corners)) == [True, True]
    assert isolated(photo(*corners, panorama=True)) == [False, False]
    across = (980, 0, 1020, 40), (100, 0, 120, 40), (500, 0, 520, 40)
    assert isolated(photo(*across, panorama=True)) == [False, False, True]


def test_all_labels_count_as_neighbours_but_other_sign_is_no_class():
    boxes = (Box(0, 0, 10, 10, "x"), Box(20, 0, 30, 10, "other-sign"), Box(500, 0, 510, 10, "other-sign"))
    signs = isolated_signs([Photo("p", Path("p"), 1000, 500, boxes)])
    assert [s.box.label for s in signs] == ["other-sign"]
    assert commonest_classes(signs) == ()


def test_commonest_first_then_by_name():
    signs = [Sign(photo(), Box(0, 0, 1, 1, label)) for label in "cabcab"] + [Sign(photo(), Box(0, 0, 1, 1, "b"))]
    assert commonest_classes(signs, 2) == ("b", "a")


@pytest.mark.parametrize(
    ("corners", "panorama", "expected"),
    [
        ((400, 200, 420, 220), False, (250, 50, 570, 370)),
        ((10, 20, 30, 40), False, (0, 0, 180, 190)),
        ((980, 480, 1000, 500), False, (830, 330, 1000, 500)),
        ((980, 200, 1020, 220), True, (830, 50, 1170, 370)),
        ((10, 200, 30, 220), True, (-140, 50, 180, 370)),
        ((0, 200, 900, 220), True, (0, 50, 1000, 370)),
    ],
)
def test_wide_regions(corners, panorama, expected):
    sign = Sign(photo(corners, panorama=panorama), Box(*corners, "a"))
    assert region_around(sign, 150) == expected
