"""Shared fixtures: a fixed seed for every test, and names that docstring examples may use."""

import os
import tempfile

import hypothesis
import pytest
import torch

import pstn

hypothesis.settings.register_profile("pstn", deadline=None, max_examples=40, derandomize=True)
hypothesis.settings.load_profile("pstn")

# Two-core machines run many small tensors faster without a thread pool's hand-overs; tests must not depend on it.
torch.set_num_threads(int(os.environ.get("PSTN_TEST_THREADS", "1")))

# Runs are noted in the user's cache: not in that of whoever runs the tests.
os.environ["PSTN_CACHE"] = tempfile.mkdtemp(prefix="pstn-cache-")

# Its examples compile aeon's code for half a minute: a slow test runs them.
collect_ignore = ["src/pstn/estimators/aeon.py"]


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
