"""Code on the pages runs, their links lead somewhere, and their numbers are those of the results.

All Python blocks of a page and all code cells of a notebook run in order, as a reader would run them: in a fresh
interpreter. A block that cannot run here has a comment on the line above it, which says why and which no reader sees:

    <!-- not run: needs eight GPUs -->
"""

import importlib
import json
import os
import re
import runpy
import subprocess
import sys
import textwrap
from pathlib import Path
from statistics import fmean

import pytest
from scipy import stats

from pstn.experiments import EXPERIMENTS, calibration, time_series, traffic_signs
from pstn.report.page import measured
from pstn.report.results import read_results
from pstn.report.statistics import paired, summarise, welch

ROOT = Path(__file__).parents[1]
RESULTS, MEASURED = ROOT / "results", ROOT / "docs" / "experiments"
CLAIMS = runpy.run_path(str(ROOT / "docs" / "make_claims_table.py"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
STUDIES = [experiment for experiment in EXPERIMENTS.values() if not experiment.extra]
BEYOND = [experiment for experiment in EXPERIMENTS.values() if experiment.extra and experiment.tables]
API = sorted((ROOT / "docs" / "api").glob("*.rst"))
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
FAST = {"index.md"}  # each page takes seconds: the others are slow tests


PUBLIC = ("nn", "data", "training", "estimators", "experiments", "export", "predict")
BLOCK = re.compile(r"^(<!-- not run: [^\n]+ -->\n)?```python\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)


# Nothing of pstn is imported but what the page itself imports: here, some other test may have imported it all.
RST_BLOCK = re.compile(r"^\.\. code-block:: python\n\n((?:   .*\n|\n)+)", flags=re.MULTILINE)

READER = """
import json, sys
import torch
torch.manual_seed(0), torch.set_num_threads(1)
names = {"__name__": "__main__"}
for block in json.load(sys.stdin):
    exec(compile(block, sys.argv[1], "exec"), names)
"""


def blocks(page):
    text = page.read_text(encoding="utf-8")
    if page.suffix == ".ipynb":
        return ["".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    if page.suffix == ".rst":
        return [textwrap.dedent(code) for code in RST_BLOCK.findall(text)]
    return [code for excused, code in BLOCK.findall(text) if not excused]


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.slow] if page.name not in FAST else [])
        for page in [*PAGES, *API, *NOTEBOOKS]
        if blocks(page)
    ],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_code_on_the_page_runs(page):
    read = [sys.executable, "-W", "error", "-c", READER, str(page)]
    environment = {**os.environ, "MPLBACKEND": "agg"}
    done = subprocess.run(
        read, input=json.dumps(blocks(page)), capture_output=True, text=True, cwd=ROOT, env=environment
    )
    assert done.returncode == 0, done.stderr


def test_every_api_page_has_an_example_and_no_notebook_has_output():
    assert [page.name for page in API if not blocks(page)] == []
    assert len(NOTEBOOKS) == 3
    for notebook in NOTEBOOKS:
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells), notebook


def test_no_picture_stands_on_two_pages():
    used = [
        (page.parent / target).resolve()
        for page in PAGES
        for target in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", page.read_text(encoding="utf-8"))
    ]
    assert sorted(picture.name for picture in {*used} if used.count(picture) > 1) == []


def headings(page):
    """The anchors of a page, as GitHub and MyST make them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def broken_links(page):
    for target, anchor in re.findall(r"\]\((?!https?:|mailto:)([^)#\s]*)#?([^)]*)\)", page.read_text(encoding="utf-8")):
        path = page.parent / target if target else page
        if not path.exists() or (anchor and anchor not in headings(path)):
            yield f"{page.name}: a link to {target}#{anchor}"


def stated_by_hand():
    """Pages, and what their prose must say by the results."""

    def score(experiment, variant, metric):
        scale = 100 if metric == "accuracy" else 1
        # The ablations are on folds of our own: they are compared with what is trained on the same.
        data = calibration.OWN_FOLDS if experiment == "calibration" else "MNIST100"
        found = [r for r in read_results(RESULTS, experiment) if (r.variant, r.data) == (variant, data)]
        return [scale * r.metrics[metric] for r in sorted(found, key=lambda r: r.seed)]

    def told_p(a, b):
        return f"p = {p:.3f}" if (p := paired(a, b)) >= 0.001 else "p < 0.001"

    fixed = score("ablations", "augmentation=fixed", "ece")
    calibrated = score("calibration", "w=0.0001", "ece")
    told = [f"{fmean(calibrated):.4f}", told_p(calibrated, fixed)]
    told.append(f"{fmean(score('ablations', 'augmentation=none', 'accuracy')):.2f}%")
    for metric, digits in (("accuracy", 2), ("nll", 3), ("ece", 4)):
        variants = ("posterior=per-input", "posterior=global", "augmentation=fixed")
        ours, shared, fixed = (score("ablations", variant, metric) for variant in variants)
        told += [f"{fmean(each):.{digits}f}" for each in (ours, shared, fixed)]
        told += [told_p(ours, fixed), told_p(ours, shared)]
    values = CLAIMS["values"]

    def pair(experiment, data, metric, *models):
        return [values(experiment, model, data, metric) for model in models]

    off, on = (values("ablations", "P-STN", "rotated", "accuracy", f"dropout={state}") for state in ("off", "on"))
    on += values("rotated-mnist", "P-STN", "rotated", "accuracy")
    told += [f"p = {p:.3f}" for p in (welch(summarise(off), summarise(on)), stats.levene(off, on).pvalue)]
    yield from (("experiments/ablations.md", text) for text in told)
    for model in ("STN", "P-STN"):
        for data in (traffic_signs.TEN, traffic_signs.ALL):
            found, constant = pair("traffic-signs", data, "iou", model, traffic_signs.CONSTANT)
            yield from (("experiments/traffic-signs.md", f"{fmean(each):.3f}") for each in (found, constant))
            yield "experiments/traffic-signs.md", f"{paired(found, constant):.3f}"
    for experiment, size in (("mnist-subsets", 1000), ("mnist-own-folds", 1000), ("mnist-own-folds", 3000)):
        ours, stn = pair(experiment, f"MNIST{size}", "ece", "P-STN", "STN")
        yield f"experiments/{experiment}.md", f"{fmean(ours):.4f} against {fmean(stn):.4f}, {told_p(ours, stn)}"
    for model, data in (("taught, 4 modes", "rotated"), ("taught poses, 4 modes", "posed")):
        covered = [100 * fmean(values("finding", model, data, f"covered_{level}")) for level in (50, 90, 99)]
        yield "experiments/finding.md", "{:.2f}, {:.2f} and {:.2f}%".format(*covered)
    tested = {r.settings["test_examples"] for r in read_results(RESULTS, "rotated-12k")}
    yield "experiments/rotated-12k.md", f"tested on {', '.join(f'{count:,}' for count in tested)} images"
    fitted = [values("little-data", "P-STN by pstn.fit", "MNIST100", m, "default") for m in ("accuracy", "nll")]
    told = f"give {100 * fmean(fitted[0]):.1f}% and an NLL of {fmean(fitted[1]):.3f} on 100 digits"
    yield "experiments/little-data.md", told
    sobol = values("prediction-cost", "Sobol", "MNIST100", "nll", "S=4")
    independent = values("prediction-cost", "independent", "MNIST100", "nll", "S=10")
    told_nll = f"{fmean(sobol):.3f} against {fmean(independent):.3f}"
    yield "experiments/prediction-cost.md", f"{told_nll}, significantly worse (p = {paired(sobol, independent):.4f})"
    profiles = time_series.profiles_of(read_results(RESULTS, "time-series"))
    yield from (("experiments/time-series.md", f"{ratio:.2f}") for ratio in time_series.left_out_ratios(profiles))
    yield "experiments/time-series.md", f"(p = {time_series.uneven(profiles):.3f}, one-sided"


def wrong_numbers():
    _, texts = measured(RESULTS, STUDIES)
    for name, text in {**texts, **measured(RESULTS, BEYOND)[1]}.items():
        if text not in (MEASURED / f"{name}.md").read_text(encoding="utf-8"):
            yield f"{name}.md: the measured part; run `pstn report --docs docs/experiments`"
    for page, text in stated_by_hand():
        prose = (ROOT / "docs" / page).read_text(encoding="utf-8").partition("<!-- measured")[0]
        if text not in " ".join(prose.split()):
            yield f"{page}: {text}"
    security = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    make_table = runpy.run_path(str(ROOT / "docs" / "make_limits_table.py"))["with_table"]
    if make_table(security) != security:
        yield "SECURITY.md: the limits; run `python docs/make_limits_table.py`"
    claims = (MEASURED / "claims.md").read_text(encoding="utf-8")
    if CLAIMS["with_tables"](claims) != claims:
        yield "claims.md: the tables; run `python docs/make_claims_table.py`"


def test_links_and_numbers_are_right():
    problems = [problem for page in [*PAGES, *ROOT.glob("[CS]*.md")] for problem in broken_links(page)]
    if RESULTS.exists():  # a source distribution has none
        problems += wrong_numbers()
    assert problems == []


@pytest.mark.skipif(not RESULTS.exists(), reason="a source distribution has no results")
def test_a_row_that_no_claim_stands_behind_is_an_error():
    with pytest.raises(ValueError, match="rotated-mnist declares no claim"):
        CLAIMS["orders"]("rotated-mnist", "Nobody claims this", lambda claim: False)


@pytest.mark.skipif(not RESULTS.exists(), reason="a source distribution has no results")
def test_orders_that_holm_does_not_leave_significant_are_marked(monkeypatch):
    names = CLAIMS["with_tables"].__globals__

    def sections():
        told = [f"p = {p}{names['tested'](p)}" for p in (0.001, 0.04, 0.5, 0.04)]
        return {"A": [names["Row"]("It is so", names["YES"], "; ".join(told), "rotated-mnist")]}

    monkeypatch.setitem(names, "sections", sections)
    page = names["with_tables"]("<!-- claims: begin -->\n<!-- claims: end -->")
    assert "p = 0.001; p = 0.04†; p = 0.5; p = 0.04†" in page
    assert "Of 3 tests of an order, 2 find a difference" in page  # the same test, told twice, counts once
    assert "one by one; 1 of them after Holm's correction" in page


def test_broken_links_are_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# A `title`\n[a](page.md) [b](#a-title) [c](none.md) [d](page.md#none) [e](https://none)")
    assert list(broken_links(page)) == ["page.md: a link to none.md#", "page.md: a link to page.md#none"]


def test_every_command_has_its_section():
    from typer.main import get_command

    from pstn.cli import app

    text = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
    for name in get_command(app).commands:
        assert f"| `pstn {name}" in text, f"{name}: add it to the table of docs/command-line.md"
        assert f"\n## {name.capitalize()}\n" in text, f"{name}: add a section to docs/command-line.md"


def test_every_public_name_is_in_the_api_pages():
    pytest.importorskip("sklearn")
    text = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "api").glob("*.rst"))
    documented = re.findall(r"^\.\. auto\w+:: (\S+)$", text, flags=re.MULTILINE)
    assert len(documented) == len(set(documented))
    modules = ("pstn", *(f"pstn.{name}" for name in PUBLIC))
    for module in modules:
        for name in importlib.import_module(module).__all__:
            # A name at the top is documented there, whatever other module has it too.
            found = {f"{module}.{name}", f"pstn.{name}"} & {*documented, *modules}
            assert found, f"{module}.{name} is missing: add it to a page of docs/api"
