"""Pictures become digits or a message; digits and series move as the sliders say."""

import base64

import numpy as np
import pytest
import torch
from PIL import Image

import pstn
from pstn.app import (
    SKETCH_SIDE,
    PictureError,
    move_digit,
    move_series,
    read_examples,
    read_picture,
    read_sketch,
    to_digit,
)
from pstn.data import load_digits
from pstn.limits import PAGE_FILE_BYTES


def black_bar():
    """A dark upright bar on white, 60 x 40."""
    grey = np.full((60, 40), 255, np.uint8)
    grey[10:50, 16:24] = 0
    return Image.fromarray(grey)


def test_every_mode_gives_the_same_digit(tmp_path):
    bar = black_bar()
    clear = Image.new("RGBA", (40, 60), (0, 0, 0, 0))
    clear.paste((0, 0, 0, 255), (16, 10, 24, 50))
    expected = to_digit(np.asarray(bar))
    assert expected[0].sum() > 50
    for name, image in {
        "grey.png": bar, "palette.png": bar.convert("P"), "bits.png": bar.convert("1"),
        "print.jpg": bar.convert("CMYK"), "deep.png": Image.fromarray(np.asarray(bar).astype(np.uint16) * 257),
        "clear.png": clear, "chalk.png": Image.eval(bar, lambda level: 255 - level),
    }.items():  # fmt: skip
        image.save(tmp_path / name)
        assert (to_digit(read_picture(tmp_path / name)) - expected).abs().max() < 0.2, name


def test_a_file_that_cannot_be_used_is_answered_with_a_message(tmp_path):
    path = tmp_path / "picture.png"
    Image.new("1", (5_000, 5_000)).save(path)
    with pytest.raises(PictureError, match="16 million"):
        read_picture(path)
    for content in (b"", b"hello", path.read_bytes()[:60]):
        path.write_bytes(content)
        with pytest.raises(PictureError, match="picture"):
            read_picture(path)
    with path.open("wb") as stream:
        stream.truncate(PAGE_FILE_BYTES + 1)
    with pytest.raises(PictureError, match="5 MB"):
        read_picture(path)
    with pytest.raises(PictureError, match="no digit"):
        to_digit(np.full((50, 50), 200, np.uint8))


def test_a_drawing_arrives_as_bytes():
    ink = np.zeros((SKETCH_SIDE, SKETCH_SIDE), np.uint8)
    ink[20:90, 50:60] = 255
    assert np.array_equal(read_sketch(base64.b64encode(ink.tobytes()).decode()), 255 - ink)
    for wrong in (None, 7, "", "not base64!", "AAAA", "A" * 10**6, ["A"]):
        with pytest.raises(PictureError, match="drawing"):
            read_sketch(wrong)


@pytest.mark.parametrize("quarters", [1, 2, 3])
def test_turning_is_clockwise(quarters):
    digit = load_digits("test").x[7]
    expected = np.rot90(digit[0].numpy(), -quarters)
    np.testing.assert_allclose(move_digit(digit, turn=90 * quarters)[0].numpy(), expected, atol=1e-4)


def test_files_for_a_model_of_ones_own(tmp_path):
    photos, series = pstn.ModelMetadata(("a", "b"), 3, (8, 6)), pstn.ModelMetadata(("a", "b"), 1, (3,))
    Image.new("RGB", (60, 80), (255, 0, 51)).save(tmp_path / "photo.png")
    [photo] = read_examples(tmp_path / "photo.png", photos)
    assert photo.shape == (3, 8, 6)
    assert photo[:, 0, 0].tolist() == pytest.approx([1, 0, 0.2])
    (tmp_path / "days.csv").write_text("1,2,3\n4,5,6\n")
    assert read_examples(tmp_path / "days.csv", series).tolist() == [[[1, 2, 3]], [[4, 5, 6]]]
    for name, about in {"days.csv": photos, "photo.png": series, "empty.csv": series}.items():
        (tmp_path / "empty.csv").touch()
        with pytest.raises(PictureError) as refused:
            read_examples(tmp_path / name, about)
        assert str(tmp_path) not in str(refused.value)


def test_series_are_shifted_stretched_and_jittered():
    ramp = torch.arange(24.0)[None]
    assert torch.allclose(move_series(ramp, later=2)[0, 2:], ramp[0, :-2])
    assert torch.allclose(move_series(ramp, stretch=2)[0].diff(), torch.full((23,), 0.5))
    assert torch.equal(move_series(ramp), ramp)
    assert torch.equal(move_series(torch.cat([ramp, -ramp]), later=2)[1], -move_series(ramp, later=2)[0])
    jitter = move_series(ramp, noise=0.5, seed=3) - ramp
    assert torch.allclose(move_series(ramp, noise=1.0, seed=3) - ramp, 2 * jitter, atol=1e-5)
    assert 0.2 < jitter.std() < 1
