"""The model card: what README.md of a shared model says, with the header that the Hugging Face Hub reads."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from pstn.nn.about import About

_TASKS = {1: "time-series-classification", 2: "image-classification"}
_WORDS = {"PSTN": "A probabilistic spatial transformer network", "STN": "A spatial transformer network"}


def card_text(description: Mapping[str, Any], about: About, parameters: int) -> str:
    """The text of a model card.

    Args:
        description: of the model, as config.json has it.
        about: what belongs to it.
        parameters: how many it has.

    Example:
        >>> text = card_text({"type": "ConvClassifier"}, About(("a", "b"), 1), parameters=7)
        >>> text.splitlines()[5]
        '# A convolutional network for 2 classes'
    """
    title = f"{_WORDS.get(description['type'], 'A convolutional network')} for {len(about.classes)} classes"
    layer = description.get("layer")
    facts = [f"- parameters: {parameters:,}", f"- input: {_input(about)}"]
    if layer is not None:
        facts.append(f"- transformation: {layer['transform']['type']}")
    if "test_samples" in description:
        facts.append(f"- samples for a prediction: {description['test_samples']}")
    if about.data:
        facts.append(f"- trained on: {_code(about.data)}")
    if about.kl_weight is not None and description["type"] == "PSTN":
        facts.append(f"- KL weight: {about.kl_weight:g}")
    facts.append(f"- classes: {', '.join(map(_code, about.classes[:100]))}{', …' if len(about.classes) > 100 else ''}")
    scores = {name: value for name, value in about.metrics.items() if math.isfinite(value)}
    table = [f"| {name.replace('|', '/')} | {value:.4g} |" for name, value in scores.items()]
    if table:
        table = ["| on the test part | |", "| --- | ---: |", *table, ""]
    return "\n".join([*_header(about, title, scores), f"# {title}", "", *facts, "", *table, *_use(about)])


def _input(about: About) -> str:
    channels = f"{about.channels} channel{'s' if about.channels > 1 else ''}"
    size = "any size" if about.size is None else " × ".join(map(str, about.size))
    if set(about.mean) == {0.0} and set(about.std) == {1.0}:
        return f"{channels}, {size}"
    mean, std = (", ".join(f"{value:g}" for value in values) for values in (about.mean, about.std))
    return f"{channels}, {size}, normalised: (x − [{mean}]) / [{std}]"


def _header(about: About, title: str, scores: Mapping[str, float]) -> list[str]:
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


def _use(about: About) -> list[str]:
    if about.ndim == 1:
        file, call = "series.csv", "model.about.prepare(series))  # series (B, C, L), floats as in the files"
    else:
        file, call = "image.png", "model.about.prepare(images))  # images (B, C, H, W): uint8, or floats from 0 to 1"
    load = 'import pstn\n\nmodel = pstn.from_pretrained("path/of/this/folder")'
    return [f"```python\n{load}\np = model({call}\n```\n", f"Or: `pstn predict path/of/this/folder {file}`."]
