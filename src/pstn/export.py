"""Export models to files that run without this package: ONNX files and programs of torch.export.

Both hold the same function of tensors: it takes x, prepared as the model requires it, and the noise if it samples. The
caller thus chooses the random numbers.
"""

from __future__ import annotations

import json
import logging
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pstn._checks import require_positive_int
from pstn.files import write_atomically
from pstn.nn import PSTN, Shareable, SpatialTransformer, TransformerClassifier
from pstn.nn.classifier import evaluating, fitting_rule
from pstn.noise import Samples, draw_noise
from pstn.transforms import CPAB, MatrixTransform
from pstn.transforms.coordinates import base_grid
from pstn.uncertainty import entropy
from pstn.warping import read_with_fill

__all__ = ["advice_on_running", "export_onnx", "export_program"]

# Warnings of the exporters that users can neither cause nor avoid.
_REMARKS = (
    r"`isinstance\(treespec, LeafSpec\)` is deprecated",  # torch, of itself
    "# The axis name: batch will not be used",  # for the outputs: it is the inputs' already
)

# Numbers of noise that the metadata hold.
_MOST_NOISE = 10_000


@final
class _Tensors(nn.Module):
    """A classifier as a function from tensors to a tuple of tensors, in the order of the outputs' names."""

    def __init__(self, model: Shareable, samples: Samples | None) -> None:
        super().__init__()
        self.model, self.samples, self.rule = model, samples, fitting_rule(model, samples)

    def forward(self, x: Tensor, noise: Tensor | None = None) -> tuple[Tensor, ...]:
        found, rule = self._predict(x, noise), self.rule
        if rule is None:
            return found
        probs = found[0].double()  # as they are compared in `Abstention`
        abstain = () if rule.accuracy is None else (probs.amax(-1) < rule.threshold,)
        return *found, *abstain, *(() if rule.coverage is None else (1 - probs <= rule.quantile,))

    def _predict(self, x: Tensor, noise: Tensor | None) -> tuple[Tensor, ...]:
        model = self.model
        if not isinstance(model, TransformerClassifier):
            log_probs = model(x).log_softmax(-1)
            return log_probs.exp(), entropy(log_probs)
        aspect = tuple(x.shape[2:])[::-1]
        if self.samples is None and isinstance(model, PSTN):
            theta = model.layer.localize(x).mode[None]
            log_probs = model.classifier(model.layer.warp(x, theta)[0]).log_softmax(-1)
            return log_probs.exp(), entropy(log_probs), theta, model.layer.transform.corners(theta, aspect=aspect)
        p = model(x, "modes" if self.samples == "modes" else None, noise=noise)
        boxes = model.layer.transform.corners(p.theta, aspect=aspect)
        disagreement = () if self.samples is None else (p.mutual_information,)
        return p.probs, p.entropy, p.theta, boxes, *disagreement


def export_onnx(model: Shareable, path: str | Path, *, samples: Samples | None = None) -> Path:
    """Write a classifier as an ONNX file with a batch of any size. Needs the extra "onnx".

    Inputs are x (B, C, *size), and with `samples` also noise (S, B, D), uniform in (0, 1). Outputs are probabilities
    (B, K), entropy (B,), and where the model looks, theta (S, B, D), boxes (S, B, corners, ndim) in [-1, 1], x first,
    and with `samples` mutual_information (B,). A model with a `pstn.Abstention` that was found with these samples has
    abstain (B,) and set (B, K), too. The file's metadata has the names of the classes, how x is
    prepared, and noise that may be repeated for each input, as `pstn predict` does.

    Args:
        model: a classifier of images or series with `about`, such as `pstn.from_pretrained` returns.
        path: file to write.
        samples: S, with the noise as an input; "modes" for one weighted sample at the centre of each of the posterior's
            modes, without noise; None takes the one most probable transformation, without noise and, as that fits
            averaged probabilities, without the temperature of a PSTN.

    Returns:
        The path.
    """
    import onnx

    module, args, shapes, inputs, outputs, metadata = _plan(model, samples)
    try:
        with evaluating(module), _quiet():
            with _warping_by_axes(module):
                exported = torch.export.export(module, args, dynamic_shapes=shapes)
            exported = exported.run_decompositions({torch.ops.aten.grid_sampler.default: _sample_by_gathers})
            program = torch.onnx.export(exported, dynamo=True, input_names=inputs, output_names=outputs, verbose=False)
            assert program is not None
            proto = program.model_proto
    except Exception as error:  # the exporter raises errors of many kinds, with reports of many lines
        first = (str(error).splitlines() or [type(error).__name__])[0]
        reason = re.split(r"\x1b|\. ", first)[0]  # without colours and advice on the exporter's own use
        raise ValueError(f"this model cannot be written as ONNX ({reason}): try pt2, which torch runs") from error
    onnx.helper.set_model_props(proto, metadata)
    with write_atomically(path) as draft:
        onnx.save(proto, str(draft))
    return Path(path)


def export_program(model: Shareable, path: str | Path, *, samples: Samples | None = None) -> Path:
    """Write a classifier as a program of `torch.export`, a .pt2 file that `torch.export.load` reads.

    It needs torch to run, and this package neither to load nor to run. Inputs, outputs and arguments are those of
    `export_onnx`; `torch.export.load(path, extra_files=files)` with `files = {"about.json": ""}` reads the metadata.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "model.pt2"
        >>> model = pstn.from_pretrained(pstn.nn.mnist_pstn().save_pretrained(tempfile.mkdtemp()))
        >>> program = torch.export.load(export_program(model, path)).module()
        >>> probabilities, entropy, theta, boxes = program(torch.rand(3, 1, 28, 28))
        >>> probabilities.shape
        torch.Size([3, 10])
    """
    module, args, shapes, _, _, metadata = _plan(model, samples)
    with evaluating(module), _quiet():
        program = torch.export.export(module, args, dynamic_shapes=shapes)
        with write_atomically(path) as draft, draft.open("wb") as stream:
            torch.export.save(program, stream, extra_files={"about.json": json.dumps(metadata)})
    return Path(path)


def advice_on_running(model: Shareable) -> str:
    """What to know before opening a model's ONNX file in onnxruntime; empty if there is nothing.

    Example:
        >>> advice_on_running(pstn.nn.mnist_pstn())
        ''
    """
    transform = model.layer.transform if isinstance(model, TransformerClassifier) else None
    if transform is None or transform.ndim != 1 or not any(isinstance(part, CPAB) for part in transform.modules()):
        return ""
    session = 'InferenceSession(path, disabled_optimizers=["NchwcTransformer"])'
    return f"onnxruntime 1.31 crashes while it optimises a CPAB transformation of series: open the file with {session}"


def _sample_by_gathers(x: Tensor, grid: Tensor, mode: int, padding: int, align_corners: bool) -> Tensor:
    """Bilinear `grid_sample` of images in operators that onnxruntime's CPU is faster at than at GridSample."""
    if x.dim() != 4 or mode != 0 or padding == 2 or align_corners:
        return NotImplemented  # the operator itself
    at = [grid[..., axis].flatten(1) * (n / 2) + (n + 1) / 2 for axis, n in enumerate(x.shape[:1:-1])]
    return _interpolate(x, at, padding).unflatten(2, grid.shape[1:3])


def _interpolate(x: Tensor, at: Sequence[Tensor], padding: int) -> Tensor:
    """Read images (B, C, H, W) at columns and rows (B, N), in pixels of the image with a border of one: (B, C, N).

    On the border are zeros with padding 0, and nothing of it is read with padding 1.
    """
    at = [each.clamp(padding, n + 1 - padding) for each, n in zip(at, x.shape[:1:-1], strict=True)]
    corner = [each.floor() for each in at]
    across, down = ((each - low)[:, None] for each, low in zip(at, corner, strict=True))
    width = x.shape[3] + 3
    # NaN is no pixel: any will do, as its weight is NaN.
    index = (corner[1] * width + corner[0]).int().clamp(min=0)[:, None].expand(-1, x.shape[1], -1).long()
    value = F.pad(x, (1, 2, 1, 2)).flatten(2)

    def rise(values: Tensor, step: int) -> Tensor:  # of the few pixels instead of the many points
        return values[..., step:] - values[..., :-step]

    right, lower = rise(value, 1), rise(value, width)
    value, right, lower, both = (each.gather(2, index) for each in (value, right, lower, rise(right, width)))
    return value + right * across + (lower + both * across) * down


@contextmanager
def _warping_by_axes(module: nn.Module) -> Iterator[None]:
    """Let layers with an affine family warp by `_warp_by_axes`: half the operators on as many numbers as pixels."""
    layers = [each for each in module.modules() if isinstance(each, SpatialTransformer) and _is_affine(each)]
    for layer in layers:
        setattr(layer, "_warp", partial(_warp_by_axes, layer))  # noqa: B010  # a method, for a while
    try:
        yield
    finally:
        for layer in layers:
            delattr(layer, "_warp")


def _is_affine(layer: SpatialTransformer) -> bool:
    """Whether a layer maps the coordinates of images affinely and interpolates as `_interpolate` does."""
    affine = isinstance(layer.transform, MatrixTransform) and layer.transform.ndim == 2
    return affine and layer.mode == "bilinear" and layer.padding_mode != "reflection"


def _warp_by_axes(layer: SpatialTransformer, source: Tensor, theta: Tensor) -> Tensor:
    """What the layer's own `_warp` returns, (S, B, C, *size).

    The coordinates are sums of a part for each column and one for each row, in pixels from the start. They are no
    product of matrices, as some devices round those to a few bits.
    """
    assert isinstance(layer.transform, MatrixTransform)
    extents, size = tuple(source.shape[:1:-1]), layer.size or tuple(source.shape[2:])
    matrix = layer.transform.matrix(theta, aspect=extents).transpose(0, 1)  # (B, S, 2, 3)
    y, x = (base_grid((n,), dtype=matrix.dtype, device=matrix.device)[:, 0] for n in size)
    at = []
    for axis, n in enumerate(extents):
        across, down, shift = (matrix[:, :, axis] * (n / 2)).split(1, dim=-1)
        columns = across * x + (shift + (n + 1) / 2)
        at.append((columns[:, :, None] + (down * y)[..., None]).flatten(1))

    def read(image: Tensor) -> Tensor:
        found = _interpolate(image, at, int(layer.padding_mode == "border"))
        return found.unflatten(2, (len(theta), *size)).movedim(2, 0)

    dtype = torch.promote_types(source.dtype, matrix.dtype)
    return read_with_fill(read, source.to(dtype), layer.fill).to(source.dtype)


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the warnings and log messages of the exporters."""
    logger = logging.getLogger("torch.onnx")  # it lists packages that are not installed
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="|".join(_REMARKS))
            yield
    finally:
        logger.setLevel(before)


def _plan(
    model: Shareable, samples: Samples | None
) -> tuple[_Tensors, tuple[Tensor, ...], tuple[dict[int, Any], ...], list[str], list[str], dict[str, str]]:
    """The module, example arguments, dynamic shapes, names of inputs and outputs, and metadata for an exporter."""
    about = model.about
    if about is None or about.size is None:
        raise ValueError("the model does not say what input it takes: save it with about=pstn.ModelMetadata(...)")
    if about.masked:
        raise ValueError("the model must take no mask to be exported: train it with --policy resample")
    if samples is not None and not isinstance(model, PSTN):
        raise ValueError(f"samples must be left out for a {type(model).__name__}, which does not sample, got {samples}")
    batch = torch.export.Dim("batch")
    x = torch.rand(3, about.channels, *about.size, generator=torch.Generator().manual_seed(0))
    args, shapes, inputs, outputs = [about.prepare(x)], [{0: batch}], ["x"], ["probabilities", "entropy"]
    if isinstance(model, TransformerClassifier):
        outputs += ["theta", "boxes"]
    facts: dict[str, Any] = about.to_config()
    rule = fitting_rule(model, samples)
    facts["abstention"] = None if rule is None else asdict(rule)
    if samples is not None:
        assert isinstance(model, PSTN)
        outputs.append("mutual_information")
        facts |= {"samples": samples, "theta_dim": model.layer.transform.dim}
        if samples != "modes":
            facts["noise_width"] = width = model.layer.noise_width
            if require_positive_int("samples", samples) * width <= _MOST_NOISE:
                # That of `pstn predict`, so that a server gives its answers.
                source = torch.Generator().manual_seed(0)
                noise = draw_noise(samples, (1, width), method=model.layer.sampling, generator=source)
                facts["noise"] = [float(f"{value:.9g}") for value in noise.flatten().tolist()]
            args.append(torch.full((samples, 3, width), 0.4))
            shapes.append({1: batch})
            inputs.append("noise")
    if rule is not None:
        outputs += ["abstain"] * (rule.accuracy is not None) + ["set"] * (rule.coverage is not None)
    metadata = {name: json.dumps(value) for name, value in facts.items()}
    return _Tensors(model, samples), tuple(args), tuple(shapes), inputs, outputs, metadata
