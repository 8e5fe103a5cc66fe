"""Data sets by name, what a folder is taken for, the check, and the command line."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import pstn.data
from data_files import needs_real, refused, save_image, tar_of_folder, write_idx
from pstn.cli import app
from pstn.data import KNOWN, MissingDataError, check, contact_sheet, data_folder, get, load
from pstn.data.registry import detect, find_known


def run(*arguments, **env):
    return CliRunner().invoke(app, ["data", *map(str, arguments)], env={"COLUMNS": "300", "TERM": "dumb", **env})


def found(path):
    return {finding.path.name: (finding.status, finding.note) for finding in check(path)}


def test_every_known_set_says_how_to_get_it(absent):
    for known in KNOWN.values():
        if known.where() is None:
            refused(r"(?s)looked in .*cache.*(pstn data|pass its path)", known.load, error=MissingDataError)
        else:
            assert "ships with pstn" in known.where()
            assert len(known.load().train) > 0
    assert load("digits").sizes() == {"train": 3200, "validation": 800, "test": 1000}
    assert load("digits").train.counts().tolist() == [320] * 10


def test_names(absent):
    assert find_known("MNIST").name == "mnist"
    assert find_known("italy_power_demand").name == "ItalyPowerDemand"
    assert find_known("nothing") is None
    refused("digits", load, "digit", error=MissingDataError)
    refused("digits", get, "zzz", error=ValueError)
    refused("data", load, "", error=ValueError)


def test_folders_and_files_are_recognised(tmp_path, fake_mnist, yolo, mtsd):
    np.savez(tmp_path / "a.npz", x=np.zeros((4, 9)), y=[0, 1, 0, 1])
    (tmp_path / "s.csv").write_text("a,1,2\nb,3,4\na,1,2\nb,3,4\n")
    save_image(tmp_path / "pictures" / "cat" / "1.png", 8, 8)
    (yolo / "annotations").mkdir()  # which does not make it MTSD
    (tmp_path / "x.doc").write_text("x")
    for path, kind, settings, count in (
        (fake_mnist, "mnist", {"verify": False, "validation": 0}, 60),
        (mtsd[0], "mtsd", {"source": None, "size": 8}, 2),
        (yolo, "yolo", {"margin": 20, "size": 16, "test": 0.0}, 3),
        (tmp_path / "a.npz", "npz", {}, 4),
        (tmp_path / "s.csv", "series", {"test": 0.5, "validation": 0}, 2),
        (tmp_path / "pictures", "classes", {"test": 0.0}, 1),
    ):
        assert detect(path) == kind
        assert len(load(path, **settings).train) == count
    assert detect(mtsd[0] / "mtsd_v2_fully_annotated") == "mtsd"
    refused(r"x\.doc", load, tmp_path / "x.doc")
    for name in ("A", "B"):
        (tmp_path / f"{name}_TRAIN.tsv").write_text("1\t2\t3\n")
    refused(r"\(A, B\)", load, tmp_path)


def test_check_tells_good_from_bad(tmp_path, yolo, mtsd):
    root = tmp_path / "look"
    write_idx(root / "mnist" / "train-labels-idx1-ubyte.gz", np.zeros(3, np.uint8))
    write_idx(root / "mnist" / "emnist-ubyte.gz", np.zeros(3, np.uint8))
    (root / "mnist" / "t10k-labels-idx1-ubyte").write_bytes(b"nonsense")
    (root / "x.tar").write_bytes(b"\xfd7zXZ\x00" + bytes(range(200)))
    texts = {"Toy_TRAIN.tsv": "1\t2\t3\n", "Toy_TEST.tsv": "1\t2\tx\n", "README.md": "not data"}
    texts |= {"mine.csv": "class,t0,t1\nup,1,2\ndown,3,4\n", "readme.txt": "These are my series.\nI measured them.\n"}
    for name, text in texts.items():
        (root / name).write_text(text)
    np.save(root / "fold.npy", np.arange(3))
    np.savez(root / "folds.npz", fold_0=np.arange(3))
    np.savez(root / "axes.npz", x=np.zeros((4, 9, 9)), y=[0, 1, 0, 1])
    save_image(root / "pictures" / "a" / "1.png", 4, 4)
    (root / "broken").mkdir()
    (root / "broken" / "1.png").write_bytes(b"x")
    Image.fromarray(np.zeros((8, 8), np.float32)).save(root / "broken" / "floats.tif")  # which training refuses
    (root / "again").symlink_to(".")
    status = {finding.path.relative_to(root).as_posix(): finding.status for finding in check(root)}
    expected = {
        "verified": [],
        "differs": ["mnist/train-labels-idx1-ubyte.gz"],
        "readable": ["mnist/emnist-ubyte.gz", "Toy_TRAIN.tsv", "mine.csv", "fold.npy", "axes.npz", "pictures/a"],
        "damaged": ["mnist/t10k-labels-idx1-ubyte", "Toy_TEST.tsv", "x.tar", "broken/1.png", "broken/floats.tif"],
        "skipped": ["readme.txt", "folds.npz"],
    }
    assert status == {name: status for status, names in expected.items() for name in names}
    assert "line 1, column 3" in found(root)["Toy_TEST.tsv"][1]
    assert [finding.status for finding in check(root / "folds.npz")] == ["damaged"]
    assert found(yolo)["signs"][1].startswith("YOLO: 3 photos with 3 boxes of 2 classes")
    assert found(mtsd[0])["mtsd"][0] == "readable"
    (mtsd[0] / "images" / "edge.jpg").unlink()
    status, note = found(mtsd[0])["mtsd"]
    assert (status, "edge.jpg" in note) == ("damaged", True)
    refused("nowhere", lambda: list(check(tmp_path / "nowhere")), error=FileNotFoundError)


@needs_real
@pytest.mark.parametrize("kind", ["mnist", "fashion-mnist", "ucr"])
def test_real_files_are_verified(kind):
    status = {f.path.name: f.status for f in check(data_folder() / kind) if f.status != "skipped"}
    differing = {name for name, status in status.items() if status != "verified"}
    assert differing == ({"TwoPatterns_TEST.tsv.gz", "Wafer_TEST.tsv.gz"} if kind == "ucr" else set())
    assert len(status) == (9 if kind == "ucr" else 4)


def test_what_cannot_be_opened_is_a_finding(tmp_path, monkeypatch):
    (tmp_path / "Toy_TRAIN.tsv").write_text("1\t2\t3\n")
    (tmp_path / "a.npy").write_bytes(b"x")
    (tmp_path / "locked").mkdir()
    listed = type(tmp_path).iterdir

    def locked(path):
        if path.name == "locked":
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    def broken(*args, **kwargs):
        raise RuntimeError("out of order")

    monkeypatch.setattr(type(tmp_path), "iterdir", locked)
    monkeypatch.setattr("pstn.data.files.read_npy", broken)
    notes = found(tmp_path)
    assert notes["locked"] == ("damaged", "Permission denied")
    assert notes["a.npy"] == ("damaged", "RuntimeError: out of order")
    assert notes["Toy_TRAIN.tsv"][0] == "readable"


def test_archives_are_checked_without_filling_the_cache(yolo, tmp_path):
    path = tmp_path / "signs.tar.gz"
    for text, status in (("0 0.5 0.5 0.2 0.4\n", "readable"), ("0 0.5\n", "damaged")):
        (yolo / "labels" / "a.txt").write_text(text)
        tar_of_folder(path, yolo)
        assert found(path)["signs.tar.gz"][0] == status
    assert "labels/a.txt: line 1" in found(path)["signs.tar.gz"][1]
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("name", ["rotated-digits", "ItalyPowerDemand", "masked"])
def test_contact_sheets(absent, tmp_path, name):
    mask = torch.arange(9).expand(20, 9) < 5
    masked = pstn.data.Split(torch.rand(20, 2, 9), torch.arange(20) % 2, ("a", "b" * 50), mask=mask)
    data = masked if name == "masked" else load(name).train
    with Image.open(contact_sheet(data, tmp_path / "sheet.png", title=name, count=20, columns=5)) as image:
        assert (image.format, image.width) == ("PNG", 5 * 122 + 10)
        pixels = np.asarray(image.convert("L"))
    assert pixels[44:156, 10:122].std() > 5  # something is drawn in the first cell


def test_list(absent):
    result = run("list")
    assert result.exit_code == 0
    assert [line.split()[0] for line in result.output.split("\n\n")[0].splitlines()] == list(KNOWN)
    assert "pstn data get mnist" in result.output
    assert [entry["name"] for entry in json.loads(run("list", "--json").output)] == list(KNOWN)


def test_get(absent):
    assert "ships with pstn" in run("get", "digits").output
    for name, pieces in (("mnist", ["train-images-idx3"]), ("ucr:FordA", ["FordA_TRAIN", "pstn data get ucr:FordA"])):
        result = run("get", name)
        assert result.exit_code == 2
        assert all(piece in result.output for piece in [*pieces, "cache", "PSTN_OFFLINE"])
        assert "Traceback" not in result.output


def test_check_command(tmp_path):
    folder = tmp_path / "d[/x]"  # brackets are no markup
    (folder / "empty").mkdir(parents=True)
    for name, text, code, word in (("TRAIN", "1\t2\t3\n", 0, "1 readable"), ("TEST", "1\t2\tx\n", 1, "damaged")):
        (folder / f"Toy_{name}.tsv").write_text(text)
        result = run("check", folder)
        assert (result.exit_code, word in result.output, "d[/x]" in result.output) == (code, True, True)
    assert run("check", folder / "empty").exit_code == 2
    assert run("check", folder / "nowhere").exit_code == 2


def test_show(absent, tmp_path, mtsd):
    np.savez(tmp_path / "a.npz", x=np.zeros((4, 9, 9)), y=[0, 1, 0, 1])
    sheet = tmp_path / "a[/b].png"
    for arguments, code in (
        (["ItalyPowerDemand", "--part", "test", "--count", 6], 0),
        (["digits", "--part", "nothing"], 2),
        ([tmp_path / "a.npz"], 2),
        ([tmp_path / "a.npz", "--kind", "image"], 0),
        ([tmp_path / "a.npz", "--kind", "image", "--part", "test"], 2),
        (["digits", "--kind", "image"], 2),
        ([mtsd[0]], 0),
    ):
        result = run("show", *arguments, "--out", sheet)
        assert result.exit_code == code
        assert sheet.is_file() == (code == 0)
        assert code or str(sheet) in result.output
        sheet.unlink(missing_ok=True)
    assert {path.name for path in (tmp_path / "cache" / "crops").rglob("*.npy")} == {"224.npy"}  # no large sources


def test_a_home_that_is_not_there():
    for command in (("list",), ("get", "mnist"), ("show", "~nosuchuser/x")):
        result = run(*command, PSTN_DATA="~nosuchuser/x")
        assert result.exit_code == 2
        assert "nosuchuser" in result.output
