"""Every example runs, prints its figures and leaves its picture; with `--quick`, in seconds."""

import importlib
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture(autouse=True)
def _examples_on_the_path(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)


def run(name, *arguments):
    return importlib.import_module(name).main([*map(str, arguments)])


def pictures(folder):
    files = (path for path in folder.iterdir() if path.is_file())
    return sorted(path.name for path in files if path.read_bytes().startswith(b"\x89PNG"))


@pytest.mark.filterwarnings("ignore:The transformation is the identity")  # too short to learn anything
@pytest.mark.parametrize(
    ("name", "labels", "files"),
    [
        ("images", {"CNN", "P-STN"}, ["images.png"]),
        ("series", {"CNN", "P-STN"}, ["series.png"]),
        ("wrap_digits", {"rotated", "shifted"}, ["wrap-rotated.png", "wrap-shifted.png"]),
        ("wrap_pretrained", {"large", "before", "after"}, ["wrap-pretrained.png"]),
    ],
)
def test_an_example_runs_and_leaves_its_picture(name, labels, files, tmp_path, capsys):
    if name == "wrap_pretrained":
        pytest.importorskip("efficientnet_lite_pytorch")
    scores = run(name, "--quick", "--out", tmp_path)
    assert set(scores) == labels
    assert pictures(tmp_path) == files
    assert "accuracy" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore:Training failed. The pose was not learned")  # too short to learn anything
def test_volumes_are_taught(capsys):
    scores = run("volumes", "--quick")
    assert set(scores) == {f"{where}, {by}" for where in ("centred", "moved") for by in ("classifier alone", "taught")}
    assert "Regions of 50, 90 and 99% hold" in capsys.readouterr().out
