"""The table of docs/extending.md, row by row: with each trainer, saved and loaded in a new process, and exported."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import pstn
from pstn.training import Population, Recipe, make_members

DOCS = Path(__file__).parents[1] / "docs"


def blocks(page):
    return re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text(encoding="utf-8"), flags=re.M | re.S)


POSTERIOR, _, PRIOR, NETWORK, OBJECTIVE, _, TASK, *_ = blocks("extending.md")
# The rows of the table that are part of a model, each as a P-STN with it.
PARTS = ("matrix", "map", "posterior", "prior", "network")

# A few steps leave a localizer where it started, which fit remarks upon.
pytestmark = pytest.mark.filterwarnings("ignore:The transformation is")


@pytest.fixture(scope="module")
def mine(tmp_path_factory):
    """What the pages define, as a module of the user's."""
    folder = tmp_path_factory.mktemp("mine")
    defined = [
        POSTERIOR,
        PRIOR.split("family = ")[0],
        NETWORK.split("small = ")[0],
        OBJECTIVE,
        TASK.split("series = ")[0],
    ]
    (folder / "my_parts.py").write_text("\n\n".join([*defined, *blocks("adding-a-family.md")]))
    sys.path.insert(0, str(folder))
    yield importlib.import_module("my_parts")
    sys.path.remove(str(folder))
    del sys.modules["my_parts"]


def make_model(mine, *parts):
    torch.manual_seed(0)
    transform = (mine.Box if "matrix" in parts else mine.Wave if "map" in parts else pstn.Similarity)()
    normal = pstn.Normal(prior=mine.LaplacePrior(0.3)) if "prior" in parts else pstn.StudentT(alpha=2.0)
    posterior = mine.Gaussian() if "posterior" in parts else normal
    localizer = pstn.nn.ConvLocalizer(1, (12, 12), filters=(2,), kernel=3)
    classifier = pstn.nn.ConvClassifier(1, (12, 12), classes=3, filters=(2,), hidden=4, kernel=3)
    if "network" in parts:
        localizer, classifier = mine.Small(6), mine.Small(3)
    layer = pstn.SpatialTransformer(transform, localizer, size=(12, 12), posterior=posterior)
    model = pstn.PSTN(layer, classifier, train_samples=3, test_samples=4)
    model(torch.zeros(1, 1, 12, 12))  # the layer finds the number of features
    return model


def save(mine, folder, *parts):
    """A model with these parts; one whose classifier is the user's has to say what it takes."""
    about = pstn.ModelMetadata(("a", "b", "c"), 1, (12, 12)) if "network" in parts else None
    model = make_model(mine, *parts).eval()
    for parameter in model.parameters():  # not as they are made
        parameter.data += 0.05 * torch.randn_like(parameter)
    pstn.save_pretrained(model, folder, about=about)
    return model


def make_data(count=24):
    return torch.rand(count, 1, 12, 12, generator=torch.Generator().manual_seed(1)), torch.arange(count) % 3


def make_noise(model, samples, count):
    noise = torch.rand(samples, count, model.layer.noise_width, generator=torch.Generator().manual_seed(2))
    return noise.clamp(0.01, 0.99)


def lines(code):
    return [line for line in code.splitlines() if line.strip()]


def test_the_examples_are_as_short_as_the_page_promises_and_touch_no_private_name():
    assert len(lines(POSTERIOR)) <= 40
    assert len(lines(OBJECTIVE)) <= 10
    for code in (POSTERIOR, PRIOR, NETWORK, OBJECTIVE, TASK):
        assert not re.findall(r"\b_(?!_)\w+|\._(?!_)\w+", code)


def test_the_posterior_and_the_prior_are_those_of_torch(mine):
    q = make_model(mine, "posterior").layer.localize(make_data()[0])
    reference = torch.distributions.Normal(q.loc, q.scale)
    noise = torch.rand(5, 24, 4).clamp(0.01, 0.99)
    torch.testing.assert_close(q.rsample(noise=noise), reference.icdf(noise))
    torch.testing.assert_close(q.interval(0.8)[1], reference.icdf(torch.tensor(0.9)))
    assert q.kl().shape == (24, 4)
    transform, prior = pstn.Similarity(), mine.LaplacePrior(0.3)
    loc, scale = transform.initial() + 0.2 * torch.randn(24, 4), torch.rand(24, 4) + 0.1
    own = prior.build(transform, prior.shared(transform)).kl(pstn.NormalPosterior(loc, scale))
    wanted = torch.distributions.Laplace(transform.initial(), 0.3)
    torch.testing.assert_close(own, torch.distributions.kl_divergence(torch.distributions.Normal(loc, scale), wanted))


@pytest.mark.parametrize("part", [*PARTS, "loss"])
def test_each_part_trains_with_fit_and_in_a_population_as_alone(mine, part):
    x, y = make_data()
    loss = mine.importance_weighted if part == "loss" else None
    model = make_model(mine, part)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    pstn.fit(model, (x, y), epochs=2, loss=loss, kl_weight=0.1, localizer_factor=1.0)
    for name, parameter in model.named_parameters():  # those of the prior too
        assert not torch.equal(parameter, before[name]), name
    models = [make_model(mine, part) for _ in range(2)]
    members = make_members(2, seed=0, kl_weight=0.1, localizer_factor=1.0)
    recipe = Recipe(epochs=2, batch_size=8, loss=loss)
    with Population(models, x, y, members, recipe, groups=1) as together:
        together.fit()
    with Population(models[:1], x, y, members[:1], recipe) as alone:
        alone.fit()
    single = alone.models()[0].state_dict()
    for name, tensor in together.models()[0].state_dict().items():
        torch.testing.assert_close(tensor, single[name], rtol=1e-3, atol=1e-5, msg=name)
        assert not torch.equal(tensor, before[name]), name


class Noisy(nn.Module):
    def forward(self, x):
        return x.flatten(1) + torch.rand_like(x.flatten(1))


def test_a_network_that_draws_random_numbers_of_its_own_trains_alone_only():
    layer = pstn.SpatialTransformer(pstn.Crop(), Noisy(), size=(12, 12), features=144)
    model = pstn.PSTN(layer, nn.Sequential(nn.Flatten(), nn.Linear(144, 3)))
    pstn.fit(model, make_data(), epochs=1)
    with pytest.raises(ValueError, match="random numbers"):
        Population([model], *make_data(), recipe=Recipe(1, 8))


@pytest.mark.filterwarnings("ignore")  # Lightning's own advice, and what it warns of in others
@pytest.mark.parametrize("part", [*PARTS, "loss", "task"])
def test_each_part_trains_with_lightning(mine, part):
    pl = pytest.importorskip("lightning.pytorch")
    from pstn.training.lightning import LitData, LitPSTN

    model, data = (mine.Regressor(), make_series()) if part == "task" else (make_model(mine, part), make_data())
    loss = {"loss": mine.importance_weighted, "task": mine.negative_elbo}.get(part)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    trainer = pl.Trainer(
        max_epochs=1, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(LitPSTN(model, loss=loss, kl_weight=0.1, localizer_factor=1.0), LitData(*data, batch_size=8))
    for name, parameter in model.named_parameters():
        assert not torch.equal(parameter, before[name]), name


LOAD = """
import pathlib, sys, torch, pstn
from safetensors.torch import load_file

for path in sorted(pathlib.Path(sys.argv[1]).iterdir()):
    data = load_file(path / "data.safetensors")
    if path.name == "task":
        import my_parts
        model = my_parts.Regressor().eval()
        pstn.load_weights(model, path / "weights.safetensors")
    else:
        model = pstn.from_pretrained(path, allow=["my_parts"])
    with torch.no_grad():
        output = model(data["x"], 4, noise=data["noise"])
    torch.testing.assert_close(output[0], data["first"])
    torch.testing.assert_close(output.posterior.kl(), data["kl"])
    print(path.name)
"""


def test_each_part_is_saved_and_loaded_in_a_new_process(mine, tmp_path):
    from safetensors.torch import save_file

    for part in (*PARTS, "task"):
        folder = tmp_path / "saved" / part
        if part == "task":
            model = mine.Regressor().eval()
            folder.mkdir()
            save_file(model.state_dict(), folder / "weights.safetensors")
        else:
            model = save(mine, folder, part)
        x = make_series(3)[0] if part == "task" else make_data(3)[0]
        noise = make_noise(model, 4, 3)
        with torch.no_grad():
            output = model(x, 4, noise=noise)
        data = {"x": x, "noise": noise, "first": output[0], "kl": output.posterior.kl()}
        save_file({name: tensor.contiguous() for name, tensor in data.items()}, folder / "data.safetensors")
    done = subprocess.run(
        [sys.executable, "-c", LOAD, tmp_path / "saved"], cwd=Path(mine.__file__).parent, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout.split()) == (0, sorted([*PARTS, "task"])), done.stderr


def test_a_part_of_a_module_that_is_not_allowed_is_refused(mine, tmp_path):
    for part in PARTS:
        save(mine, tmp_path / part, part)
        with pytest.raises(pstn.io.ModelFileError, match="allow"):
            pstn.from_pretrained(tmp_path / part)


def run_onnx(path, inputs):
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(str(path))
    return torch.from_numpy(session.run(None, {name: value.numpy() for name, value in inputs.items()})[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parts", "samples"), [(["matrix", "posterior"], 3), (["map", "prior", "network"], 3), (["posterior"], None)]
)
def test_each_part_is_exported(mine, tmp_path, parts, samples):
    pytest.importorskip("onnxscript")
    from pstn.export import export_onnx, export_program

    save(mine, tmp_path / "model", *parts)
    model, x = pstn.from_pretrained(tmp_path / "model", allow=["my_parts"]), make_data(3)[0]
    inputs = {"x": x} if samples is None else {"x": x, "noise": make_noise(model, samples, 3)}
    with torch.no_grad():
        expected = model(x, **({"samples": "modes"} if samples is None else {"noise": inputs["noise"]})).probs
    program = torch.export.load(export_program(model, tmp_path / "m.pt2", samples=samples)).module()
    torch.testing.assert_close(program(*inputs.values())[0], expected)
    ran = run_onnx(export_onnx(model, tmp_path / "m.onnx", samples=samples), inputs)
    torch.testing.assert_close(ran, expected, rtol=1e-4, atol=1e-5)


def make_series(count=64):
    x = torch.randn(count, 1, 30, generator=torch.Generator().manual_seed(1))
    return x, x[:, 0, 10:20].mean(1)


class Means(nn.Module):
    """What an exported program returns: tensors alone."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, noise):
        return self.model(x, noise=noise, samples=4).mean


def test_the_task_trains_in_a_population_and_is_exported_by_torch(mine):
    models = [mine.Regressor() for _ in range(2)]
    with Population(models, *make_series(), recipe=Recipe(2, 16), loss=mine.negative_elbo) as together:
        together.fit()
        assert set(together.evaluate(*make_series())) == {"loss"}
    model, x = mine.Regressor().eval(), make_series(3)[0]
    noise = make_noise(model, 4, 3)
    program = torch.export.export(Means(model), (x, noise)).module()
    torch.testing.assert_close(program(x, noise), model(x, 4, noise=noise).mean)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # of torch's own exporter
def test_the_task_is_exported_to_onnx_by_torch(mine, tmp_path):
    pytest.importorskip("onnxscript")
    model, x = mine.Regressor().eval(), make_series(3)[0]
    noise = make_noise(model, 4, 3)
    torch.onnx.export(Means(model).eval(), (x, noise), tmp_path / "m.onnx", input_names=["x", "noise"], dynamo=True)
    expected = model(x, 4, noise=noise).mean.detach()
    torch.testing.assert_close(run_onnx(tmp_path / "m.onnx", {"x": x, "noise": noise}), expected, rtol=1e-4, atol=1e-5)
