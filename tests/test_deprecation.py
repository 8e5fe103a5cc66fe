"""Names of 0.1.0 still work, and say what to write instead."""

import pytest
import torch

import pstn
from pstn.training import Member, make_members
from pstn.training.runs.settings import TrainSettings
from small_models import images, small_pstn


def test_the_localizers_factor_is_found_by_its_old_names():
    for make in (
        lambda: Member(localizer_lr=0.3), lambda: make_members(1, localizer_lr=0.3)[0],
        lambda: TrainSettings.from_dict({"localizer_lr": 0.3}), lambda: pstn.PSTNClassifier(localizer_rate=0.3),
    ):  # fmt: skip
        with pytest.warns(FutureWarning, match="localizer_factor"):
            assert make().localizer_factor == 0.3
    x, y = images(8)
    model = small_pstn()
    start = model.layer.mean_head.last.bias.detach().clone()
    with pytest.warns((FutureWarning, UserWarning)):
        pstn.fit(model, [(x, y)], epochs=1, localizer_lr=1e-12)
    torch.testing.assert_close(model.layer.mean_head.last.bias.detach(), start, rtol=0, atol=1e-9)


def test_both_names_at_once_are_refused():
    with pytest.raises(TypeError, match="localizer_lr"):
        Member(localizer_lr=0.1, localizer_factor=0.1)
