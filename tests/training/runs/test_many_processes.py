"""One sweep in several processes, some of which are killed, on a PostgreSQL server."""

import multiprocessing
import os
import random
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from pstn.training.runs.settings import TrainSettings
from pstn.training.runs.sweep import Study, run_sweep

pytest.importorskip("optuna")

pytestmark = pytest.mark.slow

SPACE = {"lr": [10.0**-power for power in range(2, 10)]}
SILENCE = 2.0


@pytest.fixture
def server() -> Iterator[str]:
    """The URL of a PostgreSQL server of our own, in a temporary folder, reached through a socket in that folder."""
    pytest.importorskip("psycopg")
    programs = max(Path("/usr/lib/postgresql").glob("*/bin"), default=None, key=lambda path: float(path.parent.name))
    if programs is None:
        pytest.skip("PostgreSQL is not installed (Debian's package postgresql)")
    as_user = []  # it refuses to run as root
    if os.getuid() == 0:
        if shutil.which("runuser") is None:
            pytest.skip("PostgreSQL does not run as root, and runuser is not installed")
        as_user = ["runuser", "-u", "postgres", "--"]
    folder = Path(tempfile.mkdtemp(prefix="pstn-pg-"))  # not below pytest's, where other users may not look
    if as_user:
        shutil.chown(folder, "postgres")

    def run(*command: object) -> None:
        subprocess.run([*as_user, *map(str, command)], check=True, cwd="/", stdout=subprocess.DEVNULL, timeout=60)

    control = (programs / "pg_ctl", "-D", folder / "data", "-w", "-l", folder / "log")
    try:
        run(programs / "initdb", "-D", folder / "data", "-A", "trust", "-U", "pstn", "--no-sync")
        run(*control, "-o", f"-k {folder} -c listen_addresses='' -c fsync=off", "start")
        try:
            yield f"postgresql+psycopg://pstn@/postgres?host={folder}"
        finally:
            run(*control, "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder)


def test_killed_workers_lose_no_trial_and_none_is_done_twice(server, data, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    settings = TrainSettings(data=data, model="cnn", epochs=30, batch_size=4)
    context = multiprocessing.get_context("forkserver")  # torch is imported once
    used = ["pstn.training.runs.sweep", "optuna", "sqlalchemy.orm", "alembic.command", "torch.utils.flop_counter"]
    context.set_forkserver_preload(used)

    def start() -> multiprocessing.process.BaseProcess:
        options = {"storage": server, "together": 1, "silence": SILENCE}
        process = context.Process(target=run_sweep, args=(settings, SPACE), kwargs=options)
        process.start()
        return process

    moments = random.Random(0)
    workers = [start() for _ in range(3)]  # at the same time, with nothing on the server yet
    study = Study(SPACE, server)
    for turn in range(4):
        while not study.running:
            time.sleep(0.05)
        time.sleep(moments.uniform(0.0, 0.5))
        victim = workers.pop(moments.randrange(len(workers)))
        assert victim.is_alive(), "the sweep ended before enough workers were killed"
        victim.kill()
        victim.join()
        if turn < 3:  # the last one is not replaced: the others take over what it had
            workers.append(start())
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    trials = study._trials()
    states = Counter(trial.state.name for trial in trials)
    assert states["COMPLETE"] == len(SPACE["lr"])
    assert states["FAIL"] > 0, "no worker was killed in the middle of a trial"
    assert states["RUNNING"] == states["WAITING"] == 0
    found = {t.params["lr"]: t.value for t in trials if t.state.name == "COMPLETE"}
    alone = {p["lr"]: loss for p, loss in run_sweep(settings, SPACE, together=1, say=lambda _: None).table}
    assert found == alone
