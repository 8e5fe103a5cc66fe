"""The UCR and UEA archives: the shipped set, real ones, and sets of one's own."""

import gzip
import warnings

import pytest
import torch

import pstn.data
from data_files import needs_real
from pstn.data import (
    DataError,
    DataWarning,
    MissingDataError,
    load_italy_power_demand,
    load_series_file,
    load_ucr,
    read_series,
)
from pstn.data.ucr import compare_with_archive
from pstn.data.ucr_sums import UCR_RECORDS, PartRecord, SetRecord

TS = """# a comment
@problemName Toy
@timeStamps false
@missing false
@univariate true
@equalLength true
@seriesLength 2
@classLabel true 1 2
@data
0.5,-1.5:1
1e-3,2:2
"""


def write(path, text):
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def test_the_shipped_set(absent):
    splits = load_italy_power_demand()
    assert splits.sizes() == {"train": 50, "validation": 17, "test": 1029}
    assert splits.test.x.shape == (1029, 1, 24)
    assert splits.test.counts().tolist() == [513, 516]
    # The archive's series have mean 0 and standard deviation 1.
    assert torch.allclose(splits.test.x.mean(-1), torch.zeros(()), atol=1e-4)
    assert torch.allclose(splits.test.x.std(-1), torch.ones(()), atol=1e-4)
    assert torch.equal(load_ucr("italy_power_demand").test.x, splits.test.x)


REAL = {
    "FaceAll": ((420, 140, 1690), (1, 131), 14),
    "PhalangesOutlinesCorrect": ((1350, 450, 858), (1, 80), 2),
    "TwoPatterns": ((750, 250, 4000), (1, 128), 4),
    "wafer": ((750, 250, 6163), (1, 152), 2),
}


@needs_real
@pytest.mark.parametrize("name", REAL)
def test_real_sets(name):
    sizes, shape, classes = REAL[name]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        splits = load_ucr(name)
    assert tuple(splits.sizes().values()) == sizes
    assert tuple(splits.test.x.shape[1:]) == shape
    assert len(splits.train.classes) == classes
    assert all(part.counts().min() > 0 for part in splits)
    told = [str(w.message) for w in caught]
    expected = {"TwoPatterns": "rounded to float32", "wafer": "first series is missing"}
    if name in expected:
        assert len(told) == 1
        assert expected[name] in told[0]
        assert "used as it is" in told[0]
    else:
        assert told == []


@needs_real
def test_real_wafer_labels_are_kept():
    with pytest.warns(DataWarning, match="Wafer_TEST"):
        splits = load_ucr("Wafer")
    assert splits.train.classes == ("-1", "1")


@needs_real
def test_a_missing_test_part():
    with pytest.raises(MissingDataError, match=r"UWaveGestureLibraryX_TEST.*pstn data get UWaveGestureLibraryX"):
        load_ucr("uWaveGestureLibrary_X")
    splits = load_ucr("uWaveGestureLibrary_X", need_test=False)
    assert splits.test is None
    assert len(splits.train) + len(splits.validation) == 896


def test_absent_offline(absent, tmp_path):
    with pytest.raises(MissingDataError) as caught:
        load_ucr("FordA")
    for part in ("FordA_TRAIN", str(tmp_path / "cache" / "ucr"), "pstn data get FordA"):
        assert part in str(caught.value)


@pytest.fixture
def toy(tmp_path):
    write(tmp_path / "Toy_TRAIN.tsv", "".join(f"{i % 2}\t{i}\t{i + 1}\n" for i in range(8)))
    write(tmp_path / "Toy_TEST.tsv", "0\t1\t2\n1\t3\t4\n")
    return tmp_path


def test_a_folder_of_ones_own(toy):
    splits = load_ucr("Toy", root=toy)
    assert splits.sizes() == {"train": 6, "validation": 2, "test": 2}
    assert load_ucr("Toy", root=toy, validation=0).validation is None
    (toy / "Toy").mkdir()
    for path in toy.glob("*.tsv"):
        path.rename(toy / "Toy" / path.name)
    assert load_ucr("Toy", root=toy).sizes()["test"] == 2


def test_a_single_file_is_divided(toy):
    (toy / "Toy_TRAIN.tsv").rename(toy / "mine.tsv")
    assert load_series_file(toy / "mine.tsv", test=0.25, validation=0.5).sizes() == {
        "train": 3,
        "validation": 3,
        "test": 2,
    }


def test_a_label_that_training_never_saw(toy):
    write(toy / "Toy_TEST.tsv", "0\t1\t2\n7\t3\t4\n")
    with pytest.raises(DataError, match=r"Toy_TEST.tsv: line 2: unknown label '7': the training part has 0, 1"):
        load_ucr("Toy", root=toy)


def test_unequal_lengths_by_policy(toy):
    write(toy / "Toy_TEST.tsv", "0\t1\t2\t3\n1\t3\t4\n")
    with pytest.raises(DataError, match="policy="):
        load_ucr("Toy", root=toy)
    assert load_ucr("Toy", root=toy, policy="resample").test.x.shape == (2, 1, 2)
    padded = load_ucr("Toy", root=toy, policy="pad")
    assert padded.test.x.shape == (2, 1, 3)
    assert padded.train.mask.sum() == 12


def test_a_file_that_differs_is_used_with_a_warning(toy, monkeypatch):
    record = SetRecord(2, 2, PartRecord(8, "0" * 64), PartRecord(3))
    monkeypatch.setitem(UCR_RECORDS, "Toy", record)
    with pytest.warns(DataWarning) as caught:
        splits = load_ucr("Toy", root=toy)
    assert len(splits.test) == 2
    messages = [str(w.message) for w in caught]
    assert "differs from the archive's checksum" in messages[0]
    assert "holds 2 series, the archive's file 3" in messages[1]


def test_line_ends_do_not_change_the_checksum(toy, monkeypatch):
    import hashlib

    text = (toy / "Toy_TRAIN.tsv").read_text()
    sha = hashlib.sha256(text.encode()).hexdigest()
    monkeypatch.setitem(UCR_RECORDS, "Toy", SetRecord(2, 2, PartRecord(8, sha), PartRecord(2)))
    write(toy / "Toy_TRAIN.tsv", text.replace("\n", "\r\n"))
    assert compare_with_archive("Toy", "TRAIN", read_series(toy / "Toy_TRAIN.tsv")) == []


@pytest.mark.parametrize("name", ["../Toy", "a/b", "", "C:x", "..", "-x"])
def test_names_cannot_lead_elsewhere(name):
    with pytest.raises(ValueError, match="name must be"):
        load_ucr(name)


def test_the_archives_site(toy, tmp_path, monkeypatch):
    """The zip of the site is unpacked member by member; what else is in it stays there."""
    import zipfile

    import pstn.data.ucr as ucr

    def serve(remote, folder, progress=None):
        folder.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(folder / remote.name, "w") as archive:
            archive.writestr("Toy_TRAIN.ts", TS)
            archive.writestr("Toy_TEST.ts", TS)
            archive.writestr("../../evil", "x")
        return folder / remote.name

    monkeypatch.setattr(ucr, "download", serve)
    monkeypatch.delenv("PSTN_OFFLINE")
    monkeypatch.delenv("PSTN_DATA", raising=False)
    splits = pstn.data.load("ucr:Toy", validation=0)
    assert splits.sizes() == {"train": 2, "validation": 0, "test": 2}
    assert sorted(p.name for p in (tmp_path / "cache").rglob("*") if p.is_file()) == ["Toy_TEST.ts", "Toy_TRAIN.ts"]
    assert not list(tmp_path.rglob("evil"))


def test_the_site_answers_with_a_page(tmp_path, monkeypatch):
    import pstn.data.ucr as ucr

    def serve(remote, folder, progress=None):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / remote.name).write_text("<html>not found</html>")
        return folder / remote.name

    monkeypatch.setattr(ucr, "download", serve)
    monkeypatch.delenv("PSTN_OFFLINE")
    with pytest.raises(MissingDataError, match="is not a zip archive"):
        load_ucr("NoSuchSet")
    assert not list((tmp_path / "cache").rglob("*.zip"))
