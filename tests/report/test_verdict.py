from __future__ import annotations

import pytest

from pstn.report.statistics import Paper, Summary, judge


@pytest.mark.parametrize(
    ("ours", "printed", "higher_is_better", "words", "worse", "within"),
    [
        (Summary(93.0, 1.0, 5), "92.70 ± 0.74", True, "above", False, True),
        (Summary(95.0, 0.5, 5), "92.70 ± 0.74", True, "significantly above", False, False),
        (Summary(92.0, 1.0, 5), "92.70 ± 0.74", True, "not significantly below", False, True),
        (Summary(90.0, 0.5, 5), "92.70 ± 0.74", True, "significantly below", True, False),
        (Summary(92.7, 1.0, 5), "92.70 ± 0.74", True, "equal", False, True),
        (Summary(90.0, None, 1), "92.70 ± 0.74", True, "below; one run, no test", False, False),
        (Summary(0.05, 0.01, 5), "0.0567 ± 0.0065", False, "lower", False, False),
        (Summary(0.06, 0.01, 5), "0.0567 ± 0.0065", False, "not significantly higher", False, True),
        (Summary(0.10, 0.01, 5), "0.0567 ± 0.0065", False, "significantly higher", True, False),
        (Summary(83.5, 1.0, 5), "82.98", True, "above, within our spread; no spread in the paper", False, None),
        (Summary(82.5, 1.0, 5), "82.98", True, "below, within our spread; no spread in the paper", False, None),
        (Summary(70.0, 1.0, 5), "82.98", True, "below, outside our spread; no spread in the paper", True, None),
        (Summary(80.0, None, 1), "82.98", True, "below, one run; no spread in the paper", False, None),
        (Summary(90.0, 1.0, 5), "17", None, "higher, outside our spread; no spread in the paper", False, None),
    ],
)
def test_a_verdict_says_which_side_and_whether_chance_explains_it(
    ours, printed, higher_is_better, words, worse, within
):
    verdict = judge(ours, Paper(printed), higher_is_better=higher_is_better)
    assert (verdict.words, verdict.worse, verdict.within) == (words, worse, within)
