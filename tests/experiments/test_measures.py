"""What is measured, against figures worked out by hand or another way."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from scipy import stats

import pstn
from pstn._checks import NotFiniteError
from pstn.data import RandomPlacement, RandomRotation, Split, generate, load
from pstn.experiments import (  # isort: split
    EXPERIMENTS,
    ModelUnderTest,
    ablations,
    calibration,
    finding,
    little_data,
    placed_fashion,
    reproduce,
    rotated_12k,
    rotated_mnist,
    runner,
    time_series,
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


def test_evaluations_of_a_trained_model_record_its_weights(tmp_path, monkeypatch):
    monkeypatch.setattr(ablations, "TEST_SAMPLES", (1, 10))
    reproduce([EXPERIMENTS["ablations"]], quiet(tmp_path), cells=["*posterior=per-input-*", "*test-samples-[01]"])
    weights = {(r.variant, r.seed): r.settings["weights"] for r in read_results(tmp_path / "quick")}
    again, first = ([weights[variant, seed] for seed in (0, 1)] for variant in ("test-samples", "posterior=per-input"))
    assert again == first
    assert len(weights) == 4
    assert len(set(weights.values())) == 2


def test_a_student_is_scored_beside_its_teacher(tmp_path):
    cells = ["mnist100-student-0", "*defaults-student-without-further-images-0", "*defaults-sobol-s=4-0"]
    reproduce([EXPERIMENTS["prediction-cost"]], quiet(tmp_path), cells=cells)
    sampled, found, alone = sorted(read_results(tmp_path / "quick"), key=lambda r: r.model)
    kept = (found.metrics["nll"] - found.metrics["nll_1"]) / (found.metrics["nll_10"] - found.metrics["nll_1"])
    assert found.metrics["kept_nll"] == pytest.approx(kept)
    assert found.metrics["nll_1"] != found.metrics["nll_10"]
    assert (found.settings["inputs"], alone.settings["inputs"]) == (50, 100)
    assert sampled.settings == {"sampling": "sobol", "samples": 4}
    model = little_data.fitted(quiet(tmp_path), 0)
    assert (model.layer.posterior, model.train_samples) == (pstn.StudentT(), 4)
    assert runner.scores_of(model, load("digits").test.take(range(50)), samples=1)["nll"] == alone.metrics["nll_1"]


def test_rotated_digits_are_tested_on_50_000_images(tmp_path):
    def part(count):
        return Split(torch.rand(count, 1, 2, 2), torch.zeros(count, dtype=torch.int64), tuple("0123456789"))

    parts = part(50_000), part(10_000), part(10_000)
    task = rotated_12k.task(runner.RunContext(tmp_path, cache={("mnist", ("normalise", False)): parts}))
    assert (len(task.x), len(task.test)) == (12_000, 50_000)


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


def test_the_width_of_a_region_is_that_of_a_cube_of_its_volume():
    scale = torch.tensor([[0.1, 0.2, 0.3, 0.4], [1.0, 1.0, 1.0, 2.0]])
    one, four = pstn.NormalPosterior(torch.zeros(2, 1), scale[:, :1]), pstn.NormalPosterior(torch.zeros(2, 4), scale)
    torch.testing.assert_close(
        finding.region_width(one, 0.9), 2 * stats.norm.ppf(0.95) * scale[:, 0], rtol=0.02, atol=0
    )
    # An ellipsoid, with the squared radius that a chi-squared variable of four degrees of freedom stays below.
    volume = math.pi**2 / 2 * stats.chi2.ppf(0.9, 4) ** 2 * scale.prod(-1)
    torch.testing.assert_close(finding.region_width(four, 0.9), (volume**0.25).float(), rtol=0.02, atol=0)
    # Two narrow modes count twice; all angles alike fill 90% of the circle.
    parts = pstn.NormalPosterior(torch.tensor([[[-1.0], [1.0]]]), torch.full((1, 2, 1), 0.1))
    two = pstn.MixturePosterior(torch.full((1, 2), 0.5).log(), parts)
    assert float(finding.region_width(two, 0.9)) == pytest.approx(4 * stats.norm.ppf(0.95) * 0.1, rel=0.02)
    uniform = pstn.NormalPosterior(torch.zeros(1, 1), torch.full((1, 1), 20.0), circular=(True,))
    assert float(finding.region_width(uniform, 0.9)) == pytest.approx(0.9 * 2 * math.pi, rel=0.02)


def test_the_cost_of_a_prediction_counts_every_pass():
    x, predictors = torch.rand(4, 1, 28, 28), finding._predictors(torch.device("cpu"))
    with torch.no_grad():
        found = {name: finding.prediction_cost(predict, x)[0] for name, predict in predictors.items()}
    # Two convolutions of 5 by 5, of 12 and of 24 filters on 24 by 24 and 8 by 8 places, and two linear layers.
    alone = 24 * 24 * 25 * 12 + 8 * 8 * 25 * 12 * 24 + 384 * 52 + 52 * 10
    assert found[finding.ALONE] == found[finding.ANEW] == alone
    assert found[finding.FIXED] == finding.ANGLES * alone
    localizer = found["taught, 4 modes"] - 10 * alone
    assert found["taught, 4 modes, at the modes"] == localizer + 4 * alone
    assert found["taught, 1 mode, at the modes"] == pytest.approx(localizer + alone, rel=0.01)
    assert found[finding.CANONICAL] == pytest.approx(localizer + alone, rel=0.01)


def test_a_window_that_is_two_pixels_off_has_a_position_error_of_two_pixels():
    truth = RandomPlacement().draw(10, generator=torch.Generator().manual_seed(0))
    theta = pstn.Similarity().inverse(truth)
    theta[:, 2] += 2 * 2 / 96
    metrics, _ = placed_fashion._localisation(result_of("STN", theta=theta, truth=truth))
    assert metrics["position_error"] == pytest.approx(2.0, rel=1e-4)
    assert metrics["scale_error"] == pytest.approx(0.0, abs=1e-6)


def test_a_perfect_window_and_the_mean_window_are_scored_without_sampling(tmp_path):
    # The window of the layer is the whole canvas wherever the image is: the true window shows the image itself.
    base = digits(30)
    test = pstn.data.generate(base, RandomPlacement(), seed=0)
    classifier = pstn.nn.mnist_cnn().eval()
    layer = placed_fashion.make_layer(probabilistic=True, start=1.0)
    model = pstn.PSTN(layer, classifier, test_samples=10).eval()
    task = runner.Task(base.x, base.y, test, "placed")
    tested = runner.ModelUnderTest(quiet(tmp_path), task, model, None, None)
    metrics, _ = placed_fashion._at_the_mean(tested)
    whole = pstn.warp(test.all().x, pstn.Similarity().grid(pstn.Similarity().initial().expand(30, 4), (28, 28)))
    for name, x in (("perfect_accuracy", base.x), ("mean_accuracy", whole)):
        assert metrics[name] == pytest.approx(float((classifier(x).argmax(1) == base.y).float().mean()))


def test_scores_are_those_of_the_library():
    model, test = pstn.nn.mnist_cnn().eval(), digits()
    found = runner.predict(model, test, batch=7)
    with torch.no_grad():
        log_probs = model(test.x).log_softmax(-1)
    torch.testing.assert_close(found.log_probs, log_probs)
    wanted = {
        "accuracy": float((log_probs.argmax(1) == test.y).float().mean()),
        "nll": float(torch.nn.functional.nll_loss(log_probs, test.y)),
        **{n: float(pstn.calibration_error(log_probs.exp(), test.y, bins=b)) for n, b in (("ece", 15), ("ece10", 10))},
    }
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


def test_losses_along_a_grid_are_the_classifiers_own_and_a_shift_out_of_sight_leaves_the_fill():
    classifier, test = pstn.nn.mnist_cnn().eval(), digits(3)
    theta = torch.tensor([[0.0, 1.0, 0.0, 0.0], [0.0, 1.0, 3.0, 0.0]]).expand(3, 2, 4)
    with torch.no_grad():
        found = losses_along(classifier, test.x, test.y, theta, fill=-0.4)
        for loss, x in zip(found.T, (test.x, torch.full_like(test.x, -0.4)), strict=True):
            wanted = torch.nn.functional.cross_entropy(classifier(x), test.y, reduction="none")
            torch.testing.assert_close(loss, wanted, atol=1e-5, rtol=1e-5)


def test_a_temperature_is_found_on_images_that_the_model_was_not_trained_on(tmp_path, monkeypatch):
    context, asked = quiet(tmp_path), []
    (group,) = [g for g in calibration.CALIBRATION.groups if (g.model, g.data) == ("CNN", calibration.DATA)]
    train, held_out, _ = context.data("mnist", normalise=True)
    # As the authors' folds count: position 1 of the validation part is an image that was trained on.
    task = replace(group.task(context), train=lambda seed: torch.tensor([3, len(train) + 1]))

    def predict(model, test, *, seed):
        asked.append(test)
        return wrong

    monkeypatch.setattr(runner, "predict", predict)
    sure = torch.tensor([[0.99, 0.01], [0.99, 0.01]]).log()
    wrong = runner.Predictions(sure, torch.tensor([0, 1]))
    tested = runner.ModelUnderTest(context, task, pstn.nn.mnist_cnn(), wrong, Result("calibration", "CNN", "", 0))
    metrics, figure = calibration.measure(tested)
    torch.testing.assert_close(asked[0].x[:2], held_out.x[[0, 2]])
    scaled = (sure / metrics["temperature"]).log_softmax(-1)
    assert metrics["scaled_nll"] == pytest.approx(float(-scaled.diagonal().mean()), rel=1e-5)
    assert sum(figure["reliability"]["count"]) == 2


def test_noise_in_some_parameters_alone_displaces_some_times_more():
    layer, start = time_series.make_model("P-STN", 14, 131).layer, torch.full((1, 9), 0.0067)
    even = time_series.displacement(layer, pstn.Posterior(torch.zeros(1, 9), start), 131)
    beta = torch.cat([start, 4 * start, torch.where(torch.arange(9) < 6, 1.0, 4.0) * start])
    relative = (
        time_series.displacement(layer, pstn.Posterior(torch.zeros(3, 9), beta), 131)[:, 13:-13] / even[:, 13:-13]
    )
    torch.testing.assert_close(relative[0], torch.ones(105))
    # Displacements this small grow with the scale, the root of beta.
    torch.testing.assert_close(relative[1], torch.full((105,), 2.0), rtol=0.1, atol=0)
    assert relative[2, :10].max() < 1.2
    assert relative[2, -20:].min() > 1.8


@pytest.mark.parametrize(("factor", "uneven"), [(1.0, False), (2.0, True)])
def test_noise_is_uneven_in_time_only_if_it_differs_between_parameters(factor, uneven):
    torch.manual_seed(0)
    layer, start = time_series.make_model("P-STN", 14, 131).layer, torch.full((1, 9), 0.0067)
    beta = torch.where(torch.arange(9) < 6, 1.0, factor) * start
    even = time_series.displacement(layer, pstn.Posterior(torch.zeros(1, 9), start), 131)
    profiles = []
    for _ in range(5):  # modes that scatter make any one profile uneven
        learned = pstn.Posterior(0.3 * torch.randn(40, 9), beta.expand(40, 9))
        profiles.append((time_series.displacement(layer, learned, 131) / even).mean(0).tolist())
    by_run = time_series.fifths(torch.tensor(profiles))
    assert (by_run.amax(1) / by_run.amin(1)).min() > 1.01
    assert (time_series.uneven(profiles) < 0.05) == uneven


def test_the_fixed_augmentation_has_the_stated_size_and_nothing_to_learn():
    layer = make_fixed().get_submodule("layer")
    assert not any(p.requires_grad for p in layer.parameters())
    theta = layer(torch.zeros(4000, 1, 28, 28), samples=1).theta[0]
    torch.testing.assert_close(theta.mean(0), pstn.Similarity().identity(), atol=0.02, rtol=0)
    torch.testing.assert_close(theta.std(0), torch.tensor(FIXED), rtol=0.05, atol=0)
