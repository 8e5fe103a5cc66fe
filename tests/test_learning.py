"""The claim itself, on real digits."""

import pytest
import torch

from pstn.demo import LABELS, demo_data, train


@pytest.mark.slow
def test_pstn_beats_cnn_on_100_digits_over_five_seeds():
    scores = {"cnn": [], "pstn": []}
    for seed in range(5):
        data = demo_data(100, seed)
        for name in scores:
            scores[name].append(train(name, data, epochs=100, seed=seed).about.metrics)
    accuracy, nll = (
        {name: torch.tensor([score[metric] for score in runs]) for name, runs in scores.items()}
        for metric in ("accuracy", "nll")
    )
    assert accuracy["pstn"].mean() > accuracy["cnn"].mean() + 0.02, accuracy
    assert (accuracy["pstn"] > accuracy["cnn"]).sum() >= 4, accuracy
    assert nll["pstn"].mean() < nll["cnn"].mean(), nll


def test_a_few_steps_lower_the_loss_of_every_model():
    data = demo_data(30)
    for kind in LABELS:
        losses = []
        train(kind, data, epochs=12, on_loss=losses.append)
        assert losses[-1] < losses[0] - 0.02, (kind, losses)


def test_subsets_are_balanced_and_seeded():
    first, again, other = demo_data(50, seed=1), demo_data(50, seed=1), demo_data(50, seed=2)
    assert torch.equal(first.x, again.x)
    assert not torch.equal(first.x, other.x)
    assert first.y.bincount().tolist() == [5] * 10
    assert first.test_y.bincount().tolist() == [100] * 10
    with pytest.raises(ValueError, match="images must"):
        demo_data(55)
