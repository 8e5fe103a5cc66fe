"""The picture of what a model looked at: nothing of the boxes is cut off, and a wrong answer says so."""

import pytest
import torch

pytest.importorskip("matplotlib")
from matplotlib.figure import Figure

from pstn import STN, Similarity, SpatialTransformer
from pstn.nn import ConvLocalizer
from pstn.report import pictures


class Says(torch.nn.Module):
    """A classifier with one answer for all."""

    def __init__(self, answer: int) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, x):
        return 3 * torch.nn.functional.one_hot(torch.full((len(x),), self.answer), 4).float()


def drawn(monkeypatch, tmp_path, *, scale: float, answer: int = 1, undo=None):
    """The axes of a picture of two images of class 1, seen at a scale of the image."""
    layer = SpatialTransformer(Similarity(), ConvLocalizer(1, (16, 16), filters=(2, 2)), (8, 8), probabilistic=False)
    with torch.no_grad():
        layer.mean_head.last.weight.zero_()
        layer.mean_head.last.bias.copy_(torch.tensor([0.3, scale, 0.0, 0.0]))
    seen = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda figure, *a, **k: (seen.append(figure), save(figure, *a, **k)))
    x, y = torch.rand(2, 1, 16, 16), torch.tensor([1, 1])
    pictures.draw_samples(tmp_path / "samples.png", STN(layer, Says(answer)), x, y, undo=undo)
    return seen[0].axes


@pytest.mark.parametrize("scale", [0.4, 1.0, 1.5])
def test_boxes_are_whole(monkeypatch, tmp_path, scale):
    panel = drawn(monkeypatch, tmp_path, scale=scale)[0]
    (left, right), (low, high) = sorted(panel.get_xlim()), sorted(panel.get_ylim())
    for line in panel.lines:
        x, y = line.get_xdata(), line.get_ydata()
        assert left <= x.min()
        assert x.max() <= right
        assert low <= y.min()
        assert y.max() <= high


def test_a_box_far_too_large_does_not_shrink_the_image_to_nothing(monkeypatch, tmp_path):
    panel = drawn(monkeypatch, tmp_path, scale=50.0)[0]
    left, right = sorted(panel.get_xlim())
    assert right - left <= 3 * 16


def test_what_the_classifier_saw_is_drawn_with_what_lay_outside(monkeypatch, tmp_path):
    shown = []
    monkeypatch.setattr(pictures, "_draw_image", lambda axes, image: shown.append(image))
    drawn(monkeypatch, tmp_path, scale=3.0, undo=lambda x: x * 0.25 + 0.5)  # 0, which lies outside, is grey
    looks = [image for image in shown if image.shape[-1] == 8]
    assert len(looks) == 2
    assert all(look[0, 0, 0] == 0.5 for look in looks)


@pytest.mark.parametrize(("answer", "wrong"), [(1, False), (2, True)])
def test_a_wrong_answer_says_so(monkeypatch, tmp_path, answer, wrong):
    axes = drawn(monkeypatch, tmp_path, scale=1.0, answer=answer)
    notes = [text.get_text() for panel in axes for text in panel.texts]
    assert ["wrong" in note for note in notes] == [wrong, wrong]
