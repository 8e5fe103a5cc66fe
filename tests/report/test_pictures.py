"""The picture of what a model looked at: nothing of the boxes is cut off, and a wrong answer says so."""

import pytest
import torch
from torch import nn

pytest.importorskip("matplotlib")
from matplotlib.figure import Figure

from pstn import PSTN, STN, Crop, Similarity, SpatialTransformer
from pstn.nn import ConvLocalizer
from pstn.report import pictures


def drawn(monkeypatch, tmp_path, *, scale, answer=1, undo=None):
    """The axes of a picture of two images of class 1, seen at a scale of the image by a classifier with one answer."""
    layer = SpatialTransformer(Similarity(), ConvLocalizer(1, (16, 16), filters=(2, 2)), (8, 8), probabilistic=False)
    says = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
    with torch.no_grad():
        layer.mean_head.last.weight.zero_()
        layer.mean_head.last.bias.copy_(torch.tensor([0.3, scale, 0.0, 0.0]))
        says[1].weight.zero_()
        says[1].bias.copy_(3 * torch.eye(4)[answer])
    model, x, y = STN(layer, says), torch.rand(2, 1, 16, 16), torch.tensor([1, 1])
    return saved(monkeypatch, tmp_path, model, x, y=y, undo=undo).axes


def saved(monkeypatch, tmp_path, model, x, **options):
    """The figure of a picture."""
    seen, save = [], Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda figure, *a, **k: (seen.append(figure), save(figure, *a, **k)))
    assert pictures.draw_samples(tmp_path / "samples.png", model, x, **options).read_bytes().startswith(b"\x89PNG")
    return seen[0]


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


def test_far_ends_of_a_series_do_not_make_it_small(monkeypatch, tmp_path):
    layer = SpatialTransformer(Crop(ndim=1), nn.Flatten(), (8,), features=16, probabilistic=False)
    with torch.no_grad():
        layer.mean_head.last.weight.zero_()
        layer.mean_head.last.bias.copy_(torch.tensor([50.0, 0.0]))
    model = STN(layer, nn.Sequential(nn.Flatten(), nn.Linear(8, 4)))
    figure = saved(monkeypatch, tmp_path, model, torch.rand(1, 1, 16))
    left, right = figure.axes[0].get_xlim()
    assert right - left <= 2 * 16
    assert "reach further" in figure.axes[0].get_xlabel()


@pytest.mark.parametrize(("samples", "empty"), [(1, 0), (2, 0), (5, 1), (10, 0)])
def test_samples_fill_the_height_of_the_input(monkeypatch, tmp_path, samples, empty):
    """In two rows, so that no white is left below them."""
    layer = SpatialTransformer(Similarity(), nn.Flatten(), (8, 8), features=256)
    model = PSTN(layer, nn.Sequential(nn.Flatten(), nn.Linear(64, 4)))
    figure = saved(monkeypatch, tmp_path, model, torch.rand(1, 1, 16, 16), samples=samples)
    figure.canvas.draw()
    first, *panels = (axes for axes in figure.axes if axes.images or not axes.axison)
    assert [bool(axes.images) for axes in panels] == [True] * samples + [False] * empty
    height = first.get_position().height
    covered = max(axes.get_position().y1 for axes in panels) - min(axes.get_position().y0 for axes in panels)
    assert 0.85 * height < covered < 1.15 * height
    [words] = [text.get_text() for axes in figure.axes for text in axes.texts]
    assert ("from where it looked" in words) == (samples > 1)
    assert "entropy" in figure.get_supxlabel()


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
