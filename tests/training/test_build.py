"""From settings to populations: who trains on what, and who is validated on what."""

import pytest
import torch

from pstn.training.runs.settings import TrainSettings
from pstn.training.runs.sources import Source, make_population, make_run_model


def unbalanced(*counts: int) -> Source:
    """Images of two classes without a validation part, so many of each."""
    y = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    return Source(torch.rand(len(y), 1, 16, 16), y, None, None, 0.0)


def test_validation_takes_its_part_of_every_class():
    source = unbalanced(90, 10)
    settings = TrainSettings(model="cnn", models=2, valid_fraction=0.2, groups=1)
    with make_population(settings, source) as population:
        for member in population.members:
            assert torch.bincount(source.y[member.valid]).tolist() == [18, 2]
            assert torch.bincount(source.y[member.train]).tolist() == [72, 8]
            assert sorted([*member.train.tolist(), *member.valid.tolist()]) == list(range(100))
        assert not torch.equal(population.members[0].valid, population.members[1].valid)


def test_a_validation_part_without_examples_is_refused():
    with pytest.raises(ValueError, match=r"valid_fraction 0\.01 of 12 training examples leaves none to validate on"):
        make_population(TrainSettings(model="cnn", valid_fraction=0.01), unbalanced(10, 2))


def test_a_warp_of_series_repeats_their_ends():
    """A series has no background: a level of 3 at its end must not fade to 0 beyond it."""
    source = Source(torch.full((4, 1, 40), 3.0), torch.arange(4) % 2, None, None, 0.0)
    model = make_run_model(TrainSettings(model="stn"), source, seed=0)
    theta = torch.randn(4, model.layer.transform.dim)
    torch.testing.assert_close(model.layer.warp(source.x, theta[None])[0], source.x)
