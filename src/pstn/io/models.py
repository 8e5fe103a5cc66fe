"""Models in folders that others can use: weights as safetensors, config.json, and a model card.

The files are named as the Hugging Face Hub has them. Reading a folder runs nothing in it: there is no pickle, the
description is checked key by key, and the names and shapes of all tensors before one of them is read.
"""

from __future__ import annotations

import json
import math
import re
import tempfile
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pstn import files
from pstn.files import DataError, read_json, require_regular_file, sha256_of, write_atomically
from pstn.io.registry import build, describe, describe_input, types_in
from pstn.limits import CONFIG_BYTES, MODEL_BYTES, MODEL_LAYER, MODEL_VALUES, MODEL_WORK
from pstn.nn import networks
from pstn.nn.backbones import Trunk
from pstn.nn.metadata import ModelMetadata
from pstn.text import ShortError, did_you_mean, excerpt

__all__ = ["ModelFileError", "from_pretrained", "load_weights", "push_to_hub", "require_modest", "save_pretrained"]

CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
_CHECKPOINT = "checkpoint.safetensors"  # of `pstn train`: an unfinished run has this and no model
_FORMAT = "pstn 1"
_KEYS = ("format", "model", "about", "weights_sha256")
# Types of numbers, as safetensors calls them. Of those that it has beside them, torch computes with few.
_FLOATS, _WHOLE_NUMBERS = ("F16", "BF16", "F32", "F64"), ("I8", "I16", "I32", "I64", "U8", "BOOL")
_OF_SERIES = (
    networks.SeriesClassifier, networks.SeriesLocalizer, networks.InceptionClassifier, networks.ResNetClassifier,
)  # fmt: skip
# For the model card.
_TASKS = {1: "time-series-classification", 2: "image-classification"}
_WORDS = {"PSTN": "A probabilistic spatial transformer network", "STN": "A spatial transformer network"}
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


class ModelFileError(ShortError):
    """A model's file that is missing, damaged, or not one of this package's."""


def save_pretrained(model: nn.Module, folder: str | Path, *, about: ModelMetadata | None = None) -> Path:
    """Write model.safetensors, config.json and README.md, a model card, into a folder.

    A part of the model that is not of this package is written down as the arguments of its constructor, which it must
    keep as attributes of the same names; see `pstn.register`. Networks that no class describes, such as an
    `nn.Sequential`, are written down as `pstn.set_constructor` says.

    Args:
        model: a classifier.
        folder: created if missing; files of these names in it are replaced.
        about: metadata of the model; `model.about` when not given.

    Returns:
        The folder.

    Raises:
        TypeError: the model holds a module that config.json cannot describe.
        ValueError: two parts of the model share weights, or `about` does not fit it.

    Example:
        >>> import tempfile
        >>> folder = save_pretrained(pstn.nn.mnist_pstn(), Path(tempfile.mkdtemp()) / "mine")
        >>> sorted(path.name for path in folder.iterdir())
        ['README.md', 'config.json', 'model.safetensors']
    """
    safetensors = files.load_safetensors("hub")
    description, about = _described(model, about or getattr(model, "about", None))
    folder = Path(folder)
    # Cloned, as a file cannot hold one tensor twice, which a frozen trunk of two parts may be.
    weights = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in model.state_dict().items()}
    with write_atomically(folder / WEIGHTS) as draft:
        safetensors.torch.save_file(weights, draft, metadata={"format": "pt"})
        digest = sha256_of(draft)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    config = dict(zip(_KEYS, (_FORMAT, description, about.to_config(), digest), strict=True))
    for name, text in ((CARD, card_text(description, about, parameters)), (CONFIG, json.dumps(config, indent=1))):
        with write_atomically(folder / name) as draft:
            draft.write_text(text + "\n", encoding="utf-8")
    return folder


def push_to_hub(
    model: nn.Module, repo_id: str, *, about: ModelMetadata | None = None, private: bool | None = None,
    token: str | None = None, commit_message: str = "Upload a model of pstn",
) -> str:  # fmt: skip
    """Upload a model to the Hugging Face Hub. Needs huggingface_hub: `pip install 'pstn[hub]'`.

    Args:
        model: as for `save_pretrained`.
        repo_id: "owner/name"; created if missing.
        about: as for `save_pretrained`.
        private: whether a new repository is private; the owner's default where None.
        token: of the account; the one that `hf auth login` stored where None.
        commit_message: for the repository's history.

    Returns:
        Where it is.
    """
    hub = _hub()
    with tempfile.TemporaryDirectory() as folder:
        save_pretrained(model, folder, about=about)
        api = hub.HfApi(token=token)
        repo = api.create_repo(repo_id, private=private, exist_ok=True)
        api.upload_folder(repo_id=repo.repo_id, folder_path=folder, commit_message=commit_message)
        return str(repo)


def from_pretrained(name: str | Path, *, revision: str | None = None, allow: Sequence[str] = ()) -> Any:
    """Load a model from a folder, or from the Hugging Face Hub, in evaluation mode.

    Nothing in the files is executed, and nothing is imported for them but the modules that you allow by name. A folder
    needs neither a network nor huggingface_hub.

    Args:
        name: a folder that `save_pretrained`, `pstn train` or `pstn demo` wrote; or "owner/name" of the Hub, where
            there is neither such a folder nor a folder "owner".
        revision: a branch, a tag or a commit of the Hub's repository.
        allow: modules that may be imported for classes in the model that are not of this package, such as
            ["my_networks"]; or one class or function of a module, ["my_networks:make_network"], which is what
            `pstn.set_constructor` needs. Importing a module runs it: allow only what you have written or read.

    Returns:
        The classifier; `model.about` has the names of its classes and how to prepare its input.

    Raises:
        ModelFileError: there is no such model, or its files are damaged or not of this package.

    Example:
        >>> import tempfile
        >>> folder = pstn.nn.mnist_pstn().save_pretrained(tempfile.mkdtemp())
        >>> model = from_pretrained(folder)
        >>> model.about.classes[:3], model.training
        (('0', '1', '2'), False)
    """
    config_path, weights = _find(name, revision)
    config = _read_config(config_path)
    try:
        with torch.device("meta"):  # no memory is spent before the file is known to fill it
            empty = build(config["model"], allow)
        about = ModelMetadata.from_config(config["about"])
        _check_about(about, *describe_input(config["model"]))
        require_modest(empty, about)
    except ValueError as error:
        raise ModelFileError(f"{config_path}: {error}") from error
    tensors = _read_tensors(weights, empty)
    if sha256_of(weights) != config["weights_sha256"]:
        raise ModelFileError(f"{weights} is not the file that {CONFIG} beside it was written with, or it is damaged")
    with torch.random.fork_rng(devices=[]):
        model = build(config["model"], allow)
    model.about = about
    model.load_state_dict(tensors)
    return model.eval()


def load_weights(model: nn.Module, path: str | Path) -> None:
    """Load the weights of a safetensors file into a model that you have built, whatever its modules.

    Names, shapes and values are checked first: a file that does not fit leaves the model as it is.

    Args:
        model: any module.
        path: what `safetensors.torch.save_file(model.state_dict(), path)` wrote.

    Raises:
        ModelFileError: the file is damaged, or belongs to another model.
    """
    model.load_state_dict(_read_tensors(Path(path), model))


def _described(model: nn.Module, about: ModelMetadata | None) -> tuple[dict[str, Any], ModelMetadata]:
    """The model as config.json has it; refused where a model that is built from that would be another one."""
    description = describe(model)
    seen: dict[int, str] = {}
    fixed = [part for part in model.modules() if isinstance(part, Trunk) and part.learns == "none"]
    kept = {id(tensor) for trunk in fixed for tensor in trunk.state_dict(keep_vars=True).values()}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) in kept:
            continue
        if (first := seen.setdefault(id(tensor), name)) != name:  # a model that is loaded would have two
            raise ValueError(f"{first} and {name} are one tensor, which cannot be saved: deepcopy one of the two")
    with torch.device("meta"), torch.random.fork_rng(devices=[]):
        again = build(description, [*types_in(description)])  # its own modules are here already
        built = {name: tensor.shape for name, tensor in again.state_dict().items()}
    if built != {name: tensor.shape for name, tensor in model.state_dict().items()}:
        raise ValueError("the model was changed after it was built, and config.json cannot say how: use its state_dict")
    classes, channels, size = describe_input(description)
    if about is None:
        if classes is None or channels is None:
            raise ValueError("about must be given for this model: about=pstn.ModelMetadata(classes, channels, size)")
        about = ModelMetadata(tuple(map(str, range(classes))), channels, size)
    _check_about(about, classes, channels, size)
    require_modest(model, about)
    return description, about


def _check_about(about: ModelMetadata, classes: int | None, channels: int | None, size: tuple[int, ...] | None) -> None:
    """Refuse what does not fit the model, as far as its description says."""
    for name, wanted, found in (
        ("the number of classes", classes, len(about.classes)), ("channels", channels, about.channels),
        ("size", size if about.size is not None else None, about.size),
    ):  # fmt: skip
        if wanted is not None and found != wanted:
            raise ValueError(f"{name} must be that of the model, {wanted}, got {found}")


def require_modest(model: nn.Module, about: ModelMetadata) -> None:
    """Refuse a model that would take very much memory to load or to use, before any is allocated.

    Args:
        model: a classifier; one on the device "meta" is enough.
        about: its metadata.

    Raises:
        ValueError: it exceeds a limit of `pstn.limits`, and could not be loaded again.

    Example:
        >>> require_modest(pstn.nn.mnist_pstn(), pstn.ModelMetadata(tuple("0123456789"), 1, (28, 28)))
    """
    layer, samples = getattr(model, "layer", None), getattr(model, "test_samples", 1)
    given = about.size or ()
    seen = given if layer is None or layer.size is None else layer.size  # by the classifier
    made, work = _convolutions(model, samples, given, seen)
    for what, found, limit in (
        ("bytes of weights", sum(t.numel() * t.element_size() for t in model.state_dict().values()), MODEL_BYTES),
        ("numbers for one input", samples * about.channels * max(math.prod(given), math.prod(seen)), MODEL_VALUES),
        ("numbers in a convolution", made, MODEL_LAYER),
        ("multiplications for one input", work, MODEL_WORK),
    ):
        if found > limit:
            raise ValueError(f"model must take at most {limit:,} {what}, got {found:,}")


def _convolutions(model: nn.Module, samples: int, given: tuple[int, ...], seen: tuple[int, ...]) -> tuple[int, int]:
    """The most numbers that one of this package's convolutions makes of an input, and the multiplications of all."""
    together = min(samples, getattr(model, "chunk_size", None) or samples)
    made, work = [0], 0
    for name, part in model.named_modules():
        reads_samples = name.partition(".")[0] == "classifier"
        copies, repeats = (together, samples) if reads_samples else (1, 1)
        if isinstance(part, (networks.ConvLocalizer, networks.PoseLocalizer)):
            size, lost = list(part.size), part.kernel - 1 if isinstance(part, networks.ConvLocalizer) else 0
            for inputs, filters in pairwise((part.in_channels, *part.filters)):
                size = [extent - lost for extent in size]
                made.append(copies * filters * math.prod(size))
                work += repeats * inputs * filters * math.prod(size) * part.kernel ** len(size)
                size = [extent // 2 for extent in size]
        elif isinstance(part, _OF_SERIES):  # each convolution keeps the length, or loses a little of it
            length = math.prod(seen if reads_samples else given)
            for conv in (each for each in part.modules() if isinstance(each, nn.Conv1d)):
                made.append(copies * conv.out_channels * length)
                work += repeats * conv.in_channels * conv.out_channels * conv.kernel_size[0] * length
    return max(made), work


def _find(name: str | Path, revision: str | None) -> tuple[Path, Path]:
    """config.json and the weights: in a folder, in the only model of a run's folder, or on the Hub."""
    folder = Path(name)
    if folder.is_dir():
        return _in_folder(folder)
    # If there is a folder "runs", "runs/name" is a mistyped path, not a model of a user called "runs".
    mistyped = folder.parent != Path() and folder.parent.is_dir()
    if mistyped or folder.exists() or not _HUB_NAME.fullmatch(str(name)):
        beside = (
            [str(folder.with_name(each.name)) for each in folder.parent.iterdir()] if folder.parent.is_dir() else []
        )
        meant = did_you_mean(str(folder), beside)
        raise ModelFileError(f"there is no folder {name} of a model: pstn train and save_pretrained write one{meant}")
    try:
        return _on_hub(_hub(), str(name), revision)
    except ImportError as error:
        raise ModelFileError(f"there is no folder {name}; to look for it on the Hugging Face Hub: {error}") from error


def _in_folder(folder: Path) -> tuple[Path, Path]:
    models = sorted(path.parent for path in folder.glob(f"*/{CONFIG}"))
    if not (folder / CONFIG).exists() and models:
        if len(models) > 1:
            raise ModelFileError(f"{folder} holds {len(models)} models: give one of them, e.g. {models[0]}")
        folder = models[0]
    if not (folder / CONFIG).exists() and (folder / _CHECKPOINT).exists():
        raise ModelFileError(f"{folder} is not finished: pstn train --resume --out {folder}")
    for file in (CONFIG, WEIGHTS):
        if not (folder / file).is_file():
            raise ModelFileError(f"{folder} holds no model: it has no {file}")
    return folder / CONFIG, folder / WEIGHTS


def _on_hub(hub: Any, name: str, revision: str | None) -> tuple[Path, Path]:
    """The two files from the Hub or, if that cannot be reached, from the cache of its client."""
    try:
        config, weights = (Path(hub.hf_hub_download(name, file, revision=revision)) for file in (CONFIG, WEIGHTS))
    except Exception as error:  # the Hub's client raises its own, its network library's and the system's
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise ModelFileError(f"there is no folder {name}, nor such a model on the Hugging Face Hub: {first}") from error
    return config, weights


def _hub() -> Any:
    return files.import_optional("huggingface_hub", "huggingface_hub", "hub")


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = read_json(path, limit=CONFIG_BYTES)
    except DataError as error:
        raise ModelFileError(str(error)) from error
    if not isinstance(config, dict) or set(config) != set(_KEYS) or config["format"] != _FORMAT:
        wanted = f"format must be {_FORMAT!r}, beside {', '.join(_KEYS[1:])}"
        raise ModelFileError(f"{path} does not describe a model of pstn: {wanted}, got {excerpt(config)}")
    return config


def _read_tensors(path: Path, model: nn.Module) -> dict[str, Tensor]:
    """The tensors of a file, once their names and shapes are those of the model; all finite."""
    safetensors = files.load_safetensors("hub")
    expected = model.state_dict()
    try:
        if require_regular_file(path).stat().st_size > 2 * MODEL_BYTES:  # float64 takes twice the room
            raise ModelFileError(f"{path} must have at most {2 * MODEL_BYTES:,} bytes")
        with safetensors.safe_open(str(path), framework="pt") as stream:
            if different := set(stream.keys()) ^ set(expected):
                name = min(different)
                state = "missing" if name in expected else "unknown"
                raise ModelFileError(f"{path} belongs to another model: {name[:200]} is {state}")
            for name, tensor in expected.items():
                entry = stream.get_slice(name)
                shape, dtype = tuple(entry.get_shape()), entry.get_dtype()
                if shape != tuple(tensor.shape):
                    raise ModelFileError(f"{path}: {name} must have shape {tuple(tensor.shape)}, got {shape}")
                if dtype not in (_FLOATS if tensor.is_floating_point() else _WHOLE_NUMBERS):
                    raise ModelFileError(f"{path}: {name} must be of {tensor.dtype}, got {dtype}")
            tensors = {name: stream.get_tensor(name) for name in expected}
    except (safetensors.SafetensorError, DataError, OSError) as error:
        raise ModelFileError(f"{path} is not a readable safetensors file: {error}") from error
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise ModelFileError(f"{path}: {name} holds NaN or infinity")
    return tensors


def card_text(description: Mapping[str, Any], about: ModelMetadata, parameters: int) -> str:
    """The text of a model card.

    Args:
        description: of the model, as config.json has it.
        about: its metadata.
        parameters: their number.

    Example:
        >>> text = card_text({"type": "ConvClassifier"}, ModelMetadata(("a", "b"), 1), parameters=7)
        >>> text.splitlines()[5]
        '# A convolutional network for 2 classes'
    """
    title = f"{_WORDS.get(description['type'], 'A convolutional network')} for {len(about.classes)} classes"
    layer = description.get("layer")
    shape = f"{about.channels} channel{'s' if about.channels > 1 else ''}, "
    shape += "any size" if about.size is None else " × ".join(map(str, about.size))
    if set(about.mean) != {0.0} or set(about.std) != {1.0}:
        mean, std = (", ".join(f"{value:g}" for value in values) for values in (about.mean, about.std))
        shape += f", normalised: (x − [{mean}]) / [{std}]"
    facts = [
        f"parameters: {parameters:,}",
        f"input: {shape}",
        layer and f"transformation: {layer['transform']['type']}",
        "test_samples" in description and f"samples for a prediction: {description['test_samples']}",
        about.data and f"trained on: {_code(about.data)}",
        about.supervision and f"supervision: {_code(about.supervision)}",
        about.abstention,
        about.kl_weight is not None and description["type"] == "PSTN" and f"KL weight: {about.kl_weight:g}",
        f"classes: {', '.join(map(_code, about.classes[:100]))}{', …' if len(about.classes) > 100 else ''}",
    ]
    listed = [f"- {fact}" for fact in facts if fact]
    scores = {name: value for name, value in about.metrics.items() if math.isfinite(value)}
    table = [f"| {name.replace('|', '/')} | {value:.4g} |" for name, value in scores.items()]
    if table:
        table = ["| on the test part | |", "| --- | ---: |", *table, ""]
    return "\n".join([*_header(about, title, scores), f"# {title}", "", *listed, "", *table, *_use(about, description)])


def _header(about: ModelMetadata, title: str, scores: Mapping[str, float]) -> list[str]:
    """YAML that the Hub reads. JSON's strings are YAML's: names of classes and data cannot break out of them."""
    lines = ["---", "library_name: pstn", "tags: [pstn, spatial-transformer, uncertainty]"]
    task = _TASKS.get(about.ndim or 0)
    if task is not None:
        lines.append(f"pipeline_tag: {task}")
    if scores and about.data:
        dataset = {"name": about.data, "type": about.data}
        metrics = [{"type": name, "value": value} for name, value in scores.items()]
        result = {"task": {"type": task or "classification"}, "dataset": dataset, "metrics": metrics}
        lines.append(f"model-index: {json.dumps([{'name': title, 'results': [result]}])}")
    return [*lines, "---", ""]


def _code(text: str) -> str:
    return f"`{text.replace('`', chr(39))}`"


def _use(about: ModelMetadata, description: Mapping[str, Any]) -> list[str]:
    if about.ndim == 1:
        file, call = "series.csv", "model.about.prepare(series))  # series (B, C, L), floats as in the files"
    else:
        file, call = "image.png", "model.about.prepare(images))  # images (B, C, H, W): uint8, or floats from 0 to 1"
    allow = sorted({kind for kind in types_in(description) if ":" in kind})
    argument = f", allow={json.dumps(allow)}" if allow else ""
    load = f'import pstn\n\nmodel = pstn.from_pretrained("path/of/this/folder"{argument})'
    options = "".join(f" --allow {kind}" for kind in allow)
    return [f"```python\n{load}\np = model({call}\n```\n", f"Or: `pstn predict path/of/this/folder {file}{options}`."]
