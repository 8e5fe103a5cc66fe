"""The check of folders that were not made to be checked, and what a folder is taken for."""

import collections
import io
import sys
import tarfile

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from data_files import needs_real, save_image, write_mtsd
from pstn.cli import app
from pstn.data import DataError, check, data_folder, load
from pstn.data.registry import detect


def run(*arguments, **env):
    return CliRunner().invoke(app, ["data", *map(str, arguments)], env={"COLUMNS": "80", "TERM": "dumb", **env})


def found(path):
    return {finding.path.name: (finding.status, finding.note) for finding in check(path)}


def test_links_to_folders_are_passed_over(tmp_path):
    (tmp_path / "Toy_TRAIN.tsv").write_text("1\t2\t3\n")
    for name in ("me", "you"):
        (tmp_path / name).symlink_to(".")
    assert list(found(tmp_path)) == ["Toy_TRAIN.tsv"]
    assert list(found(tmp_path / "me")) == ["Toy_TRAIN.tsv"]


def test_what_cannot_be_opened_is_a_finding(tmp_path, monkeypatch):
    (tmp_path / "Toy_TRAIN.tsv").write_text("1\t2\t3\n")
    (tmp_path / "a.npy").write_bytes(b"x")
    (tmp_path / "locked").mkdir()

    def locked(path):
        if path.name == "locked":
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    def broken(*args, **kwargs):
        raise RuntimeError("out of order")

    listed = type(tmp_path).iterdir
    monkeypatch.setattr(type(tmp_path), "iterdir", locked)
    monkeypatch.setattr(sys.modules["pstn.data.check"], "read_npy", broken)
    notes = found(tmp_path)
    assert notes["locked"] == ("damaged", "cannot be read (Permission denied)")
    assert notes["a.npy"] == ("damaged", "RuntimeError: out of order")
    assert notes["Toy_TRAIN.tsv"][0] == "readable"


def tar_yolo(yolo, path):
    with tarfile.open(path, "w:gz") as archive:
        for name in ("images", "labels", "classes.txt"):
            archive.add(yolo / name, name)
    return path


def test_archives_are_checked_without_filling_the_cache(yolo, tmp_path):
    path = tar_yolo(yolo, tmp_path / "signs.tar.gz")
    assert found(path)["signs.tar.gz"][1].startswith("YOLO: 3 photos")
    (yolo / "labels" / "a.txt").write_text("0 0.5\n")
    tar_yolo(yolo, path)
    assert found(path) == {
        "signs.tar.gz": ("damaged", "labels/a.txt: line 1: 5 columns (class, x, y, width, height) are expected, got 2")
    }
    assert not (tmp_path / "cache").exists()


def test_damaged_archives(tmp_path):
    (tmp_path / "x.tar").write_bytes(b"\xfd7zXZ\x00" + bytes(range(200)))
    with tarfile.open(tmp_path / "y.tar", "w") as archive:
        for name in ("a", "a/b"):
            archive.addfile(tarfile.TarInfo(name), io.BytesIO())
    assert {status for status, _ in found(tmp_path).values()} == {"damaged"}
    assert run("check", tmp_path).exit_code == 1


def test_many_images_are_work_in_proportion(tmp_path, monkeypatch):
    picture = save_image(tmp_path / "3" / "0.png", 4, 4).read_bytes()
    for count in (3, 300):
        (tmp_path / str(count)).mkdir(exist_ok=True)
        for i in range(count):
            (tmp_path / str(count) / f"{i}.png").write_bytes(picture)
    (tmp_path / "300" / "7.png").write_bytes(b"x")
    calls = collections.Counter()

    def counted(name, function):
        def call(*args, **kwargs):
            calls[name] += 1
            return function(*args, **kwargs)

        return call

    for name in ("iterdir", "glob", "rglob"):
        monkeypatch.setattr(type(tmp_path), name, counted("listed", getattr(type(tmp_path), name)))
    module = sys.modules["pstn.data.check"]
    monkeypatch.setattr(module, "open_image", counted("opened", module.open_image))
    assert found(tmp_path / "3") == {"3": ("readable", "3 images decode")}
    few = calls["listed"]
    calls.clear()
    notes = found(tmp_path / "300")
    assert notes["7.png"][0] == "damaged"
    assert notes["300"] == ("readable", "299 images decode")
    assert calls == {"opened": 300, "listed": few}


def test_an_npz_of_three_axes_is_readable(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((4, 9, 9)), y=[0, 1, 0, 1])
    status, note = found(tmp_path)["a.npz"]
    assert status == "readable"
    assert "kind=" in note
    assert run("show", tmp_path / "a.npz", "--out", tmp_path / "s.png").exit_code == 2
    assert run("show", tmp_path / "a.npz", "--kind", "image", "--out", tmp_path / "s.png").exit_code == 0
    assert "only for .npz" in run("show", "digits", "--kind", "image").output


def test_a_yolo_folder_with_annotations_is_not_mtsd(yolo, mtsd):
    (yolo / "annotations").mkdir()
    assert detect(yolo) == "yolo"
    assert load(yolo, margin=20, size=16, test=0.0).sizes()["train"] == 3
    assert found(yolo)["signs"][1].startswith("YOLO")
    assert detect(mtsd[0]) == detect(mtsd[0] / "mtsd_v2_fully_annotated") == "mtsd"


def test_other_folders(tmp_path, fake_mnist):
    assert detect(fake_mnist) == "mnist"
    save_image(tmp_path / "pets" / "cat" / "1.png", 8, 8)
    assert detect(tmp_path / "pets") == "classes"
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "Toy_TRAIN.tsv").write_text("1\t2\n")
    assert detect(tmp_path / "s") == detect(tmp_path / "s" / "Toy_TRAIN.tsv") == "series"
    (tmp_path / "x.doc").write_text("x")
    assert detect(tmp_path / "x.doc") is None
    with pytest.raises(DataError, match="is no file of a known kind"):
        load(tmp_path / "x.doc")


@needs_real
def test_clothes_are_known_by_what_is_in_the_files(tmp_path):
    for name, kind in (("mnist", "fashion-mnist"), ("fashion", "mnist")):
        (tmp_path / name).mkdir()
        for path in (data_folder() / kind).iterdir():
            (tmp_path / name / path.name).symlink_to(path)
        assert detect(tmp_path / name) == kind


def test_show_makes_no_large_sources(mtsd, tmp_path, monkeypatch):
    assert run("show", mtsd[0], "--out", tmp_path / "s.png").exit_code == 0
    sizes = {path.name for path in (tmp_path / "cache" / "crops").rglob("*.npy")}
    assert sizes == {"224.npy"}


def test_a_home_that_is_not_there():
    for command in (("list",), ("get", "mnist"), ("show", "~nosuchuser/x")):
        result = run(*command, PSTN_DATA="~nosuchuser/x")
        assert result.exit_code == 2
        assert "nosuchuser" in result.output
        assert isinstance(result.exception, SystemExit)


def test_brackets_in_names_are_no_markup(tmp_path):
    folder = tmp_path / "d[/x]"
    save_image(folder / "cat" / "1.png", 8, 8)
    target = tmp_path / "a[/b].png"
    result = run("show", folder, "--out", target)
    assert result.exit_code == 0
    assert str(target) in result.output.replace("\n", "")
    assert "d[/x]" in run("check", folder).output
    assert run("list", PSTN_DATA=str(folder)).exit_code == 0


def test_a_list_in_a_pipe_is_a_table_of_tabs(absent, tmp_path):
    lines = [line.split("\t") for line in run("list").output.split("\n") if "\t" in line]
    assert {len(line) for line in lines} == {4}
    assert "placed-fashion-mnist" in [line[0] for line in lines]


def test_a_huge_number_is_a_finding(mtsd):
    root, annotations, splits = mtsd
    annotations["alone"]["width"] = 10**400
    write_mtsd(root, annotations, splits)
    assert found(root)["mtsd"][0] == "damaged"


def test_tables_among_other_files_are_read_and_notes_are_said_to_be_skipped(tmp_path):
    (tmp_path / "mine.csv").write_text("class,t0,t1\nup,1,2\ndown,3,4\nup,,2\n")
    (tmp_path / "readme.txt").write_text("These are my series.\nI measured them.\n")
    notes = found(tmp_path)
    status, note = notes["mine.csv"]
    assert status == "readable"
    assert "1 missing value(s)" in note
    assert "'down'" in note
    assert notes["readme.txt"][0] == "skipped"
    (tmp_path / "short.tsv").write_text("a\t1\t2\tNaN\tNaN\na\t1\t2\t3\t4\n")  # as the archive pads what is short
    assert found(tmp_path)["short.tsv"][1] == "2 series of 1 channel(s), lengths 2 to 4, 1 classes"
    assert CliRunner().invoke(app, ["data", "check", str(tmp_path)]).exit_code == 0
    (tmp_path / "mine.csv").unlink()
    (tmp_path / "short.tsv").unlink()
    assert CliRunner().invoke(app, ["data", "check", str(tmp_path)]).exit_code == 2


def test_an_image_that_training_refuses_is_not_called_readable(tmp_path):
    Image.fromarray(np.zeros((8, 8), np.float32)).save(tmp_path / "floats.tif")
    status, note = found(tmp_path)["floats.tif"]
    assert (status, "32 bits a pixel" in note) == ("damaged", True)


def test_arrays_that_are_no_data_set_are_skipped_in_a_folder(tmp_path):
    np.savez(tmp_path / "folds.npz", fold_0=np.arange(3))
    (finding,) = check(tmp_path)
    assert finding.status == "skipped"
    (finding,) = check(tmp_path / "folds.npz")
    assert finding.status == "damaged"
