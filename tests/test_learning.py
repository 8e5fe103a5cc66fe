"""The claim itself, on real digits."""

import pytest
import torch

from pstn.demo import DEMO_MODELS, demo_data, evaluate, train


@pytest.mark.slow
def test_pstn_beats_cnn_on_100_digits_over_five_seeds():
    scores = {"cnn": [], "pstn": []}
    for seed in range(5):
        data = demo_data(100, seed)
        for name in scores:
            model = train(DEMO_MODELS[name], data, epochs=100, seed=seed)
            scores[name].append(evaluate(model, data))
    accuracy = {name: torch.tensor([score.accuracy for score in runs]) for name, runs in scores.items()}
    nll = {name: torch.tensor([score.nll for score in runs]) for name, runs in scores.items()}
    assert accuracy["pstn"].mean() > accuracy["cnn"].mean() + 0.02, accuracy
    assert (accuracy["pstn"] > accuracy["cnn"]).sum() >= 4, accuracy
    assert nll["pstn"].mean() < nll["cnn"].mean(), nll


def test_a_few_steps_lower_the_loss_of_every_model():
    data = demo_data(30)
    for entry in DEMO_MODELS.values():
        losses = []
        train(entry, data, epochs=12, progress=losses.append)
        assert losses[-1] < losses[0] - 0.02, (entry.label, losses)


def test_subsets_are_balanced_and_seeded():
    first, again, other = demo_data(50, seed=1), demo_data(50, seed=1), demo_data(50, seed=2)
    assert torch.equal(first.x, again.x)
    assert not torch.equal(first.x, other.x)
    assert first.y.bincount().tolist() == [5] * 10
    assert first.test_y.bincount().tolist() == [100] * 10
    with pytest.raises(ValueError, match="images must be a multiple of 10"):
        demo_data(55)
