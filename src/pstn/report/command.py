"""What `pstn report` prints of a report that it wrote."""

from __future__ import annotations

from pstn.report.page import Report

__all__ = ["outcome_in_words"]


def outcome_in_words(report: Report) -> list[str]:
    """One line for each experiment, and one more for each thing that went the wrong way."""
    said = []
    for section in report.sections:
        outcome, name = section.outcome, section.study.experiment
        if section.quick:
            said.append(f"{name:16} quick runs only: not the paper's setting, not compared with it")
            continue
        orders = f", {outcome.held} of {outcome.claimed} claimed orders hold, {outcome.sure} significantly"
        said.append(f"{name:16} {outcome.found} of {outcome.wanted} runs{orders if outcome.claimed else ''}")
        said += [f"{'':16} significantly worse than the paper: {what}" for what in outcome.worse]
        said += [f"{'':16} does not hold: {what}" for what in outcome.reversed]
    return said
