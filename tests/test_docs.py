"""Every Python block in the README and the docs runs, in order, as a reader would run it: in a fresh interpreter.

A block that cannot run here has a comment on the line above it, which says why and which no reader sees:

    <!-- not run: needs eight GPUs -->
"""

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FAST = {"index.md", "adding-a-family.md", "extending.md"}  # each page takes seconds: the others are slow tests


PUBLIC = ("nn", "data", "training", "estimators", "experiments", "export", "predict")
BLOCK = re.compile(r"^(<!-- not run: [^\n]+ -->\n)?```python\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)


# Nothing of pstn is imported but what the page itself imports: here, some other test may have imported it all.
READER = """
import json, sys
import torch
torch.manual_seed(0), torch.set_num_threads(1)
names = {"__name__": "__main__"}
for block in json.load(sys.stdin):
    exec(compile(block, sys.argv[1], "exec"), names)
"""


def blocks(page):
    return [code for excused, code in BLOCK.findall(page.read_text(encoding="utf-8")) if not excused]


@pytest.mark.parametrize(
    "page",
    [pytest.param(p, marks=[pytest.mark.slow] if p.name not in FAST else []) for p in PAGES if blocks(p)],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_code_on_the_page_runs(page):
    read = [sys.executable, "-W", "error", "-c", READER, str(page)]
    done = subprocess.run(read, input=json.dumps(blocks(page)), capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_within_the_project_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?://|#|mailto:)([^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


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
