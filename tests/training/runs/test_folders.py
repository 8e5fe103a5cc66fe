"""From a folder of images to scores: what a new user does, and the mistakes that are made on the way."""

import csv
import io
import json
import re

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

import pstn
from pstn.data import DataError, DataWarning, from_folder, generate, load
from pstn.data.split import encode_labels
from pstn.nn import Pretrained
from pstn.training.population.recipe import Jitter
from pstn.training.runs.run import _RANDOM_TRANSFORMS, evaluate_run, make_population, make_run_model, prepare, train
from pstn.training.runs.settings import SettingsError, TrainSettings
from small_runs import fails, final_weights, run_command, same, small, succeeds

ONE = ("--epochs", 1, "--model", "cnn", "--batch-size", 4)


def draw(path, kind, side=24, shift=0, mode="L"):
    """A disc or a square on black."""
    image = Image.new("L", (side, side))
    getattr(ImageDraw.Draw(image), kind)((4 + shift, 4, side - 8 + shift, side - 8), fill=255)
    path.parent.mkdir(parents=True, exist_ok=True)
    image.convert(mode).save(path)


@pytest.fixture
def shapes(tmp_path):
    """Two classes of ten images each, all of one size."""
    for kind in ("ellipse", "rectangle"):
        for number in range(10):
            draw(tmp_path / "shapes" / kind / f"{number}.png", kind, shift=number % 4)
    return tmp_path / "shapes"


@pytest.fixture
def run(shapes, tmp_path):
    """A run on the shapes."""
    succeeds("train", shapes, *ONE, "--out", tmp_path / "run")
    return tmp_path / "run"


def test_evaluate_scores_all_of_another_folder_and_says_so(run, shapes, tmp_path):
    others = shapes.rename(tmp_path / "others")
    found = run_command("evaluate", run, others)
    assert f"On 20 examples, all of {others}:" in found.stdout
    scores = json.loads(run_command("evaluate", run, others, "--json").stdout)
    assert (scores["examples"], scores["part"], scores["data"]) == (20, "all", str(others))


def test_evaluate_scores_the_test_part_of_its_own_folder_however_it_is_written(run, shapes, monkeypatch):
    monkeypatch.chdir(shapes.parent)
    for data in (shapes, "shapes", "./shapes/"):
        scores = json.loads(run_command("evaluate", run, data, "--json").stdout)
        assert (scores["examples"], scores["part"]) == (4, "test")
    assert f"On 4 test examples of {shapes}:" in run_command("evaluate", run).stdout
    assert json.loads(run_command("evaluate", run / "model-0", shapes, "--json").stdout)["part"] == "test"


def test_evaluate_scores_the_test_part_of_another_folder_that_has_one(run, shapes):
    for part in ("train", "test"):
        for kind in ("ellipse", "rectangle"):
            draw(shapes.parent / "divided" / part / kind / "1.png", kind)
    assert evaluate_run(run, str(shapes.parent / "divided"))[1:3] == (2, "test")


def pixels_of(x, about):
    """The examples as their files have them, as a set."""
    return {bytes((about.undo(row[None]) * 255).round().to(torch.uint8).numpy()) for row in x}


@pytest.fixture
def trained(photos, tmp_path):
    """A run on photos, and the photos that it learned from and was tested on."""
    settings = TrainSettings(data=str(photos), out=str(tmp_path / "run"), model="cnn", epochs=1)
    source = prepare(settings)
    train(settings, say=lambda _: None)
    about = pstn.from_pretrained(tmp_path / "run").about
    return tmp_path / "run", pixels_of(source.x, about), pixels_of(source.test[0], about)


@pytest.fixture
def scored(monkeypatch):
    """What was scored, call by call."""
    seen = []

    def score_models(models, x, y, samples, seeds):
        seen.append(pixels_of(x, models[0].about))
        return {"accuracy": [0.0], "nll": [0.0], "ece": [0.0]}

    monkeypatch.setattr("pstn.training.runs.run.score_models", score_models)
    return seen


def test_evaluate_scores_nothing_that_was_trained_on_after_the_folder_changed(photos, trained, scored):
    run, learned, tested = trained
    generator = np.random.default_rng(1)
    for name in "ab":
        save(photos / name / "0new.png", generator.integers(0, 256, (50, 60, 3)).astype(np.uint8))
        (photos / name / ("2.png" if name == "a" else "3.png")).write_text("broken")
        (photos / name / ("10.png" if name == "a" else "11.png")).unlink()
        (photos / name / ("20.png" if name == "a" else "21.png")).rename(photos / name / "renamed.png")
    held = json.loads(run_command("evaluate", run, "--skip-broken", "--json").stdout)
    [seen] = scored
    assert not seen & learned
    assert len(seen - tested) == held["new"] == 2
    assert held["examples"] == len(seen)
    assert f"2 of them new, of {photos}" in run_command("evaluate", run, photos, "--skip-broken").stdout
    succeeds("evaluate", run / "model-0", "--skip-broken")
    assert scored == [seen] * 3


def test_a_run_keeps_which_examples_are_in_which_part(photos, trained):
    run, learned, tested = trained
    held = json.loads((run / "parts.json").read_text())
    assert (len(held["train"]), len(held["test"]), held["shape"]) == (len(learned), len(tested), [3, 20, 20])
    assert not set(held["train"]) & set(held["test"])
    assert evaluate_run(run).examples == len(tested)


def test_where_all_of_a_folder_was_trained_on_or_nothing_is_known_again_nothing_is_scored(photos, trained):
    run, _, tested = trained
    about = pstn.from_pretrained(run).about
    whole = from_folder(photos, size=20, test=0.0)
    files = [path for name in "ab" for path in sorted((photos / name).iterdir())]
    for x, path in zip(whole.train.as_float(about.mean, about.std).x, files, strict=True):
        if pixels_of(x[None], about) <= tested:
            path.unlink()
    with pytest.raises(ValueError, match="trained on"):
        evaluate_run(run)
    for path in photos.glob("?/*.png"):
        Image.open(path).rotate(90, expand=True).save(path)
    with pytest.raises(ValueError, match="none of the examples"):
        evaluate_run(run)


def test_a_run_of_an_earlier_version_is_evaluated(trained):
    run, _, tested = trained
    (run / "parts.json").unlink()
    assert evaluate_run(run).examples == len(tested)


@pytest.mark.parametrize("text", ["[]", '{"shape": [3, 99999, 99999], "train": [], "test": []}', '{"'])
def test_a_damaged_list_of_parts_is_refused(trained, text):
    run, _, _ = trained
    (run / "parts.json").write_text(text)
    fails("evaluate", run, says="parts.json")


def test_a_contact_sheet_takes_images_of_many_sizes(shapes, tmp_path):
    draw(shapes / "ellipse" / "large.png", "ellipse", side=40)
    succeeds("data", "show", shapes, "--out", tmp_path / "sheet.png")
    assert (tmp_path / "sheet.png").read_bytes().startswith(b"\x89PNG")


def test_a_finished_run_is_trained_for_longer(data, tmp_path):
    train(small(data, tmp_path / "long", epochs=5), say=lambda _: None)
    train(small(data, tmp_path / "run", epochs=2), say=lambda _: None)
    before = final_weights(tmp_path / "run")
    succeeds("train", "--resume", "--out", tmp_path / "run", data, "--epochs", 5)
    after = final_weights(tmp_path / "run")
    assert not same(before, after)
    assert same(after, final_weights(tmp_path / "long"))
    assert evaluate_run(tmp_path / "run").scores == evaluate_run(tmp_path / "long").scores
    fails("train", "--resume", "--out", tmp_path / "run", data, "--epochs", 3, says="epochs must be at least 5")


def test_a_run_whose_early_stopping_goes_by_the_epochs_is_trained_for_longer(data, tmp_path):
    settings = small(data, tmp_path / "run", epochs=2, valid_fraction=0.3, model="cnn")
    train(settings.replace(epochs=150, out=str(tmp_path / "long")), say=lambda _: None)
    train(settings, say=lambda _: None)
    train(settings.replace(epochs=150), resume=True, say=lambda _: None)
    assert same(final_weights(tmp_path / "run"), final_weights(tmp_path / "long"))


def test_a_run_that_stopped_early_is_trained_for_longer(data, tmp_path):
    settings = small(data, tmp_path / "run", epochs=40, valid_fraction=0.3, patience=1, model="cnn")
    train(settings, say=lambda _: None)
    history = json.loads((tmp_path / "run" / "results.json").read_text())["history"]
    assert len(history) < 40  # noise is not learned
    train(settings.replace(epochs=45), resume=True, say=lambda _: None)
    assert len(json.loads((tmp_path / "run" / "results.json").read_text())["history"]) > len(history)


def test_a_schedule_that_depends_on_the_end_is_not_made_longer(data, tmp_path):
    settings = small(data, tmp_path / "run", lr_schedule="one-cycle")
    train(settings, say=lambda _: None)
    with pytest.raises(SettingsError, match=r"^epochs must"):
        train(settings.replace(epochs=9), resume=True, say=lambda _: None)


@pytest.mark.parametrize(
    ("model", "option", "value"),
    [
        ("pstn", "--transform", "twirl"),
        ("pstn", "--batch-size", 999),
        ("pstn", "--size", 4),
        ("cnn", "--kl-weight", "auto"),
    ],
)
def test_a_run_that_is_there_hides_no_other_mistake(run, shapes, model, option, value):
    found = run_command("train", shapes, *ONE, "--model", model, "--out", run, option, value)
    assert found.exit_code == 2
    assert "holds a run already" not in found.output
    fails("train", shapes, *ONE, "--out", run, says="holds a run already")


def test_a_broken_file_is_named_and_skipped_on_request(run, shapes, tmp_path):
    broken = shapes / "ellipse" / "broken.png"
    broken.write_bytes((shapes / "ellipse" / "0.png").read_bytes()[:60])
    (shapes / "ellipse" / "text.jpg").write_text("no image")
    for command in (("train", shapes, *ONE, "--out", tmp_path / "b"), ("data", "show", shapes), ("evaluate", run)):
        fails(*command, says="--skip-broken")
        options = ("--out", tmp_path / "sheet.png") if command[0] == "data" else ()
        found = succeeds(*command, *options, "--skip-broken")
        assert "broken.png" in found.stderr
        assert "text.jpg" in found.stderr
    with pytest.warns(DataWarning, match="2 broken"):
        assert len(from_folder(shapes, test=0.0, skip_broken=True).train) == 20
    for image in (shapes / "ellipse").glob("?.png"):
        image.unlink()
    with pytest.raises(DataError, match="without an image"):
        from_folder(shapes, skip_broken=True)


def test_photos_of_formats_that_are_not_read_are_counted(run, shapes, tmp_path):
    for name in ("1.HEIC", "2.heic", "raw/3.dng"):
        path = shapes / "ellipse" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"photo")
    said = "3 file(s) of formats that are not read (.dng, .heic) skipped: convert them to JPEG or PNG"
    for command in (
        ("train", shapes, *ONE, "--out", tmp_path / "b"),
        ("data", "show", shapes, "--out", tmp_path / "s"),
    ):
        found = succeeds(*command)
        assert found.stderr.count(said) == 1
    (shapes / "third").mkdir()
    (shapes / "third" / "4.avif").write_bytes(b"photo")
    alone = r"third.* holds no images .*1 file\(s\) of formats that are not read"
    with pytest.warns(DataWarning, match="4 file"), pytest.raises(DataError, match=alone):
        from_folder(shapes)


def test_the_skipped_file_is_remembered_by_the_run(shapes, tmp_path):
    (shapes / "ellipse" / "broken.png").write_text("no image")
    succeeds("train", shapes, *ONE, "--out", tmp_path / "b", "--skip-broken")
    succeeds("evaluate", tmp_path / "b")


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (("train", "digit"), "digits"),
        (("train", "shape"), "shapes"),
        (("train", "shapes", "--transform", "similarty"), "similarity"),
        (("train", "shapes", "--model", "ptsn"), "pstn"),
        (("train", "shapes", "--augment", "rotatoin"), "rotation"),
        (("train", "shapes", "--epoch", 3), "--epochs"),
        (("trian", "shapes"), "train"),
        (("data", "get", "mnits"), "mnist"),
        (("data", "show", "shapes", "--part", "tset"), "test"),
        (("evaluate", "./rnu"), "rnu2"),
    ],
)
def test_a_mistyped_name_is_answered_with_the_one_that_was_meant(shapes, monkeypatch, arguments, meant):
    monkeypatch.chdir(shapes.parent)
    (shapes.parent / "rnu2").mkdir()
    found = run_command(*arguments)
    assert found.exit_code == 2
    _, suggested = re.split("did you mean|possible options", found.output.lower())
    assert meant in suggested


def test_a_mistyped_class_is_answered_with_the_one_that_was_meant(run, shapes):
    (shapes / "ellipse").rename(shapes / "elipse")
    found = fails("evaluate", run, shapes, says="'elipse'")
    assert found.output.endswith("did you mean 'ellipse'?\n")
    with pytest.raises(ValueError, match=r"unknown label 'elipse'.*did you mean 'ellipse'"):
        encode_labels(["elipse"], ("ellipse", "rectangle"))


def test_a_model_that_is_at_chance_after_a_few_steps_is_not_offered_for_use(photos, tmp_path):
    for number, path in enumerate(sorted(photos.glob("*/*.png"))):  # noise, which tells nothing of the class
        save(path, np.random.default_rng(number).integers(0, 256, (20, 20, 3)).astype(np.uint8))
    options = ("--models", 2, "--epochs", 1, "--model", "cnn", "--patience", 0, "--lr", 1e-6)
    found = succeeds("train", photos, *options, "--out", tmp_path / "run")
    assert "Use it" not in found.stdout
    assert "model 1 is at chance after" in found.stderr
    assert "model 1 is at chance" in json.loads((tmp_path / "run" / "results.json").read_text())["problems"][-1]


def test_a_file_that_is_not_there_is_named_as_such(run, shapes):
    shapes = shapes.rename(shapes.with_name("s" * 100))  # the suggestion does not depend on the length of the path
    found = fails(
        "predict",
        run,
        shapes / "elipse",
        shapes / "ellipse" / "0.png",
        says="elipse: there is no such file or folder; did you mean 'ellipse'?",
    )
    assert "1 were answered" in found.stderr


def test_json_and_csv_hold_the_same_answers(shapes, tmp_path):
    options = ("--epochs", 1, "--batch-size", 4, "--out", tmp_path / "run")
    succeeds("train", shapes, *options)
    rows = list(csv.DictReader(io.StringIO(run_command("predict", tmp_path / "run", shapes).stdout)))
    answers = [
        json.loads(line) for line in run_command("predict", tmp_path / "run", shapes, "--json").stdout.split("\n")[:-1]
    ]
    assert len(rows) == len(answers) == 20
    for row, answer in zip(rows, answers, strict=True):
        for name in ("input", "label", "probability", "entropy", "mutual_information"):
            assert row[name] == str(answer[name])
        assert {name: float(row[f"p({name})"]) for name in answer["probabilities"]} == answer["probabilities"]
        corners = [[float(row[f"{axis}{i}"]) for axis in "xy"] for i in range(1, 5)]
        assert corners == answer["box"]


@pytest.mark.parametrize("augment", ["rotation", "placement"])
def test_the_change_of_the_images_is_remembered_by_evaluate(shapes, tmp_path, augment):
    options = ("--augment", augment, "--out", tmp_path / "run", "--batch-size", 4, "--epochs", 1, "--model", "cnn")
    succeeds("train", shapes, *options)
    own = evaluate_run(tmp_path / "run")
    assert evaluate_run(tmp_path / "run" / "model-0") == own
    model = pstn.from_pretrained(tmp_path / "run")
    others = shapes.rename(tmp_path / "others")
    everything = load(str(others), size="auto", test=0.0).train.as_float(model.about.mean, model.about.std)
    changed = generate(everything, _RANDOM_TRANSFORMS[augment], seed=0).all()
    found = evaluate_run(tmp_path / "run", str(others))
    assert (found.examples, found.part) == (20, "all")
    assert found.scores["nll"] == pytest.approx([pstn.evaluate(model, changed).nll])
    assert found.scores["nll"] != pytest.approx(own.scores["nll"])


def test_runs_never_land_in_the_folder_of_the_data(shapes, monkeypatch):
    fails("train", shapes, *ONE, "--out", shapes / "runs" / "a", says="out must lie outside")
    monkeypatch.chdir(shapes)
    assert TrainSettings(data=".", model="cnn").folder == shapes.parent / "runs" / "shapes-cnn"
    monkeypatch.chdir(next(path for path in shapes.iterdir() if path.is_dir()))
    assert TrainSettings(data="..", model="cnn").folder == shapes.parent / "runs" / "shapes-cnn"
    monkeypatch.chdir(shapes)
    succeeds("train", ".", *ONE)
    assert sorted(path.name for path in shapes.iterdir()) == ["ellipse", "rectangle"]
    assert pstn.from_pretrained(shapes.parent / "runs" / "shapes-cnn").about.classes == ("ellipse", "rectangle")


# Defaults


def save(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """Two classes of noise in colour, dark and bright, of two sizes: nothing at their borders is a background."""
    monkeypatch.setattr("pstn.training.runs.run.default_pretrained", lambda: None)
    generator = np.random.default_rng(0)
    for number in range(80):
        pixels = generator.integers(0, 120, (20, 24 + number % 2, 3)) + 100 * (number % 2)
        save(tmp_path / "photos" / "ab"[number % 2] / f"{number}.png", pixels.astype(np.uint8))
    return tmp_path / "photos"


def test_photos_have_their_own_mean_and_spread_and_repeat_their_border(photos):
    settings = TrainSettings(data=str(photos))
    source = prepare(settings)
    pixels = from_folder(photos, size="auto").train.x.double() / 255
    np.testing.assert_allclose(source.mean, pixels.mean((0, 2, 3)), atol=1e-6)
    np.testing.assert_allclose(source.std, pixels.std((0, 2, 3), correction=0), atol=1e-6)
    np.testing.assert_allclose(source.x.mean((0, 2, 3)), 0, atol=1e-5)
    layer = make_run_model(settings, source, 0).layer
    assert (source.fill, layer.padding_mode) == (None, "border")
    filled = make_run_model(settings, prepare(settings.replace(padding="fill", fill=0.2)), 0).layer
    assert filled.padding_mode == "zeros"
    expected = [(0.2 - mean) / std for mean, std in zip(source.mean, source.std, strict=True)]
    np.testing.assert_allclose(filled.fill, expected, atol=1e-5)
    with pytest.raises(SettingsError, match=r"^fill must"):
        settings.replace(padding="border", fill=0.5)


@pytest.mark.parametrize("background", [0, 255])
def test_a_plain_background_is_what_lies_outside(tmp_path, background):
    for number in range(8):
        pixels = np.full((16, 16), background, np.uint8)
        pixels[4:10, 4 + number : 8 + number] = 128
        save(tmp_path / "shapes" / "ab"[number % 2] / f"{number}.png", pixels)
    source = prepare(TrainSettings(data=str(tmp_path / "shapes")))
    assert source.fill == pytest.approx((background / 255 - source.mean[0]) / source.std[0], abs=1e-5)
    assert source.x[0, 0, 0, 0].item() == pytest.approx(source.fill, abs=1e-6)
    assert prepare(TrainSettings(data=str(tmp_path / "shapes"), padding="border")).fill is None


def test_a_folder_is_augmented_lightly_in_training_alone(photos):
    source = prepare(TrainSettings(data=str(photos)))
    assert source.augment == Jitter(fill=None)
    assert prepare(TrainSettings(data=str(photos), augment="none")).augment is None
    assert prepare(TrainSettings(data="digits")).augment is None
    assert torch.equal(source.test[0], prepare(TrainSettings(data=str(photos), augment="none")).test[0])
    with pytest.raises(ValueError, match=r"^augment must"):
        prepare(TrainSettings(data="ItalyPowerDemand", augment="light"))


@pytest.mark.parametrize(
    ("names", "flip", "mirrored"),
    [(("cat", "dog"), None, True), (("turn-left", "turn_right"), None, False), (("x", "y"), None, False),
     (("cat", "dog"), False, False), (("x", "y"), True, True)],
)  # fmt: skip
def test_photos_are_mirrored_where_that_makes_sense(photos, names, flip, mirrored):
    for old, new in zip("ab", names, strict=True):
        (photos / old).rename(photos / new)
    source = prepare(TrainSettings(data=str(photos), augment="standard", flip=flip))
    assert source.augment.flip is mirrored


def test_a_jitter_turns_scales_shifts_mirrors_and_colours():
    x, half = torch.rand(2, 3, 9, 9, generator=torch.Generator().manual_seed(0)), torch.full((2, 7), 0.5)
    torch.testing.assert_close(Jitter()(x, half), x)
    mirrored = torch.cat([half[:, :6], torch.tensor([[0.0], [0.9]])], 1)
    found = Jitter(flip=True)(x, mirrored)
    torch.testing.assert_close(found, torch.stack([x[0].flip(-1), x[1]]))
    shifted = half.clone()
    shifted[:, 2] = 1.0  # by 0.1 of half the width: 4.5 pixels times 2 / 9 are one
    torch.testing.assert_close(Jitter(shift=2 / 9, fill=7.0)(x, shifted)[..., :-1], x[..., 1:])
    assert (Jitter(shift=2 / 9, fill=7.0)(x, shifted)[..., -1] == 7).all()
    torch.testing.assert_close(Jitter(shift=2 / 9)(x, shifted)[..., -1], x[..., -1])
    coloured = half.clone()
    coloured[:, 4:6] = torch.tensor([1.0, 0.0])
    torch.testing.assert_close(Jitter(colour=0.2)(x, coloured), x * np.exp(-0.2) + 0.2)


def test_models_of_a_folder_stop_early_on_a_part_of_it(photos):
    settings = TrainSettings(data=str(photos), model="cnn", epochs=50)
    with make_population(settings, prepare(settings)) as population:
        [member] = population.members
        assert (len(member.train), len(member.valid)) == (54, 10)  # of 64, as 16 are to test on
        assert (population.recipe.patience, population.recipe.validate_every) == (10, 1)
    for off in ({"patience": 0}, {"valid_fraction": 0.0}):
        with make_population(settings.replace(**off), prepare(settings)) as population:
            assert population.recipe.patience is None
    known = TrainSettings(train_size=20)
    with make_population(known, prepare(known)) as population:
        assert population.recipe.patience is None


def test_validation_examples_are_as_they_are_in_use(photos):
    settings = TrainSettings(data=str(photos), model="cnn", augment="standard")
    source = prepare(settings)
    with make_population(settings, source) as population:
        valid = population.members[0].valid
        whole = population.evaluate(source.x[valid], source.y[valid])
        assert population.evaluate_members()["nll"] == pytest.approx(whole["nll"], rel=1e-5)


def test_balanced_classes_count_the_same(photos):
    for image in sorted((photos / "a").iterdir())[:20]:
        image.unlink()
    settings = TrainSettings(data=str(photos), class_weights="balanced", model="cnn")
    source = prepare(settings)
    with make_population(settings, source) as population:
        weights = population.stacks[0].constants.data["weights"]
    totals = [float(weights[source.y == k].sum()) for k in (0, 1)]
    assert totals == pytest.approx([len(source.x) / 2] * 2)


def test_the_network_is_chosen_by_the_size_of_the_images(photos):
    wanted = [TrainSettings(data=str(photos), size=side, backbone="small") for side in (24, 64)]
    models = [make_run_model(settings, prepare(settings), 0) for settings in wanted]
    depths = [len(model.classifier.filters) for model in models]
    assert depths == [2, 3]
    paper = TrainSettings(data=str(photos), size=64, backbone="paper")
    assert len(make_run_model(paper, prepare(paper), 0).classifier.filters) == 2
    with pytest.raises(ValueError, match=r"^backbone must .*did you mean 'small'"):
        prepare(TrainSettings(data=str(photos), backbone="smal"))


def test_one_class_in_colour_among_grey_ones_is_seen(tmp_path, monkeypatch):
    monkeypatch.setattr("pstn.training.runs.run.default_pretrained", lambda: "wide")
    monkeypatch.setattr("pstn.training.runs.run.find_pretrained", lambda name: Pretrained(name, torch.nn.Flatten))
    pixels = np.random.default_rng(0).integers(0, 256, (62, 20, 20, 3)).astype(np.uint8)
    for number, image in enumerate(pixels[:60]):
        save(tmp_path / "photos" / "ab"[number % 2] / f"{number}.png", image[..., 0])
    assert prepare(TrainSettings(data=str(tmp_path / "photos"))).backbone == "small"
    for number in (60, 61):
        save(tmp_path / "photos" / "c" / f"{number}.png", pixels[number])
    assert prepare(TrainSettings(data=str(tmp_path / "photos"))).backbone == "wide"
