"""The front door, the check, the contact sheet and the command line."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import pstn.data
from data_files import needs_real, save_image, write_idx
from pstn.cli import app
from pstn.data import KNOWN, DataError, MissingDataError, check, contact_sheet, get, load
from pstn.data.registry import find_known


def run(*arguments):
    return CliRunner().invoke(app, ["data", *map(str, arguments)], env={"COLUMNS": "300", "TERM": "dumb"})


def test_nothing_is_not_the_current_folder():
    with pytest.raises(ValueError, match="a folder or a file, got nothing"):
        load("")


def test_every_known_set_says_how_to_get_it(absent, tmp_path):
    for known in KNOWN.values():
        where = known.where()
        if where is None:
            with pytest.raises(MissingDataError, match=r"(?s)looked in .*cache.*(pstn data|pass its path)"):
                known.load()
        else:
            assert "ships with pstn" in where
            assert len(known.load().train) > 0


def test_names_in_any_case():
    assert find_known("MNIST").name == "mnist"
    assert find_known("italy_power_demand").name == "ItalyPowerDemand"
    assert find_known("nothing") is None


def test_unknown_names_get_a_hint(absent):
    with pytest.raises(MissingDataError, match="did you mean 'digits'"):
        load("digit")
    with pytest.raises(ValueError, match=r"name must be.*'zzz'.*mnist"):
        get("zzz")


def test_shipped_digits(absent):
    splits = load("digits")
    assert splits.sizes() == {"train": 3200, "validation": 800, "test": 1000}
    assert splits.train.counts().tolist() == [320] * 10
    assert float(splits.train.x.min()) == splits.train.fill


def test_folders_and_files_are_recognised(tmp_path, fake_mnist, yolo, mtsd):
    assert load(fake_mnist, verify=False, validation=0).sizes()["train"] == 60
    assert load(mtsd[0], source=None, size=8).sizes()["train"] == 2
    np.savez(tmp_path / "a.npz", x=np.zeros((4, 9)), y=[0, 1, 0, 1])
    assert len(load(tmp_path / "a.npz").train) == 4
    (tmp_path / "s.csv").write_text("a,1,2\nb,3,4\na,1,2\nb,3,4\n")
    assert len(load(tmp_path / "s.csv", test=0.5, validation=0).test) == 2
    save_image(tmp_path / "pictures" / "cat" / "1.png", 8, 8)
    assert len(load(str(tmp_path / "pictures"), test=0.0).train) == 1
    (tmp_path / "x.doc").write_text("x")
    with pytest.raises(DataError, match="is no file of a known kind"):
        load(tmp_path / "x.doc")


def test_a_folder_of_several_sets_asks_which(tmp_path):
    for name in ("A", "B"):
        (tmp_path / f"{name}_TRAIN.tsv").write_text("1\t2\t3\n")
    with pytest.raises(DataError, match=r"several sets \(A, B\)"):
        load(tmp_path)


def test_check_tells_good_from_bad(tmp_path, yolo, mtsd):
    root = tmp_path / "look"
    write_idx(root / "mnist" / "train-labels-idx1-ubyte.gz", np.zeros(3, np.uint8))
    write_idx(root / "mnist" / "emnist-ubyte.gz", np.zeros(3, np.uint8))
    (root / "mnist" / "t10k-labels-idx1-ubyte").write_bytes(b"nonsense")
    (root / "Toy_TRAIN.tsv").write_text("1\t2\t3\n")
    (root / "Toy_TEST.tsv").write_text("1\t2\tx\n")
    (root / "README.md").write_text("not data")
    np.save(root / "fold.npy", np.arange(3))
    save_image(root / "pictures" / "a" / "1.png", 4, 4)
    (root / "broken").mkdir()
    (root / "broken" / "1.png").write_bytes(b"x")
    found = {f.path.relative_to(root).as_posix(): (f.status, f.note) for f in check(root)}
    assert {name: status for name, (status, _) in found.items()} == {
        "mnist/train-labels-idx1-ubyte.gz": "differs",
        "mnist/emnist-ubyte.gz": "readable",
        "mnist/t10k-labels-idx1-ubyte": "damaged",
        "Toy_TRAIN.tsv": "readable",
        "Toy_TEST.tsv": "damaged",
        "fold.npy": "readable",
        "pictures/a": "readable",
        "broken/1.png": "damaged",
    }
    assert "line 1, column 3" in found["Toy_TEST.tsv"][1]
    (yolo_finding,) = check(yolo)
    assert yolo_finding.note.startswith("YOLO: 3 photos with 3 boxes, 2 of 2 classes")
    (mtsd_finding,) = check(mtsd[0])
    assert mtsd_finding.status == "readable"
    (mtsd[0] / "images" / "edge.jpg").unlink()
    (mtsd_finding,) = check(mtsd[0])
    assert mtsd_finding.status == "damaged"
    assert "edge.jpg" in mtsd_finding.note
    with pytest.raises(FileNotFoundError, match="there is no such file or folder"):
        list(check(tmp_path / "nowhere"))


@needs_real
@pytest.mark.parametrize("kind", ["mnist", "fashion-mnist", "ucr"])
def test_real_files_are_verified(kind):
    found = {f.path.name: f.status for f in check(pstn.data.data_folder() / kind) if f.status != "skipped"}
    differing = {name for name, status in found.items() if status != "verified"}
    assert differing == ({"TwoPatterns_TEST.tsv.gz", "Wafer_TEST.tsv.gz"} if kind == "ucr" else set())
    assert len(found) == (9 if kind == "ucr" else 4)


@pytest.mark.parametrize("name", ["digits", "rotated-digits", "ItalyPowerDemand"])
def test_contact_sheets(absent, tmp_path, name):
    path = contact_sheet(load(name).train, tmp_path / "sheet.png", title=name, count=20, columns=5)
    with Image.open(path) as image:
        assert image.format == "PNG"
        assert image.width == 5 * 122 + 10
        pixels = np.asarray(image.convert("L"))
    first_cell = pixels[44:156, 10:122]
    assert first_cell.std() > 5  # something is drawn there


def test_sheets_of_photos_masks_and_few_examples(yolo, tmp_path):
    photos = load(yolo, margin=20, size=16, test=0.0).train
    contact_sheet(photos, tmp_path / "a.png", count=50)
    padded = pstn.data.Split(
        torch.rand(2, 2, 9), torch.tensor([0, 1]), ("a", "b" * 50), mask=torch.arange(9).expand(2, 9) < 5
    )
    contact_sheet(padded, tmp_path / "b.png")
    assert (tmp_path / "a.png").stat().st_size > 0
    assert (tmp_path / "b.png").stat().st_size > 0


def test_list(absent):
    result = run("list")
    assert result.exit_code == 0
    for known in KNOWN.values():
        assert known.name in result.output
    assert "pstn data get mnist" in result.output
    assert "not set" in result.output


def test_get(absent):
    assert "ships with pstn" in run("get", "digits").output
    missing = run("get", "mnist")
    assert missing.exit_code == 2
    assert "train-images-idx3-ubyte.gz: is missing" in missing.output
    assert "Traceback" not in missing.output
    offline = run("get", "ucr:FordA").output
    for piece in ("FordA_TRAIN", "cache", "PSTN_OFFLINE", "pstn data get ucr:FordA"):
        assert piece in offline


def test_check_command(tmp_path):
    (tmp_path / "Toy_TRAIN.tsv").write_text("1\t2\t3\n")
    good = run("check", tmp_path)
    assert good.exit_code == 0
    assert "1 readable" in good.output
    (tmp_path / "Toy_TEST.tsv").write_text("1\t2\tx\n")
    bad = run("check", tmp_path)
    assert bad.exit_code == 1
    assert "damaged" in bad.output
    (tmp_path / "empty").mkdir()
    assert run("check", tmp_path / "empty").exit_code == 2
    nowhere = run("check", tmp_path / "nowhere")
    assert nowhere.exit_code == 2
    assert "there is no such file or folder" in nowhere.output


def test_show(absent, tmp_path):
    result = run("show", "ItalyPowerDemand", "--out", tmp_path / "s.png", "--part", "test", "--count", 6)
    assert result.exit_code == 0
    assert (tmp_path / "s.png").is_file()
    assert run("show", "digits", "--part", "nothing").exit_code == 2
    np.savez(tmp_path / "a.npz", x=np.zeros((4, 9)), y=[0, 1, 0, 1])
    assert "has no test part" in run("show", tmp_path / "a.npz", "--part", "test").output


@needs_real
def test_show_notes_a_file_that_differs(tmp_path):
    result = run("show", "wafer", "--out", tmp_path / "s.png")
    assert result.exit_code == 0
    assert "Wafer_TEST" in result.output


def test_reading_needs_torch_and_numpy_alone():
    """No optional package is imported until it is used."""
    code = (
        "import sys, pstn.data; pstn.data.load('ItalyPowerDemand'); pstn.data.load('digits');"
        "optional = 'typer rich matplotlib PIL pooch yaml requests scipy torchvision'.split();"
        "print([m for m in optional if m in sys.modules])"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "[]"
