"""Models are found, or trained and kept; the page answers from them."""

import pytest
import torch

import pstn
from pstn.app import models
from pstn.app.answers import Answers
from pstn.app.models import Workshop, load_trio, plan_digits, plan_series, season_data
from pstn.data import load_digits
from pstn.demo import DemoData, demo_data
from pstn.io import ModelFileError


@pytest.fixture(autouse=True)
def _own_folders(tmp_path, monkeypatch):
    """Neither the user's cache nor a pstn-demo beside the tests."""
    monkeypatch.setenv("PSTN_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def few(data):
    return DemoData(*(part[:20] for part in data))


def small_workshop(folder=None):
    digits = plan_digits(epochs=1)._replace(data=lambda: few(demo_data(10)))
    series = plan_series(epochs=1)._replace(data=lambda: few(season_data()))
    return Workshop(folder, digits=digits, series=series)


def save(trio, folder):
    for name in ("cnn", "stn", "pstn"):
        getattr(trio, name).save_pretrained(folder / name)
    return folder


def test_first_start_trains_and_the_next_one_does_not(monkeypatch):
    first, told = small_workshop(), []
    assert first.digits is None
    assert first.series is None
    first.work(lambda doing, fraction: told.append((doing, fraction)))
    assert [doing for doing, _ in told] == [
        f"Training the {name} for {what}" for what in ("digits", "series") for name in ("CNN", "STN", "P-STN")
    ]
    assert [fraction for _, fraction in told] == pytest.approx([k / 6 for k in range(1, 7)])
    assert not first.problems

    monkeypatch.setattr(models, "train", lambda *args, **kwargs: pytest.fail("trained again"))
    second = small_workshop()
    second.work()
    digit = second.digits.about.prepare(load_digits("test").x[:2])
    assert torch.equal(first.digits.cnn(digit), second.digits.cnn(digit))
    assert second.digits.accuracy("pstn") == first.digits.accuracy("pstn")
    assert 0 < second.series.accuracy("cnn") <= 1


def test_a_damaged_cache_is_made_anew(tmp_path, digit_trio):
    kept = save(digit_trio, tmp_path / "cache" / "app" / pstn.__version__ / "digits")
    assert small_workshop().digits is not None
    weights = kept / "stn" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    assert small_workshop().digits is None


def test_a_cache_that_cannot_be_written_costs_only_the_next_start(tmp_path):
    (tmp_path / "cache").write_text("a file where the folder should be")
    workshop = small_workshop()
    workshop.work()
    assert workshop.digits is not None
    assert workshop.series is not None
    assert len(workshop.problems) == 2
    assert "not kept" in workshop.problems[0]


def test_the_demo_s_models_are_taken_where_they_are(tmp_path, digit_trio):
    save(digit_trio, tmp_path / "pstn-demo")
    assert small_workshop().digits is not None
    assert small_workshop(tmp_path / "pstn-demo").digits is not None
    (tmp_path / "pstn-demo" / "cnn" / "config.json").write_text("{}")
    with pytest.raises(ModelFileError, match="cnn"):
        small_workshop()


def test_folders_without_the_three_models_are_refused(tmp_path, digit_trio, series_trio):
    # Looks like a name on the Hub, which must not be asked.
    with pytest.raises(ModelFileError, match="cnn, stn and pstn"):
        small_workshop(tmp_path.__class__("someone/something"))
    with pytest.raises(ModelFileError, match="28 × 28"):
        load_trio(save(series_trio, tmp_path / "series"), (28, 28))
    folder = save(digit_trio, tmp_path / "swapped")
    digit_trio.cnn.save_pretrained(folder / "pstn")
    with pytest.raises(ModelFileError, match="pstn must hold"):
        load_trio(folder, (28, 28))


def test_the_page_answers_before_and_after_the_models_are_there(tmp_path, digit_trio):
    workshop = small_workshop()
    answers = Answers(workshop)
    base = answers.example(3, 0)
    assert "pstn-progress" in answers.digit(base, 0, 0, 0, 1, 0)
    assert "pstn-progress" in answers.series(answers.day(0, 0), 0, 1, 0, 0)
    workshop.digits = digit_trio
    still, turned = answers.digit(base, 0, 0, 0, 1, 0), answers.digit(base, 40, 0, 0, 1, 0)
    assert "pstn-look" in still
    assert still != turned
    assert not torch.equal(base, answers.example(3, 1))
    assert torch.equal(base, answers.example(3, 100))  # there are a hundred of each


def test_what_cannot_be_read_leaves_the_digit_and_a_message(tmp_path):
    answers = Answers(small_workshop())
    base = answers.example(3, 0)
    (tmp_path / "broken.png").write_bytes(b"broken")
    kept, message = answers.uploaded(str(tmp_path / "broken.png"), base)
    assert kept is base
    assert "does not open as a picture" in message
    kept, message = answers.drawn("broken", base)
    assert kept is base
    assert "draw it again" in message
