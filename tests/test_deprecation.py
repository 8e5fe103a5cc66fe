"""Every old name in the table of docs/migrating.md still works, and warns with what to write instead."""

import importlib
import re
from pathlib import Path

import pytest
import torch

import pstn
from pstn.data import RandomPlacement, RandomRotation, generate, load_placed_fashion, read_series
from pstn.predict import predict_files, read_items
from pstn.training import Member, RandomWarp, make_members
from pstn.training.runs.settings import TrainSettings
from small_models import small_pstn

PAGE = Path(__file__).parents[1] / "docs" / "migrating.md"
TURNS, PLACES = RandomRotation(), RandomPlacement(40, 28, None)
ABOUT = pstn.ModelMetadata(("a", "b"), 1, (2,))


def names_of_the_page():
    """The (old, new) names in the rows of the table; one new name may stand for several old ones."""
    for row in re.findall(r"^\| (`.*) \| (`.*) \|$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE):
        olds, news = (re.findall(r"`([^`]+)`", cell) for cell in row)
        yield from zip(olds, news * len(olds) if len(news) == 1 else news, strict=True)


def fitted(**given):
    """The factor, if it is so small that the localizer stays as it was."""
    model = small_pstn()
    start = model.layer.mean_head.last.bias.detach().clone()
    pstn.fit(model, (torch.rand(8, 1, 12, 12), torch.arange(8) % 4), epochs=1, **given)
    torch.testing.assert_close(model.layer.mean_head.last.bias.detach(), start, rtol=0, atol=1e-9)
    return next(iter(given.values()))


def lightning(**given):
    pytest.importorskip("lightning.pytorch")
    return pstn.training.LitPSTN(small_pstn(), **given).hparams["localizer_factor"]


def number_of_errors(read, folder, name):
    """How often the handler passed as `name` was called for a file with one row that cannot be read."""
    path, errors = folder / "rows.tsv", []
    path.write_text("a\t1\t2\nb\tx\t2\n")
    list(read(path, **{name: errors.append}))
    return len(errors)


def read_labels(path, **given):
    return read_series(path, **given).labels


def read_inputs(path, **given):
    return read_items([path], ABOUT, **given)


def predict_rows(path, **given):
    model = pstn.nn.SeriesClassifier(1, classes=2)
    model.about = ABOUT
    return predict_files(model, [path], **given)


def digits():
    return pstn.data.load("digits", normalise=False).test.take(range(4))


# How each argument of the table is used: what the call returns is the value of the last column.
ARGUMENTS = {
    "fit(localizer_lr=)": (fitted, 1e-12),
    "Member(localizer_lr=)": (lambda **given: Member(**given).localizer_factor, 0.3),
    "LitPSTN(localizer_lr=)": (lightning, 0.3),
    "localizer_lr": (lambda **given: TrainSettings.from_dict(given).localizer_factor, 0.3),
    "PSTNClassifier(localizer_rate=)": (lambda **given: pstn.PSTNClassifier(**given).localizer_factor, 0.3),
    "generate(maker=)": (lambda **given: generate(digits(), **given).random_transform, TURNS),
    "load_placed_fashion(maker=)": (lambda **given: load_placed_fashion(**given).train.random_transform, PLACES),
    "RandomWarp(maker=)": (lambda **given: RandomWarp(**given).random_transform, TURNS),
}
READERS = {
    "pstn.data.read_series(refuse=)": read_labels,
    "pstn.predict.predict_files(refuse=)": predict_rows,
    "read_items(refuse=)": read_inputs,
}


def try_old_name(old, new, folder):
    argument = re.sub(r".*\((\w+)=\)", r"\1", old)
    if old == "Generated.maker":
        assert generate(digits(), TURNS).maker is TURNS
    elif old in READERS:
        assert number_of_errors(READERS[old], folder, argument) == 1
    elif old in ARGUMENTS:
        call, value = ARGUMENTS[old]
        assert call(**{argument: value}) == value
    elif new == "pstn.distributions":  # all names of a module
        module, moved = importlib.import_module(old), importlib.import_module(new)
        assert [getattr(module, name) for name in moved.__all__] == [getattr(moved, name) for name in moved.__all__]
    else:
        (place, _, name), (home, _, called) = old.rpartition("."), new.rpartition(".")
        assert getattr(importlib.import_module(place), name) is getattr(importlib.import_module(home), called)


@pytest.mark.filterwarnings("ignore:The transformation is")  # fit notices that the localizer hardly learns
@pytest.mark.parametrize(("old", "new"), list(names_of_the_page()))
def test_an_old_name_of_the_page_works_and_warns(old, new, tmp_path, monkeypatch):
    monkeypatch.setattr(pstn.data.images, "load_mnist", lambda *_, **__: pstn.data.load("digits"))
    with pytest.warns(FutureWarning, match=re.escape(new.rpartition(".")[2])):
        try_old_name(old, new, tmp_path)


def test_both_names_at_once_are_refused():
    with pytest.raises(TypeError, match="localizer_lr"):
        make_members(1, localizer_lr=0.1, localizer_factor=0.1)


def test_modules_of_old_names_have_no_others():
    for module in ("pstn.posterior", "pstn.transforms.scale", "pstn.nn", "pstn.data"):
        with pytest.raises(AttributeError, match="Nothing"):
            _ = importlib.import_module(module).Nothing
    assert pstn.posterior.__name__ == "pstn.posterior"
