"""Series: the formats, the policies, the UCR and UEA archives."""

import gzip
import re
import warnings
import zipfile

import numpy as np
import pytest
import torch

import pstn.data
from data_files import needs_real, refused
from pstn.data import DataWarning, MissingDataError, load_series_file, load_ucr, read_series, stack_series
from pstn.data.series import UCR_RECORDS, ArchiveRecord

TSV = "1\t0.5\t-1.5\n2\t1e-3\t2\n"
TS = "# a comment\n@problemName Toy\n@timeStamps false\n@classLabel true 1 2\n@data\n\n0.5,-1.5:1\n1e-3,2:2\n"
ARFF = (
    "% a comment\n@relation toy\n@attribute att0 numeric\n@attribute att1 numeric\n@attribute target {1,2}\n@data\n"
    "0.5,-1.5,1\n1e-3,2,2\n"
)
MULTI_TS = "@dimensions 2\n@classLabel true up down\n@data\n1,2,3:4,5,6:up\n7,8,9:10,11,12:down\n"
MULTI_ARFF = (
    "@attribute channels relational\n@attribute t0 numeric\n@end channels\n@attribute 'the class' {up, down}\n@data\n"
    "'1,2,3\\n4,5,6',up\n'7,8,9\\n10,11,12',down\n"
)


def write(path, text):
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize("change", [str, lambda text: text.replace("\n", "\r\n")])
@pytest.mark.parametrize("suffix", [".tsv", ".ts", ".arff", ".csv", ".tsv.gz", ".ts.gz", ".arff.gz"])
def test_the_formats_agree(tmp_path, suffix, change):
    text = {".tsv": TSV, ".ts": TS, ".arff": ARFF, ".csv": TSV.replace("\t", ",")}[suffix.removesuffix(".gz")]
    series = read_series(write(tmp_path / f"Toy_TRAIN{suffix}", change(text)))
    assert [v.tolist() for v in series.values] == [[[0.5, -1.5]], [[0.001, 2.0]]]
    assert series.labels == ("1", "2")


@pytest.mark.parametrize(("suffix", "text"), [(".ts", MULTI_TS), (".arff", MULTI_ARFF)])
def test_channels(tmp_path, suffix, text):
    series = read_series(write(tmp_path / f"Toy{suffix}", text))
    assert series.values[1].tolist() == [[7, 8, 9], [10, 11, 12]]
    assert series.labels == series.declared == ("up", "down")
    shorter = read_series(write(tmp_path / f"Toy{suffix}", text.replace("10,11,12", "10,11"))).values[1]
    assert shorter[1].tolist()[:2] == [10, 11]
    assert np.isnan(shorter[1, 2])


BAD = {
    "non-numeric cell": (".tsv", "1\t0.5\tabc\n", "line 1, column 3"),
    "underscore": (".tsv", "1\t0.5\t1_0\n", "column 3"),
    "infinite": (".tsv", "1\t0.5\tinf\n", "line 1, column 3"),
    "too large": (".tsv", "1\t0.5\t1e39\n", "column 3"),
    "no values": (".tsv", "1\t0.5\n2\n", "line 2"),
    "no label": (".tsv", "?\t0.5\n", "line 1"),
    "empty": (".tsv", "", ""),
    "binary": (".tsv", "1\t0.5\0\n", "line 1"),
    "other suffix": (".doc", TSV, ""),
    "no header": (".csv", "up,1,two,3\nup,1,2,3\n", "line 1, column 3"),
    "label last": (".csv", "1,2,3,up\n4,5,6,down\n", "line 1, column 4"),
    "decimal comma": (".csv", "up;1,5;2\n", "line 1, column 2"),
    "quotes": (".csv", '"up,1,2\n', "line 1"),
    "unknown label": (".ts", TS.replace(":2", ":3"), "line 8"),
    "values first": (".ts", "0.5:1\n" + TS, "line 1"),
    "no values at all": (".ts", TS.replace("0.5,-1.5:1", "1"), "line 7"),
    "class twice": (".ts", TS.replace("true 1 2", "true 1 1.0"), "header"),
    "no classes": (".ts", TS.replace("@classLabel true 1 2", ""), "header"),
    "time stamps": (".ts", TS.replace("0.5,-1.5", "(0,0.5),(1,-1.5)"), "line 7"),
    "ts cell": (".ts", TS.replace("-1.5", "x"), "line 7, column 2"),
    "arff label": (".arff", ARFF.replace("2,2", "2,9"), "line 8"),
    "arff open list": (".arff", ARFF.replace("{1,2}", "{1,2"), "header"),
    "arff sparse": (".arff", ARFF.replace("0.5,-1.5,1", "{0 0.5}"), "line 7"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_named_with_the_line(tmp_path, name):
    suffix, text, place = BAD[name]
    error = refused("Toy_TRAIN", read_series, write(tmp_path / f"Toy_TRAIN{suffix}", text))
    assert place in (error.place or "")


def test_lines_are_read_one_by_one(tmp_path, monkeypatch):
    """What is wrong on the first line is reported before the rest is read, which would fail here."""
    path = write(tmp_path / "Toy.tsv.gz", "a\t1\tx\n" + "".join(f"a\t{i / 7}\n" for i in range(20_000)))
    path.write_bytes(path.read_bytes()[:-1000])
    refused("line 1, column 3", read_series, path)
    (tmp_path / "Toy.tsv").write_bytes(b"\xef\xbb\xbfa\t1\nb\xff\t1\n")
    refused(r"line 2: .*utf-8", read_series, tmp_path / "Toy.tsv")
    monkeypatch.setattr("pstn.data.files.LONGEST_LINE", 1000)
    refused(r"line 2: .*1,000", read_series, write(tmp_path / "Toy.tsv", "a\t1\n" + "b\t" + "1" * 2000))


def raw(*values):
    arrays = tuple(np.atleast_2d(np.array(v, dtype=float)) for v in values)
    return pstn.data.RawSeries("toy.tsv", arrays, ("a",) * len(arrays), tuple(range(1, len(arrays) + 1)))


nan = float("nan")


@pytest.mark.parametrize(
    ("values", "policy", "line"),
    [
        (([1, 2, 3], [1, 2]), "refuse", 2),
        (([1, 2, 3], [1, nan, 3]), "refuse", 2),
        (([1, 2, 3], [1, 2, nan]), "refuse", 2),  # NaN at the end is a shorter series
        (([1, 2, nan], [3, 4, nan]), "refuse", 1),  # what is missing in all is not cut off
        (([1, 2], [[1, 2], [3, 4]]), "refuse", 2),  # channels
        *((([1, 2], [nan, nan]), policy, 2) for policy in ("refuse", "resample", "pad")),
        (([[1, 2], [3, 4]], [[1, 2], [nan, nan]]), "resample", 2),
    ],
)
def test_series_that_do_not_fit_are_named(values, policy, line):
    refused(rf"toy\.tsv: line {line}:", stack_series, [raw(*values)], policy)


def test_resample():
    train, test = stack_series([raw([0, 1, 2, 3, 4], [0, nan, 4]), raw([1, 2, 3, 4, 5, 6, 7, 8, 9])], "resample")
    assert train[0][0, 0].tolist() == [0, 1, 2, 3, 4]
    assert train[0][1, 0].tolist() == [0, 1, 2, 3, 4]
    assert test[0][0, 0].tolist() == [1, 3, 5, 7, 9]  # to the length of the training part
    [(x, mask)] = stack_series([raw([nan, 2, 3, nan], [1, 2, 3, nan])], "resample")
    assert x[:, 0].tolist() == [[2, 2, 3], [1, 2, 3]]
    assert mask is None


def test_pad():
    train, test = stack_series([raw([1, 2], [3, nan, 5]), raw([1, 2, 3, 4])], "pad")
    assert train[0].tolist() == [[[1, 2, 0, 0]], [[3, 4, 5, 0]]]
    assert train[1].tolist() == [[True, True, False, False], [True, False, True, False]]
    assert test[1].all()
    [(x, mask)] = stack_series([raw([[1, nan, 3], [nan, nan, nan]])], "pad")
    assert x[0].tolist() == [[1, 2, 3], [0, 0, 0]]
    assert not mask.any()


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_a_header_is_skipped(separator, tmp_path):
    rows = [["class", "t0", "t1"], ["up", "1", "2"], ["down", "3", "4"]]
    series = read_series(write(tmp_path / "mine.csv", "\n".join(map(separator.join, rows))))
    assert (series.labels, series.lines) == (("up", "down"), (2, 3))
    assert series.values[1].tolist() == [[3.0, 4.0]]


@pytest.mark.parametrize("separator", [",", ";", "\t", " "])
def test_quotes_around_cells_are_not_part_of_them(separator, tmp_path):
    label = f"up{separator}or{separator}down"
    rows = [['"class"', '"t0"', '"t1"'], [f'"{label}"', "1.5", '"2"'], ['"5""-pipe"', "3", '""']]
    series = read_series(write(tmp_path / "mine.csv", "\n".join(map(separator.join, rows))))
    assert series.labels == (label, '5"-pipe')
    assert np.array_equal(np.stack(series.values)[:, 0], [[1.5, 2], [3, nan]], equal_nan=True)


@pytest.mark.parametrize("label", ['5"', '5"x', 'a "b c"', "a;b"])
def test_a_label_may_hold_marks(tmp_path, label):
    assert read_series(write(tmp_path / "mine.csv", f"{label},1,2\n")).labels == (label,)


def test_the_shipped_set(absent):
    splits = pstn.data.load_italy_power_demand()
    assert splits.sizes() == {"train": 50, "validation": 17, "test": 1029}
    assert splits.test.x.shape == (1029, 1, 24)
    assert splits.test.counts().tolist() == [513, 516]
    # The archive's series have mean 0 and standard deviation 1.
    assert torch.allclose(splits.test.x.mean(-1), torch.zeros(()), atol=1e-4)
    assert torch.allclose(splits.test.x.std(-1), torch.ones(()), atol=1e-4)
    assert torch.equal(load_ucr("italy_power_demand").test.x, splits.test.x)
    assert load_ucr("ItalyPowerDemand", policy="pad").test.mask.all()
    refused("policy", load_ucr, "ItalyPowerDemand", policy="nonsense", error=ValueError)


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


@pytest.fixture
def toy(tmp_path):
    write(tmp_path / "Toy_TRAIN.tsv", "".join(f"{i % 2}\t{i}\t{i + 1}\n" for i in range(8)))
    write(tmp_path / "Toy_TEST.tsv", "0\t1\t2\n1\t3\t4\n")
    return tmp_path


def test_a_folder_of_your_own(toy):
    assert load_ucr("Toy", root=toy).sizes() == {"train": 6, "validation": 2, "test": 2}
    assert load_ucr("Toy", root=toy, validation=0).validation is None
    (toy / "Toy").mkdir()
    for path in toy.glob("*.tsv"):
        path.rename(toy / "Toy" / path.name)
    assert load_ucr("Toy", root=toy).sizes()["test"] == 2
    divided = load_series_file((toy / "Toy" / "Toy_TRAIN.tsv").rename(toy / "mine.tsv"), test=0.25, validation=0.5)
    assert divided.sizes() == {"train": 3, "validation": 3, "test": 2}


def test_a_training_file_has_its_test_file_whatever_its_format(toy):
    write(toy / "Toy_TEST.ts.gz", TS.replace("1 2", "0 1").replace(":1", ":0").replace(":2", ":1"))
    (toy / "Toy_TEST.tsv").unlink()
    for path in (toy / "Toy_TRAIN.tsv", toy / "Toy_TEST.ts.gz", toy):
        assert pstn.data.load(path).sizes() == {"train": 6, "validation": 2, "test": 2}


def test_no_test_part_is_taken_from_a_training_file(toy):
    (toy / "Toy_TEST.tsv").unlink()
    refused(r"Toy_TEST.*need_test=False", load_series_file, toy / "Toy_TRAIN.tsv", error=MissingDataError)
    assert load_series_file(toy / "Toy_TRAIN.tsv", need_test=False).sizes() == {"train": 6, "validation": 2, "test": 0}
    (toy / "Toy_TRAIN.tsv").rename(toy / "Toy_TEST.tsv")
    refused("Toy_TRAIN", load_series_file, toy / "Toy_TEST.tsv", need_test=False, error=MissingDataError)


def test_a_test_part_that_does_not_fit(toy):
    write(toy / "Toy_TEST.tsv", "0\t1\t2\n7\t3\t4\n")
    refused(r"Toy_TEST.tsv: line 2: unknown label '7'", load_ucr, "Toy", root=toy)
    write(toy / "Toy_TEST.tsv", "0\t1\t2\t3\n1\t3\t4\n")
    refused("policy=", load_ucr, "Toy", root=toy)
    assert load_ucr("Toy", root=toy, policy="resample").test.x.shape == (2, 1, 2)
    padded = load_ucr("Toy", root=toy, policy="pad")
    assert padded.test.x.shape == (2, 1, 3)
    assert padded.train.mask.sum() == 12


def test_a_file_that_differs_is_used_with_a_warning(toy, monkeypatch):
    monkeypatch.setitem(UCR_RECORDS, "Toy", ArchiveRecord(2, 2, (8, 3), ("0" * 64, None)))
    for load in (lambda: load_ucr("Toy", root=toy), lambda: load_series_file(toy / "Toy_TRAIN.tsv")):
        with pytest.warns(DataWarning) as caught:
            assert len(load().test) == 2
        train, test = (str(w.message) for w in caught)
        assert re.search(f"Toy_TRAIN.*{'0' * 64}", train)
        assert "Toy_TEST" in test


def test_names_cannot_lead_elsewhere():
    for name in ("../Toy", "a/b", "", "C:x", "..", "-x"):
        refused("name must be", load_ucr, name, error=ValueError)


@pytest.fixture
def site(monkeypatch):
    """A site that serves one zip after the other, each a dict of members; text is served as it is."""
    answers = []

    def serve(remote, folder, progress=None):
        answer, path = answers.pop(0), folder / remote.name
        if isinstance(answer, str):
            path.write_text(answer)
            return path
        with zipfile.ZipFile(path, "w") as archive:
            for name, text in answer.items():
                archive.writestr(name, text)
        return path

    monkeypatch.setattr("pstn.data.files.download", serve)
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
        ({"Toy_TRAIN.ts": TS, "Toy_TEST.ts": "junk"}, "Toy_TEST.ts"),
        ({"Toy_TRAIN.ts": TS}, "holds none of Toy_TEST.ts"),
    ],
)
def test_a_bad_answer_of_the_site_leaves_nothing_and_the_next_succeeds(site, tmp_path, bad, message):
    site += [bad, GOOD]
    refused(message, load_ucr, "Toy", error=MissingDataError)
    assert not list((tmp_path / "cache").rglob("*Toy*"))
    assert load_ucr("Toy", validation=0).sizes()["test"] == 2
