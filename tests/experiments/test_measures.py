"""What is measured, against figures worked out by hand or another way."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

import pstn
from pstn._checks import NotFiniteError
from pstn.data import Box, Photo, RandomPlacement, RandomRotation, Sign, generate, load
from pstn.experiments import (
    EXPERIMENTS,
    ModelUnderTest,
    placed_fashion,
    reproduce,
    rotated_mnist,
    runner,
    traffic_signs,
)
from pstn.experiments.ablations import FIXED, make_fixed
from pstn.experiments.loss_landscape import count_minima, losses_along
from pstn.report.results import Result, read_results
from small_experiment import quiet


def result_of(model, **parts):
    predictions = runner.Predictions(torch.zeros(1, 1), torch.zeros(1, dtype=torch.long), **parts)
    return ModelUnderTest(None, None, None, predictions, Result("x", model, "x", 1))


def digits(count=40):
    return load("digits", normalise=False).test.take(range(count))


def test_evaluations_of_a_trained_model_record_its_weights(tmp_path):
    reproduce([EXPERIMENTS["ablations"]], quiet(tmp_path), cells=["*posterior=per-input-*", "*test-samples-[01]"])
    weights = {(r.variant, r.seed): r.settings["weights"] for r in read_results(tmp_path / "quick")}
    again, first = ([weights[variant, seed] for seed in (0, 1)] for variant in ("test-samples", "posterior=per-input"))
    assert again == first
    assert len(weights) == 4
    assert len(set(weights.values())) == 2


def test_errors_of_angles():
    angle = generate(digits(), RandomRotation(), seed=0).all().theta[:, 0]
    for error in rotated_mnist.undo_errors(-angle, angle):
        assert float(error.max()) < 1e-6
    # An upside-down digit is an error of pi on the circle, and none mod pi; one turn too far is no error at all.
    mod_pi, wrapped = rotated_mnist.undo_errors(torch.tensor([math.pi - 0.5]), torch.tensor([0.5]))
    assert min(float(mod_pi), math.pi - float(mod_pi)) < 1e-6
    assert float(wrapped) == pytest.approx(math.pi)
    assert float(rotated_mnist.undo_errors(torch.tensor([2 * math.pi - 0.5]), torch.tensor([0.5]))[1]) < 1e-6
    error, beta = torch.tensor([[0.0, 0.1, 0.2, 1.0, 1.1, 1.2], [1.0, 1.0, 1.0, 1.2, 1.2, 1.2]])[..., None]
    metrics, _ = rotated_mnist.localisation(result_of("P-STN", theta=error, beta=beta, truth=torch.zeros(6, 1)))
    assert metrics["larger_variance"] == pytest.approx(0.2)  # of the worse half over the better
    assert metrics["error_mod_pi"] == pytest.approx(0.6)


def test_a_window_that_is_two_pixels_off_has_a_position_error_of_two_pixels():
    truth = RandomPlacement().draw(10, generator=torch.Generator().manual_seed(0))
    theta = pstn.Similarity().inverse(truth)
    theta[:, 2] += 2 * 2 / 96
    metrics, _ = placed_fashion._localisation(result_of("STN", theta=theta, truth=truth))
    assert metrics["position_error"] == pytest.approx(2.0, rel=1e-4)
    assert metrics["scale_error"] == pytest.approx(0.0, abs=1e-6)


def test_a_box_is_found_again_in_its_crop():
    # The crop runs from 50 to 200 and from 40 to 190, so a box from 100 to 150 is its middle third; at the photo's edge
    # the crop ends, and the box is no longer in the middle.
    for left, wanted in ((100.0, [-1 / 3, -1 / 3, 1 / 3, 1 / 3]), (0.0, [-1.0, -1 / 3, 0.0, 1 / 3])):
        box = Box(left, 90.0, left + 50, 140.0, "stop")
        sign = Sign(Photo("street", Path("street.jpg"), 600, 400, (box,)), box)
        assert traffic_signs._box_in_crop(sign) == pytest.approx(wanted)
    others = torch.tensor([[0.0, 0.0, 2.0, 2.0], [1.0, 1.0, 3.0, 3.0], [5.0, 5.0, 6.0, 6.0]])
    torch.testing.assert_close(traffic_signs.overlap(others[:1].expand(3, 4), others), torch.tensor([1.0, 1 / 7, 0.0]))


def test_the_stand_in_of_a_quick_run_knows_where_its_digits_are(tmp_path):
    task = traffic_signs.wide(quiet(tmp_path))
    boxes = (task.test.theta + 1) * 32
    for image, (left, top, right, bottom) in zip(task.test.x[:, 0], boxes, strict=True):
        rows, columns = torch.nonzero(image > 1e-3).unbind(1)  # a warp by whole pixels rounds
        assert left <= columns.min() <= columns.max() < right
        assert top <= rows.min() <= rows.max() < bottom


def test_scores_are_those_of_the_library():
    model, test = pstn.nn.mnist_cnn().eval(), digits()
    found = runner.predict(model, test, batch=7)
    with torch.no_grad():
        log_probs = model(test.x).log_softmax(-1)
    torch.testing.assert_close(found.log_probs, log_probs)
    errors = {
        name: float(pstn.calibration_error(log_probs.exp(), test.y, bins=n)) for name, n in (("ece", 15), ("ece10", 10))
    }
    nll = float(torch.nn.functional.nll_loss(log_probs, test.y))
    wanted = {"accuracy": float((log_probs.argmax(1) == test.y).float().mean()), "nll": nll, **errors}
    assert runner.classification_scores(found) == pytest.approx(wanted, abs=1e-6)
    curve = runner.reliability(found)
    assert sum(curve["count"]) == len(test)
    assert [c is None for c in curve["confidence"]] == [n == 0 for n in curve["count"]]


@pytest.mark.parametrize("sampling", ["iid", "sobol"])
def test_noise_goes_by_the_seed_and_the_place_in_the_test_set(sampling):
    model, test = pstn.nn.mnist_pstn().train(), digits(25)
    model.layer.sampling = sampling
    whole = runner.predict(model, test, seed=3, batch=25).log_probs
    for batch in (10, 1):
        torch.testing.assert_close(runner.predict(model, test, seed=3, batch=batch).log_probs, whole)
    assert not torch.equal(whole, runner.predict(model, test, seed=4).log_probs)
    assert model.training  # it is left as it was


def test_a_model_whose_predictions_are_not_finite_has_no_scores():
    model = pstn.nn.mnist_cnn()
    with torch.no_grad():
        list(model.parameters())[-1].fill_(math.nan)
    with pytest.raises(NotFiniteError, match="log_probs"):
        runner.predict(model, digits(4))


@pytest.mark.parametrize(
    ("curve", "circular", "count"),
    [
        ([3.0, 2.0, 1.0, 2.0, 3.0], False, 1), ([3.0, 1.0, 2.0, 1.5, 3.0], False, 2), ([1.0, 2.0, 3.0], False, 1),
        ([1.0, 1.001, 1.0, 1.001, 2.0], False, 1), ([1.0, 3.0, 1.0, 3.0, 1.0], False, 3),
        # A valley across the seam of the circle counts once.
        (torch.linspace(-math.pi, math.pi, 61).cos().tolist(), True, 1),
        (torch.linspace(-2 * math.pi, 2 * math.pi, 61).cos().tolist(), True, 2),
    ],
)  # fmt: skip
def test_minima_are_counted_if_they_are_deep_enough(curve, circular, count):
    assert count_minima(curve, circular=circular) == count


def test_losses_along_a_grid_are_the_classifiers_own():
    classifier, test = pstn.nn.mnist_cnn().eval(), digits(3)
    theta = torch.tensor([[0.0, 1.0, 0.0, 0.0], [0.4, 1.0, 0.1, 0.0]]).expand(3, 2, 4)
    with torch.no_grad():
        found = losses_along(classifier, test.x, test.y, theta)
        upright = torch.nn.functional.cross_entropy(classifier(test.x), test.y, reduction="none")
    torch.testing.assert_close(found[:, 0], upright, atol=1e-5, rtol=1e-5)


def test_the_fixed_augmentation_has_the_stated_size_and_nothing_to_learn():
    layer = make_fixed().get_submodule("layer")
    assert not any(p.requires_grad for p in layer.parameters())
    theta = layer(torch.zeros(4000, 1, 28, 28), samples=1).theta[0]
    torch.testing.assert_close(theta.mean(0), pstn.Similarity().identity(), atol=0.02, rtol=0)
    torch.testing.assert_close(theta.std(0), torch.tensor(FIXED), rtol=0.05, atol=0)
