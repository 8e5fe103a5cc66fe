"""Every Python block in the README and the docs runs, in order, as a reader would run it."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SLOW = {"README.md", "estimators.md"}  # they train models


def blocks(page):
    return re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(
    "page",
    [pytest.param(p, marks=[pytest.mark.slow] if p.name in SLOW else []) for p in PAGES if blocks(p)],
    ids=lambda page: page.name,
)
def test_code_on_the_page_runs(page):
    names = {"__name__": "__main__"}
    for block in blocks(page):
        exec(compile(block, str(page), "exec"), names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_within_the_project_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?://|#|mailto:)([^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


def test_the_family_in_the_docs_keeps_the_invariants_of_all_families():
    import torch

    names = {"__name__": "__main__"}
    exec(compile(blocks(ROOT / "docs" / "adding-a-family.md")[0], "adding-a-family.md", "exec"), names)
    box = names["Box"]()
    theta = (0.3 * torch.randn(4, 4, dtype=torch.float64)).requires_grad_()
    assert box.has_identity
    assert torch.autograd.gradcheck(lambda t: box.grid(t, (3, 4)), theta)
    assert torch.autograd.gradcheck(box.inverse, theta)
