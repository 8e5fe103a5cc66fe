"""What is run and what is reported are the same cells."""

from __future__ import annotations

from pathlib import Path

import pytest

from pstn.experiments import EXPERIMENTS, Lab
from pstn.experiments.studies import STUDIES
from pstn.report.tables import Line, tables_of


def planned(experiment):
    """The cells that `pstn reproduce` runs."""
    return [c for g in EXPERIMENTS[experiment].groups for c in g.cells(Lab(Path("results")))]


@pytest.mark.parametrize("study", STUDIES, ids=[study.experiment for study in STUDIES])
def test_every_cell_in_a_table_is_run_and_every_cell_that_is_run_is_in_a_table_or_figure(study):
    run = {(c.model, c.data, c.variant) for c in planned(study.experiment)}
    lines = [line for table in tables_of(study, []) for line in table.lines if isinstance(line, Line)]
    shown = {(line.model, line.data, line.variant) for line in lines}
    assert shown <= run
    assert {variant.split("-sobol")[0] for _, _, variant in run - shown} <= {"test-samples"}


@pytest.mark.parametrize("study", [s for s in STUDIES if s.search], ids=lambda study: study.experiment)
def test_the_search_reported_is_the_search_run(study):
    cells = planned(study.search.experiment)
    assert {c.data for c in cells} == set(study.search.published)
    assert all(c.variant.startswith(f"{study.search.name}=") for c in cells)
