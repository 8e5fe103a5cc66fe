"""`--policy pad`: models of the command line leave out what stands behind the ends of series."""

import json

import numpy as np
import pytest
import torch

import pstn
from pstn.app import as_set
from pstn.data.series import Wanted, read_rows
from pstn.io import from_pretrained
from pstn.nn import Masked, ModelMetadata
from pstn.nn.metadata import with_mask, without_mask
from pstn.predict import predict_files
from pstn.training.runs.run import Parts, evaluate_run, prepare
from pstn.training.runs.settings import TrainSettings, read_settings
from small_runs import fails, run_command, succeeds

LENGTHS = [14 + k % 5 for k in range(24)]


def table(path, lengths, seed=0):
    """Rows of series, whose class is the sign of their slope."""
    rng = np.random.default_rng(seed)
    rows = [
        [("down", "up")[k % 2], *np.linspace(0, 2 * (k % 2) - 1, n) + rng.normal(0, 0.2, n)]
        for k, n in enumerate(lengths)
    ]
    path.write_text("\n".join(",".join(map(str, row)) for row in rows) + "\n")
    return path


@pytest.fixture(scope="module")
def padded(tmp_path_factory):
    """A P-STN and a CNN, each trained on series of 14 to 18 steps."""
    folder = tmp_path_factory.mktemp("padded")
    data = table(folder / "own.csv", LENGTHS)
    runs = {}
    for kind in ("pstn", "cnn"):
        options = ("--policy", "pad", "--epochs", 1, "--batch-size", 4, "--model", kind, "--json")
        done = succeeds("train", data, "--out", folder / kind, *options)
        runs[kind] = folder / kind, json.loads(done.stdout)
    return data, runs


@pytest.mark.parametrize("kind", ["pstn", "cnn"])
def test_warp_localizer_and_classifier_take_the_mask(padded, kind):
    model = from_pretrained(padded[1][kind][0] / "model-0")
    assert model.about.masked
    assert (model.about.channels, model.about.size, model.about.policy) == (1, (18,), "pad")
    if kind == "pstn":
        assert model.layer.masked
        assert isinstance(model.layer.localizer, Masked)
    assert isinstance(model.classifier if kind == "pstn" else model, Masked)


@pytest.mark.parametrize("kind", ["pstn", "cnn"])
def test_the_test_part_follows(padded, kind, tmp_path):
    run, trained = padded[1][kind]
    assert evaluate_run(run)[0] == trained["scores"]
    other = table(tmp_path / "other.csv", [9, 13, 18, 11], seed=1)
    assert evaluate_run(run, str(other)).examples == 4
    fails("evaluate", run, table(tmp_path / "longer.csv", [9, 19], seed=1), says="needs 1 of length 18")
    # Series of another policy are real from end to end.
    assert evaluate_run(run, str(other), policy="resample").examples == 4


def test_rows_that_came_to_the_table_since_keep_their_masks(tmp_path):
    data, run = table(tmp_path / "own.csv", LENGTHS), tmp_path / "run"
    options = ("--policy", "pad", "--epochs", 1, "--batch-size", 4, "--model", "cnn", "--out", run)
    succeeds("train", data, *options)
    before = json.loads(run_command("evaluate", run, "--json").stdout)
    with data.open("a") as file:
        file.write("up,0.5,0.6,0.7\ndown,3,2,1,0\n")
    after = json.loads(run_command("evaluate", run, "--json").stdout)
    assert (after["new"], after["examples"]) == (2, before["examples"] + 2)
    assert "policy must be pad" in run_command("evaluate", run, "--policy", "resample").output
    source = prepare(TrainSettings.from_dict(read_settings(run / "settings.yaml")), Parts.load(run))
    assert sorted(source.test[0][:, -1].sum(1).tolist())[:2] == [3, 4]


@pytest.mark.parametrize("kind", ["pstn", "cnn"])
def test_nothing_reads_what_follows_a_series(padded, kind, tmp_path):
    model = from_pretrained(padded[1][kind][0] / "model-0")
    values = [0.1, 0.4, 0.2, 0.8, 0.9, 1.0, 0.7]
    text = ",".join(map(str, values))
    (tmp_path / "one.csv").write_text(f"up,{text}\nup,{text},?,?\n")
    first, second = predict_files(model, [tmp_path / "one.csv"])
    assert first.probabilities == second.probabilities
    if kind == "cnn":  # as if the series were all that there is
        logits = model.network(torch.tensor(values).view(1, 1, -1))
        assert first.probabilities == pytest.approx(logits.softmax(-1)[0].tolist(), abs=1e-5)
    else:
        (start,), (end,) = first.box
        assert start == pytest.approx(0, abs=1e-4)  # CPAB keeps both ends
        assert end == pytest.approx(7, abs=1e-4)
        alone = torch.tensor([values, [1.0] * 7])[None]
        noise = torch.full((1, 1, model.layer.noise_width), 0.5)
        padded_out = model(torch.nn.functional.pad(alone, (0, 11)), noise=noise)
        torch.testing.assert_close(padded_out.log_probs, model(alone, noise=noise).log_probs, atol=1e-4, rtol=1e-4)


def test_gaps_are_interpolated_as_by_resampling(padded, tmp_path):
    model = from_pretrained(padded[1]["pstn"][0] / "model-0")
    (tmp_path / "gaps.csv").write_text("up,0,1,2,3,4,5\nup,0,?,2,3,,5\n")
    whole, gaps = predict_files(model, [tmp_path / "gaps.csv"])
    assert gaps.probabilities == whole.probabilities


def test_a_picture_of_what_the_model_sees(padded, tmp_path, monkeypatch):
    data, runs = padded
    ends = []
    monkeypatch.setattr("pstn.report.pictures._draw_boxes", lambda axes, boxes, *rest: ends.append(boxes[0].flatten()))
    succeeds("show", runs["pstn"][0], data, "--out", tmp_path / "seen.png")
    expected = [[-0.5, length - 0.5] for length in LENGTHS[: len(ends)]]  # CPAB leaves the ends where they are
    np.testing.assert_allclose(torch.stack(ends).numpy(), expected, atol=1e-4)


def test_what_reads_no_mask_is_refused(padded, tmp_path):
    data, runs = padded
    fails(
        "train",
        data,
        "--policy",
        "pad",
        "--teach",
        "cpab",
        "--out",
        tmp_path / "taught",
        says="policy must be refuse or resample with teach",
    )
    fails("export", runs["pstn"][0], "--mean", "--out", tmp_path / "model.onnx", says="the model must take no mask")
    with pytest.raises(ValueError, match="model must take no mask"):
        as_set(from_pretrained(runs["pstn"][0]))


def test_a_model_without_a_mask_reads_zeros_as_before(tmp_path):
    (tmp_path / "one.csv").write_text("up,1,2\nup,3,4,5\n")
    for masked, behind in ((False, [1, 2, 0]), (True, [1, 2, np.nan])):
        rows = [x[0].tolist() for _, x in read_rows(tmp_path / "one.csv", Wanted(1, 3, ("up",), "pad", masked))]
        np.testing.assert_array_equal(rows, [behind, [3, 4, 5]])
    torch.manual_seed(0)
    plain = pstn.nn.SeriesClassifier(1, 2, (4,), (3,)).eval()
    plain.about = ModelMetadata(("up", "down"), 1, (3,), policy="pad")
    (answer, _) = predict_files(plain, [tmp_path / "one.csv"])
    expected = plain(torch.tensor([[[1.0, 2.0, 0.0]]])).softmax(-1)[0]
    assert answer.probabilities == pytest.approx(expected.tolist(), abs=1e-6)


def test_preparing_makes_the_mask_and_undoing_removes_it():
    about = ModelMetadata(("a", "b"), 2, (3,), (1.0,), (2.0,), policy="pad", masked=True)
    x = torch.tensor([[[1.0, 3.0, torch.nan], [5.0, 1.0, torch.nan]]])
    assert about.prepare(x).tolist() == [[[0, 1, 0], [2, 0, 0], [1, 1, 0]]]
    torch.testing.assert_close(about.undo(about.prepare(x)), x, equal_nan=True)
    torch.testing.assert_close(without_mask(with_mask(x)), x, equal_nan=True)
    assert ModelMetadata.from_config(about.to_config()) == about
    config = about.to_config()
    del config["masked"]  # as earlier versions wrote it
    assert not ModelMetadata.from_config(config).masked
