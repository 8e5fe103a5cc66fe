"""The picture of what a model looked at: nothing of the boxes is cut off, and a wrong answer says so."""

import pytest
import torch

pytest.importorskip("matplotlib")
from matplotlib.figure import Figure

from pstn import STN, Similarity, SpatialTransformer
from pstn.nn import ConvLocalizer
from pstn.report import pictures


def drawn(monkeypatch, tmp_path, *, scale, answer=1, undo=None):
    """The axes of a picture of two images of class 1, seen at a scale of the image by a classifier with one answer."""
    layer = SpatialTransformer(Similarity(), ConvLocalizer(1, (16, 16), filters=(2, 2)), (8, 8), probabilistic=False)
    says = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 4))
    with torch.no_grad():
        layer.mean_head.last.weight.zero_()
        layer.mean_head.last.bias.copy_(torch.tensor([0.3, scale, 0.0, 0.0]))
        says[1].weight.zero_()
        says[1].bias.copy_(3 * torch.eye(4)[answer])
    seen, save = [], Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda figure, *a, **k: (seen.append(figure), save(figure, *a, **k)))
    path = pictures.draw_samples(
        tmp_path / "samples.png", STN(layer, says), torch.rand(2, 1, 16, 16), torch.tensor([1, 1]), undo=undo
    )
    assert path.read_bytes().startswith(b"\x89PNG")
    return seen[0].axes


@pytest.mark.parametrize("scale", [0.4, 1.5, 50.0])
def test_boxes_are_whole_unless_the_image_would_shrink_to_nothing(monkeypatch, tmp_path, scale):
    panel = drawn(monkeypatch, tmp_path, scale=scale)[0]
    (left, right), (low, high) = sorted(panel.get_xlim()), sorted(panel.get_ylim())
    assert right - left <= 2 * 16  # the image keeps half of its panel
    assert [line.get_linestyle() for line in panel.lines] == ["--" if scale == 50 else "-"]
    assert ("reach further" in panel.get_xlabel()) == (scale == 50)
    for line in panel.lines if scale < 50 else ():
        assert left <= line.get_xdata().min() <= line.get_xdata().max() <= right
        assert low <= line.get_ydata().min() <= line.get_ydata().max() <= high


def test_what_the_classifier_saw_is_drawn_with_what_lay_outside(monkeypatch, tmp_path):
    axes = drawn(monkeypatch, tmp_path, scale=3.0, undo=lambda x: x * 0.25 + 0.5)  # 0, which lies outside, is grey
    seen = [image.get_array() for panel in axes for image in panel.images if image.get_array().shape[0] == 8]
    assert len(seen) == 2
    assert all((image[0, 0] == 0.5).all() for image in seen)


@pytest.mark.parametrize(("answer", "wrong"), [(1, False), (2, True)])
def test_a_wrong_answer_says_so(monkeypatch, tmp_path, answer, wrong):
    panels = drawn(monkeypatch, tmp_path, scale=1.0, answer=answer)
    assert ["wrong" in text.get_text() for panel in panels for text in panel.texts] == [wrong, wrong]
    assert all(text.get_text().split("\n")[wrong] == f"{answer}: 87%" for panel in panels for text in panel.texts)
