"""Shared fixtures: a fixed seed for every test, no traces of it afterwards, and names for docstring examples."""

import os
import signal
import sys
import tempfile
from pathlib import Path

import hypothesis
import pytest
import torch

import pstn

hypothesis.settings.register_profile("pstn", deadline=None, max_examples=40, derandomize=True)
hypothesis.settings.load_profile("pstn")

# Two-core machines run many small tensors faster without a thread pool's hand-overs; tests must not depend on it.
THREADS = os.environ.get("PSTN_TEST_THREADS", "1")
torch.set_num_threads(int(THREADS))
# numba, which aeon compiles with, shares OpenMP with torch: its number of threads becomes that of torch.
os.environ["NUMBA_NUM_THREADS"] = THREADS

# Runs are noted in the user's cache: not in that of whoever runs the tests.
os.environ["PSTN_CACHE"] = tempfile.mkdtemp(prefix="pstn-cache-")

# Its examples compile aeon's code for half a minute: a slow test runs them.
collect_ignore = ["src/pstn/estimators/aeon.py"]


# What pytest sets in each phase of a test, and what torch's compiler and Lightning set when they are first used.
_OF_OTHERS = ("PYTEST_", "KMP_", "PYTORCH_", "TORCHINDUCTOR_", "_TORCHINDUCTOR_")


def _process():
    """What a test could change for those after it, by name."""
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    return {f"${name}": value for name, value in os.environ.items() if not name.startswith(_OF_OTHERS)} | {
        "threads": torch.get_num_threads(),
        "dtype": torch.get_default_dtype(),
        "device": torch.get_default_device(),
        "gradients": torch.is_grad_enabled(),
        "determinism": (torch.get_deterministic_debug_mode(), torch.utils.deterministic.fill_uninitialized_memory),
        "kernels": (matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic),
        "signals": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)],
        "folder": Path.cwd(),
        "import path": [entry for entry in sys.path if "site-packages" not in entry],  # setuptools adds its own
    }


@pytest.fixture(autouse=True)
def _traceless():
    """A test leaves its process as it found it: those after it must not depend on whether it ran."""
    before = _process()
    yield
    after = _process()
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    assert not changed, {name: (before.get(name), after.get(name)) for name in changed}


def pytest_ignore_collect(collection_path, config):
    """Importing aeon takes seconds: where only quick tests run, its file, which has none, is not read."""
    return True if collection_path.name == "test_aeon.py" and config.option.markexpr == "not slow" else None


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _doctest_names(doctest_namespace):
    doctest_namespace.update(torch=torch, nn=torch.nn, pstn=pstn)


def pytest_terminal_summary(terminalreporter):
    """What tests have measured and recorded, such as the load test of the server."""
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            terminalreporter.write_line(f"{report.nodeid}: {name}: {value}")
