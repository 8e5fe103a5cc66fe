"""Trainings in progress: saved every so often, stopped by a signal, several side by side on one device."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pstn.experiments.lab import Lab
from pstn.training import Population, Progress
from pstn.training.progress import Interrupt
from pstn.training.runs.checkpoint import save_checkpoint

__all__ = ["Job", "Stopped", "fit"]

# Seconds between lines that say how far a training is.
_TELL_EVERY = 20.0


class Stopped(Exception):
    """Ctrl-C or SIGTERM came: everything is saved, and the same command goes on."""


class Job:
    """A population with the place of its checkpoint.

    Args:
        lab: says how often to save, and where messages go.
        name: of the group, for messages.
        population: what to train, from wherever it stands.
        path: of its checkpoint.
        about: what to keep beside it.
    """

    def __init__(self, lab: Lab, name: str, population: Population, path: Path, about: dict[str, Any]) -> None:
        self.population, self.name = population, name
        self._lab, self._path, self._about = lab, path, about
        self._saved = self._told = time.monotonic()
        self._first: tuple[float, int] | None = None

    @property
    def left(self) -> int:
        """Steps to go."""
        return self.population.total_steps - self.population.progress.step

    def save(self) -> None:
        """Write the checkpoint."""
        save_checkpoint(self._path, self.population, self._about)
        self._saved = time.monotonic()

    def look(self, progress: Progress, asked: bool) -> bool:
        """Between rounds: save, and tell, if it is time; returns whether to stop."""
        now = time.monotonic()
        if asked or now - self._saved >= self._lab.save_every:
            self.save()
        if self._first is None:  # speed is counted from here: the first round compiled, or went by in another run
            self._first, self._told = (now, progress.step), now
        if now - self._told >= _TELL_EVERY:
            began, before = self._first
            speed = (progress.step - before) / (now - began)
            share = progress.step / self.population.total_steps
            self._lab.say(f"  {self.name}: {share:.0%}, {speed:,.0f} steps/s, {self.left / speed:,.0f} s to go")
            self._told = now
        return asked


def fit(lab: Lab, jobs: Sequence[Job]) -> None:
    """Train populations to their end, all at once: each steps on streams of its own.

    Raises:
        Stopped: after Ctrl-C or SIGTERM, with everything saved.
    """
    with Interrupt() as interrupt:
        for job in jobs:
            lab.say(f"  {job.name}: {len(job.population.members)} models, {job.left:,} steps")
        if len(jobs) > 1:
            for job in jobs:  # while a GPU graph is captured nothing else may go on: one after the other, before all
                job.population.fit(until=job.population.progress.step + 1)

        def run(job: Job) -> None:
            job.population.fit(lambda progress: job.look(progress, interrupt.asked))
            job.save()

        if len(jobs) == 1:
            run(jobs[0])
        else:
            with ThreadPoolExecutor(len(jobs)) as pool:
                list(pool.map(run, jobs))
    if interrupt.asked and any(job.left for job in jobs):
        raise Stopped
