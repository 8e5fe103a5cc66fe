"""The UCR and UEA archives: the shipped set, real ones, and sets of one's own."""

import gzip
import warnings
import zipfile

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
from pstn.data.series import UCR_RECORDS, ArchiveRecord, compare_with_archive, values_sha256

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
    assert load_ucr("ItalyPowerDemand", policy="pad").test.mask.all()
    with pytest.raises(ValueError, match="policy must be one of"):
        load_ucr("ItalyPowerDemand", policy="nonsense")


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
    assert len(caught) == (name == "wafer")  # whose first test series is missing in common copies


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
    for part in ("FordA_TRAIN", str(tmp_path / "cache" / "ucr"), "pstn data get ucr:FordA"):
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


def test_a_training_file_has_its_test_file_whatever_its_format(toy):
    write(toy / "Toy_TEST.ts.gz", TS.replace("1 2", "0 1").replace(":1", ":0").replace(":2", ":1"))
    (toy / "Toy_TEST.tsv").unlink()
    for name in ("Toy_TRAIN.tsv", "Toy_TEST.ts.gz"):
        assert load_series_file(toy / name).sizes() == {"train": 6, "validation": 2, "test": 2}
    assert pstn.data.load(toy).sizes() == {"train": 6, "validation": 2, "test": 2}


def test_no_test_part_is_carved_out_of_a_training_file(toy):
    (toy / "Toy_TEST.tsv").unlink()
    with pytest.raises(MissingDataError, match=r"Toy_TEST.tsv.*is missing.*need_test=False"):
        load_series_file(toy / "Toy_TRAIN.tsv")
    assert load_series_file(toy / "Toy_TRAIN.tsv", need_test=False).sizes() == {"train": 6, "validation": 2, "test": 0}
    (toy / "Toy_TRAIN.tsv").rename(toy / "Toy_TEST.tsv")
    with pytest.raises(MissingDataError, match="Toy_TRAIN"):
        load_series_file(toy / "Toy_TEST.tsv", need_test=False)


@needs_real
def test_a_file_of_the_archive_is_compared_when_given_by_its_path():
    with pytest.warns(DataWarning, match="Wafer_TEST"):
        load_series_file(pstn.data.data_folder() / "ucr" / "Wafer_TRAIN.tsv.gz")


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
    monkeypatch.setitem(UCR_RECORDS, "Toy", ArchiveRecord(2, 2, (8, 3), ("0" * 64, None)))
    with pytest.warns(DataWarning) as caught:
        splits = load_ucr("Toy", root=toy)
    assert len(splits.test) == 2
    messages = [str(w.message) for w in caught]
    assert "Toy_TRAIN" in messages[0]
    assert "0" * 64 in messages[0]
    assert "Toy_TEST" in messages[1]


def test_line_ends_do_not_change_the_checksum(toy, monkeypatch):
    path = toy / "Toy_TRAIN.tsv"
    monkeypatch.setitem(UCR_RECORDS, "Toy", ArchiveRecord(2, 2, (8, 2), (values_sha256(read_series(path)), None)))
    write(path, path.read_text().replace("\n", "\r\n"))
    assert compare_with_archive("Toy", "TRAIN", read_series(path)) is None


@needs_real
@pytest.mark.parametrize("name", ["FaceAll", "PhalangesOutlinesCorrect"])
def test_the_values_are_compared_whatever_the_format(tmp_path, name):
    series = read_series(pstn.data.data_folder() / "ucr" / f"{name}_TRAIN.tsv.gz")
    rows = zip(series.values, series.labels, strict=True)
    lines = [",".join(map(repr, values[0].tolist())) + f":{label}" for values, label in rows]
    head = f"@univariate true\n@classLabel true {' '.join(sorted(set(series.labels)))}\n@data\n"
    path = write(tmp_path / f"{name}_TRAIN.ts", head + "\n".join(lines))
    assert compare_with_archive(name, "TRAIN", read_series(path)) is None
    write(path, head + "\n".join(lines).replace("1", "2", 1))
    assert compare_with_archive(name, "TRAIN", read_series(path)) is not None


@pytest.mark.parametrize("name", ["../Toy", "a/b", "", "C:x", "..", "-x"])
def test_names_cannot_lead_elsewhere(name):
    with pytest.raises(ValueError, match="name must be"):
        load_ucr(name)


@pytest.fixture
def site(monkeypatch):
    """A site that serves one zip after the other, each a dict of members; text is served as it is."""
    answers = []

    def serve(remote, folder, progress=None):
        folder.mkdir(parents=True, exist_ok=True)
        answer = answers.pop(0)
        if isinstance(answer, str):
            (folder / remote.name).write_text(answer)
            return folder / remote.name
        with zipfile.ZipFile(folder / remote.name, "w") as archive:
            for name, text in answer.items():
                archive.writestr(name, text)
        return folder / remote.name

    monkeypatch.setattr("pstn.data.series.download", serve)
    monkeypatch.delenv("PSTN_OFFLINE")
    monkeypatch.delenv("PSTN_DATA", raising=False)
    return answers


GOOD = {"Toy_TRAIN.ts": TS, "Toy_TEST.ts": TS}


def test_the_archives_site(site, tmp_path):
    """The zip of the site is unpacked member by member; what else is in it stays there."""
    site.append({**GOOD, "../../evil": "x"})
    splits = pstn.data.load("ucr:Toy", validation=0)
    assert splits.sizes() == {"train": 2, "validation": 0, "test": 2}
    assert sorted(p.name for p in (tmp_path / "cache" / "ucr").rglob("*")) == ["Toy", "Toy_TEST.ts", "Toy_TRAIN.ts"]
    assert not list(tmp_path.rglob("evil"))


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("<html>not found</html>", "is not a zip archive"),
        ({"Toy_TRAIN.ts": TS, "Toy_TEST.ts": "junk"}, "Toy_TEST.ts in it cannot be read: values before the @data line"),
        ({"Toy_TRAIN.ts": "junk", "Toy_TEST.ts": TS}, "values before the @data line"),
        ({"Toy_TRAIN.ts": TS}, "holds none of Toy_TEST.ts"),
    ],
)
def test_a_bad_answer_of_the_site_leaves_nothing_and_the_next_succeeds(site, tmp_path, bad, message):
    site += [bad, GOOD]
    with pytest.raises(MissingDataError, match=message):
        load_ucr("Toy")
    assert not list((tmp_path / "cache").rglob("*Toy*"))
    assert load_ucr("Toy", validation=0).sizes()["test"] == 2
