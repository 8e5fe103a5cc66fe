"""What a run trains on is what it is tested on."""

import pytest
import torch

import pstn
from pstn.data import RandomPlacement, RandomRotation, generate, load
from pstn.training import RandomWarp
from pstn.training.runs.run import Source, make_population, prepare
from pstn.training.runs.settings import TrainSettings


def test_a_generated_set_says_how_its_training_examples_are_changed():
    source = prepare(TrainSettings(data="rotated-digits"))
    assert source.augment == RandomWarp(RandomRotation())
    assert prepare(TrainSettings(data="rotated-digits", augment="rotation")).augment == source.augment
    assert prepare(TrainSettings(data="digits")).augment is None


def test_training_and_generated_sets_change_images_alike():
    digits = load("digits").train.take(range(5))
    for maker in (RandomRotation(1.0), RandomPlacement(64, 28, None)):
        u = torch.rand(5, maker.width, generator=torch.Generator().manual_seed(3))
        made = pstn.data.Generated(digits, maker, maker.theta(u)).all()
        assert torch.equal(made.x, RandomWarp(maker, digits.fill)(digits.x, u))


@pytest.mark.parametrize(("augment", "size"), [("rotation", (28, 28)), ("placement", (96, 96))])
def test_an_augmentation_changes_the_test_part_once(augment, size):
    source, plain = prepare(TrainSettings(augment=augment)), prepare(TrainSettings())
    assert source.size == size
    assert torch.equal(source.x, plain.x)  # drawn afresh at each access
    x, y = source.test
    assert torch.equal(x, prepare(TrainSettings(augment=augment)).test[0])
    assert torch.equal(y, plain.test[1])
    assert torch.equal(x, generate(load("digits").test, source.augment.random_transform, seed=0).all().x)


@pytest.mark.parametrize(
    ("data", "reason"), [("rotated-digits", "changes of its own"), ("ItalyPowerDemand", "no image")]
)
def test_an_augmentation_that_does_not_fit_is_refused(data, reason):
    with pytest.raises(ValueError, match=rf"augment must be 'none' for {data}.*{reason}"):
        prepare(TrainSettings(data=data, augment="placement"))


def test_the_policy_for_gaps_reaches_sets_of_the_archive(tmp_path, monkeypatch):
    rows = ["1\t0.0\t1.0\tNaN\t3.0", "2\t3.0\t2.0\t1.0\t0.0"]
    for part in ("TRAIN", "TEST"):
        (tmp_path / "ucr").mkdir(exist_ok=True)
        (tmp_path / "ucr" / f"Toy_{part}.tsv").write_text("\n".join(rows * 8) + "\n")
    monkeypatch.setenv("PSTN_DATA", str(tmp_path))
    with pytest.raises(ValueError, match="resample"):
        prepare(TrainSettings(data="ucr:Toy"))
    assert prepare(TrainSettings(data="ucr:Toy", policy="resample")).x[0, 0].isfinite().all()


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
    with pytest.raises(ValueError, match="valid_fraction"):
        make_population(TrainSettings(model="cnn", valid_fraction=0.01), unbalanced(10, 2))
