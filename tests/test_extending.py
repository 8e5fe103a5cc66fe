"""The examples of docs/extending.md, with every trainer, saved and loaded in a new process, and exported."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import pstn
from pstn.training import Population, Recipe

PAGE = Path(__file__).parents[1] / "docs" / "extending.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
POSTERIOR, OBJECTIVE, TASK = BLOCKS[0], BLOCKS[2], BLOCKS[4]

# A few steps leave a localizer where it started, which fit remarks upon.
pytestmark = pytest.mark.filterwarnings("ignore:The transformation is")


@pytest.fixture
def parts(tmp_path, monkeypatch):
    """The page's posterior and objective as a module of the user's."""
    (tmp_path / "my_parts.py").write_text(POSTERIOR + "\n\n" + OBJECTIVE)
    monkeypatch.syspath_prepend(str(tmp_path))
    import my_parts

    yield my_parts
    del sys.modules["my_parts"]


def make_model(parts):
    torch.manual_seed(0)
    localizer = pstn.nn.ConvLocalizer(1, (12, 12), filters=(2,), kernel=3)
    layer = pstn.SpatialTransformer(pstn.Similarity(), localizer, size=(12, 12), posterior=parts.Gaussian())
    return pstn.PSTN(layer, pstn.nn.ConvClassifier(1, (12, 12), classes=3, filters=(2,), hidden=4, kernel=3), 3, 4)


def data(count=24):
    return torch.rand(count, 1, 12, 12, generator=torch.Generator().manual_seed(1)), torch.arange(count) % 3


def lines(code):
    return [line for line in code.splitlines() if line.strip()]


def test_the_examples_are_as_short_as_the_page_promises_and_touch_no_private_name():
    assert len(lines(POSTERIOR)) <= 40
    assert len(lines(OBJECTIVE)) <= 10
    for code in (POSTERIOR, OBJECTIVE, TASK):
        assert not re.findall(r"\b_(?!_)\w+|\._(?!_)\w+", code.replace("_, posterior", "posterior"))


def test_the_posterior_keeps_the_invariants_of_distributions(parts):
    q = make_model(parts).layer.localize(data()[0])
    reference = torch.distributions.Normal(q.loc, q.scale)
    noise = torch.rand(5, 24, 4).clamp(0.01, 0.99)
    torch.testing.assert_close(q.rsample(noise=noise), reference.icdf(noise))
    torch.testing.assert_close(q.interval(0.8)[1], reference.icdf(torch.tensor(0.9)))
    assert q.kl().shape == (24, 4)


@pytest.mark.parametrize("objective", [False, True])
def test_posterior_and_objective_train_with_fit_and_in_a_population(parts, objective):
    x, y = data()
    loss = parts.importance_weighted if objective else None
    model = make_model(parts)
    pstn.fit(model, (x, y), epochs=2, loss=loss, kl_weight=0.1, localizer_factor=1.0)
    assert model.layer.shared.log_scale0.abs().sum() > 0
    models = [make_model(parts) for _ in range(2)]
    members = pstn.training.make_members(2, seed=0, kl_weight=0.1, localizer_factor=1.0)
    with Population(models, x, y, members, Recipe(epochs=2, batch_size=8, loss=loss), groups=1) as together:
        together.fit()
    with Population(models[:1], x, y, members[:1], Recipe(epochs=2, batch_size=8, loss=loss)) as alone:
        alone.fit()
    first, single = together.models()[0].state_dict(), alone.models()[0].state_dict()
    assert first["layer.shared.log_scale0"].abs().sum() > 0
    for name, tensor in first.items():
        torch.testing.assert_close(tensor, single[name], rtol=1e-3, atol=1e-5, msg=name)


@pytest.mark.filterwarnings("ignore")  # Lightning's own advice, and what it warns of in others
@pytest.mark.parametrize("objective", [False, True])
def test_posterior_and_objective_train_with_lightning(parts, objective):
    pl = pytest.importorskip("lightning.pytorch")
    from pstn.training.lightning import LitData, LitPSTN

    model = make_model(parts)
    loss = parts.importance_weighted if objective else None
    module = LitPSTN(model, loss=loss, kl_weight=0.1, localizer_factor=1.0)
    trainer = pl.Trainer(
        max_epochs=1, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, LitData(*data(), batch_size=8))
    assert model.layer.shared.log_scale0.abs().sum() > 0


def test_a_model_with_the_posterior_is_loaded_in_a_new_process(parts, tmp_path):
    model = make_model(parts).eval()
    with torch.no_grad():
        model.layer.shared.log_scale0.fill_(0.25)
    folder = pstn.save_pretrained(model, tmp_path / "model")
    code = (
        "import pstn, sys, torch\n"
        "model = pstn.from_pretrained(sys.argv[1], allow=['my_parts'])\n"
        "x = torch.rand(24, 1, 12, 12, generator=torch.Generator().manual_seed(1))[:2]\n"
        "p = model(x, noise=torch.full((4, 2, 4), 0.3))\n"
        "print(p.log_probs.sum().item(), p.posterior.kl().sum().item())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, folder], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    p = model(data()[0][:2], noise=torch.full((4, 2, 4), 0.3))
    expected = [p.log_probs.sum().item(), p.posterior.kl().sum().item()]
    assert [float(number) for number in done.stdout.split()] == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("samples", [None, 3])
def test_a_model_with_the_posterior_is_exported(parts, tmp_path, samples):
    pytest.importorskip("onnxscript")
    import onnxruntime

    from pstn.export import export_onnx, export_program

    model = pstn.from_pretrained(pstn.save_pretrained(make_model(parts), tmp_path / "model"), allow=["my_parts"])
    x = data(3)[0]
    noise = torch.rand(3, 3, 4).clamp(0.01, 0.99)
    inputs = {"x": x} if samples is None else {"x": x, "noise": noise}
    program = torch.export.load(export_program(model, tmp_path / "m.pt2", samples=samples)).module()
    exported = program(*inputs.values())[0]
    session = onnxruntime.InferenceSession(str(export_onnx(model, tmp_path / "m.onnx", samples=samples)))
    ran = session.run(None, {name: value.numpy() for name, value in inputs.items()})[0]
    with torch.no_grad():
        if samples is None:
            theta = model.layer.localize(x).mode[None]
            expected = model._classify(model.layer.warp(x, theta))[0].exp()
        else:
            expected = model(x, noise=noise).probs
    torch.testing.assert_close(exported, expected)
    torch.testing.assert_close(torch.from_numpy(ran), expected, rtol=1e-4, atol=1e-5)


def test_the_task_of_the_page_trains_everywhere(tmp_path):
    names = {"__name__": "page"}
    exec(compile(POSTERIOR + "\n" + TASK, str(PAGE), "exec"), names)
    series, targets = names["series"], names["targets"]
    with Population([names["Regressor"]() for _ in range(2)], series, targets, recipe=Recipe(2, 16), loss=names["negative_elbo"]) as many:  # noqa: E501  # fmt: skip
        many.fit()
        assert set(many.evaluate(series, targets)) == {"loss"}
    model = names["Regressor"]().eval()
    noise = torch.rand(4, 64, model.layer.noise_width).clamp(0.01, 0.99)

    class Means(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, x, noise):
            return self.model(x, noise=noise, samples=4).mean

    program = torch.export.export(Means(), (series, noise)).module()
    torch.testing.assert_close(program(series, noise), model(series, 4, noise=noise).mean)
