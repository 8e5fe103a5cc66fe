"""The paper's numbers agree with each other: what it prints in bold, what it prints as means."""

from __future__ import annotations

import statistics

import pytest

from pstn.experiments import published
from pstn.experiments.studies import STUDIES
from pstn.report.statistics import best

ROWS = [
    *published.TABLE_1.items(),
    *published.TABLE_2.items(),
]


@pytest.mark.parametrize(("name", "row"), ROWS, ids=[name for name, _ in ROWS])
def test_our_rule_for_bold_gives_the_papers_bold(name, row):
    papers = list(row.values())
    bold = {at for at, paper in enumerate(papers) if paper.bold}
    assert best([paper.summary for paper in papers], higher_is_better=True) == bold


def test_our_rule_for_bold_gives_the_papers_in_calibration_too():
    papers = list(published.CALIBRATION_ERROR.values())
    bold = {at for at, paper in enumerate(papers) if paper.bold}
    assert best([paper.summary for paper in papers], higher_is_better=False) == bold


@pytest.mark.parametrize("model", ["CNN", "STN", "P-STN"])
def test_the_mean_row_is_the_mean_of_the_rows(model):
    mean = statistics.fmean(row[model].mean for row in published.TABLE_2.values())
    assert published.TABLE_2_MEAN[model].mean == pytest.approx(mean, abs=0.01)


def test_published_orders_are_those_that_the_paper_claims():
    for study in STUDIES:
        for order in study.orders:
            if order.better.paper and order.worse.paper:
                difference = order.better.paper.mean - order.worse.paper.mean
                assert (difference > 0) == order.better.metric.higher_is_better, order
