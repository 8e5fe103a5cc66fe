"""What is measured, against figures worked out by hand or another way."""

from __future__ import annotations

import math

import pytest
import torch

import pstn
from pstn._checks import NotFiniteError
from pstn.data import RandomPlacement, RandomRotation, generate, load
from pstn.experiments import EXPERIMENTS, placed_fashion, reproduce, rotated_mnist
from pstn.experiments.ablations import FIXED, make_fixed
from pstn.experiments.failure_mode import make_classifier
from pstn.experiments.loss_landscape import _from_the_top, count_minima, losses_along
from pstn.experiments.runner import Answers, Probe, Task, classify, predict, reliability
from pstn.report.results import Result, read_results
from small_experiment import quiet


def answers(**parts):
    blank = {"log_probs": torch.zeros(1, 1), "y": torch.zeros(1, dtype=torch.long), "loc": None, "beta": None}
    return Answers(**{**blank, "truth": None, **parts})


def digits(count=40):
    return load("digits", normalise=False).test.take(range(count))


def test_who_tests_a_model_again_says_which_it_was(tmp_path):
    wanted = ["*posterior=per-input-*", "*test-samples-[01]"]
    reproduce([EXPERIMENTS["ablations"]], quiet(tmp_path), cells=wanted)
    told = {(r.variant, r.seed): r.settings["weights"] for r in read_results(tmp_path / "quick")}
    assert len(told) == 4
    for seed in (0, 1):
        assert told["test-samples", seed] == told["posterior=per-input", seed]
    assert told["test-samples", 0] != told["test-samples", 1]


def test_a_rotation_that_is_undone_has_no_error():
    test = generate(digits(), RandomRotation(), seed=0)
    angle = test.all().theta[:, 0]
    mod_pi, wrapped = rotated_mnist.undo_errors(-angle, angle)
    assert float(mod_pi.max()) < 1e-6
    assert float(wrapped.max()) < 1e-6


def test_an_upside_down_digit_is_an_error_of_pi_on_the_circle_and_none_mod_pi():
    mod_pi, wrapped = rotated_mnist.undo_errors(torch.tensor([math.pi - 0.5]), torch.tensor([0.5]))
    assert min(float(mod_pi), math.pi - float(mod_pi)) < 1e-6
    assert float(wrapped) == pytest.approx(math.pi)
    # One turn too far is no error at all.
    assert float(rotated_mnist.undo_errors(torch.tensor([2 * math.pi - 0.5]), torch.tensor([0.5]))[1]) < 1e-6


def test_the_variance_of_the_worse_half_is_compared_with_that_of_the_better():
    error = torch.tensor([0.0, 0.1, 0.2, 1.0, 1.1, 1.2])
    beta = torch.tensor([1.0, 1.0, 1.0, 1.2, 1.2, 1.2])[:, None]
    found = answers(loc=error[:, None], beta=beta, truth=torch.zeros(6, 1))
    cell = Result("rotated-mnist", "P-STN", "rotated", 1)
    metrics, _ = rotated_mnist.localisation(Probe(None, None, None, found, cell))
    assert metrics["larger_variance"] == pytest.approx(0.2)
    assert metrics["error_mod_pi"] == pytest.approx(0.6)


def test_a_window_that_is_two_pixels_off_has_a_position_error_of_two_pixels():
    truth = RandomPlacement().draw(10, generator=torch.Generator().manual_seed(0))
    found = pstn.Similarity().inverse(truth)
    found[:, 2] += 2 * 2 / 96
    cell = Result("placed-fashion", "STN", "placed", 1)
    metrics, _ = placed_fashion._localisation(Probe(None, None, None, answers(loc=found, truth=truth), cell))
    assert metrics["position_error"] == pytest.approx(2.0, rel=1e-4)
    assert metrics["scale_error"] == pytest.approx(0.0, abs=1e-6)


def test_corners_of_the_true_window_are_the_corners_of_the_pasted_image():
    # A corner at pixel k: the window runs from k - 0.5 to k + 27.5 where whole numbers are pixel centres.
    test = generate(digits(6), RandomPlacement(), seed=0)
    batch = test.all()
    corners = pstn.to_pixels(pstn.Similarity().corners(pstn.Similarity().inverse(batch.theta)), (96, 96))
    for canvas, box in zip(batch.x[:, 0], corners, strict=True):
        rows, columns = torch.nonzero(canvas > 0).unbind(1)
        assert box[:, 0].min() - 0.5 <= columns.min()
        assert columns.max() <= box[:, 0].max() + 0.5
        assert box[:, 1].min() - 0.5 <= rows.min()
        assert rows.max() <= box[:, 1].max() + 0.5
        assert float(box[:, 0].max() - box[:, 0].min()) == pytest.approx(28, rel=1e-4)


def test_scores_are_those_of_the_library():
    model, test = pstn.nn.mnist_cnn().eval(), digits()
    found = predict(model, test, batch=7)
    with torch.no_grad():
        log_probs = model(test.x).log_softmax(-1)
    torch.testing.assert_close(found.log_probs, log_probs)
    scores = classify(found)
    assert scores["ece"] == pytest.approx(float(pstn.calibration_error(log_probs.exp(), test.y, bins=15)), abs=1e-6)
    assert scores["ece10"] == pytest.approx(float(pstn.calibration_error(log_probs.exp(), test.y, bins=10)), abs=1e-6)
    curve = reliability(found)
    assert sum(curve["count"]) == len(test)
    assert [c is None for c in curve["confidence"]] == [n == 0 for n in curve["count"]]


def test_predictions_repeat_with_the_seed_and_leave_the_model_as_it_was():
    model, test = pstn.nn.mnist_pstn().train(), digits(10)
    first, again = predict(model, test, seed=3), predict(model, test, seed=3)
    assert torch.equal(first.log_probs, again.log_probs)
    assert not torch.equal(first.log_probs, predict(model, test, seed=4).log_probs)
    assert model.training


@pytest.mark.parametrize("sampling", ["iid", "sobol"])
def test_an_example_has_the_same_noise_however_the_test_set_is_cut(sampling):
    model, test = pstn.nn.mnist_pstn(), digits(25)
    model.layer.sampling = sampling
    whole = predict(model, test, seed=3, batch=25).log_probs
    for batch in (10, 7, 1):
        torch.testing.assert_close(predict(model, test, seed=3, batch=batch).log_probs, whole)


def test_a_model_whose_answers_are_not_finite_has_no_scores():
    model = pstn.nn.mnist_cnn()
    with torch.no_grad():
        list(model.parameters())[-1].fill_(math.nan)
    with pytest.raises(NotFiniteError, match="log_probs must be finite"):
        predict(model, digits(4))


@pytest.mark.parametrize(
    ("curve", "count"),
    [
        ([3.0, 2.0, 1.0, 2.0, 3.0], 1),
        ([3.0, 1.0, 2.0, 1.5, 3.0], 2),
        ([1.0, 2.0, 3.0], 1),
        ([1.0, 1.001, 1.0, 1.001, 2.0], 1),
        ([1.0, 3.0, 1.0, 3.0, 1.0], 3),
    ],
)
def test_minima_are_counted_if_they_are_deep_enough(curve, count):
    assert count_minima(curve) == count


def test_a_valley_across_the_seam_of_the_circle_counts_once():
    angle = torch.linspace(-math.pi, math.pi, 61)
    assert count_minima(_from_the_top(angle.cos().tolist())) == 1
    assert count_minima(_from_the_top((2 * angle).cos().tolist())) == 2


def test_losses_along_a_grid_are_the_classifiers_own():
    classifier, test = pstn.nn.mnist_cnn().eval(), digits(3)
    theta = torch.tensor([[0.0, 1.0, 0.0, 0.0], [0.4, 1.0, 0.1, 0.0]]).expand(3, 2, 4)
    with torch.no_grad():
        found = losses_along(classifier, test.x, test.y, theta)
        upright = torch.nn.functional.cross_entropy(classifier(test.x), test.y, reduction="none")
    torch.testing.assert_close(found[:, 0], upright, atol=1e-5, rtol=1e-5)


def test_the_fixed_augmentation_has_the_stated_size_and_nothing_to_learn():
    model = make_fixed()
    layer = model.get_submodule("layer")
    assert not any(p.requires_grad for p in layer.parameters())
    theta = layer(torch.zeros(4000, 1, 28, 28), samples=1).theta[0]
    torch.testing.assert_close(theta.mean(0), pstn.Similarity().identity(), atol=0.02, rtol=0)
    torch.testing.assert_close(theta.std(0), torch.tensor(FIXED), rtol=0.05, atol=0)


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_classifiers_have_the_depth_they_are_named_after(depth):
    layers = [m for m in make_classifier(depth) if isinstance(m, torch.nn.Linear)]
    assert len(layers) == depth
    assert (layers[0].in_features, layers[-1].out_features) == (784, 10)


def test_a_task_without_subsets_trains_on_everything():
    test = digits(4)
    assert Task(test.x, test.y, test, "digits").train(3) is None
