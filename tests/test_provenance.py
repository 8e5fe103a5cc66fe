"""Which commit a result file names."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from pstn import provenance

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


def git(folder, *arguments):
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    done = subprocess.run(["git", *who, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """The package's file in a folder of somebody's repository."""
    monkeypatch.delenv("PSTN_COMMIT", raising=False)
    file = tmp_path / "venv" / "pstn" / "provenance.py"
    file.parent.mkdir(parents=True)
    file.write_text(Path(provenance.__file__).read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "theirs.txt").touch()
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "theirs.txt")
    git(tmp_path, "commit", "-q", "-m", "theirs")
    monkeypatch.setattr(provenance, "__file__", str(file))
    return tmp_path


@pytest.fixture
def checkout(installed, monkeypatch):
    """The package's file in a repository of its own."""
    (installed / "src").mkdir()
    (installed / "venv" / "pstn").rename(installed / "src" / "pstn")
    monkeypatch.setattr(provenance, "__file__", str(installed / "src" / "pstn" / "provenance.py"))
    return installed


def test_the_settings_of_a_repository_around_the_package_start_nothing(installed):
    mark = installed / "mark"
    git(installed, "config", "core.fsmonitor", f"touch {mark}; false")
    git(installed, "add", "venv")
    mark.unlink(missing_ok=True)
    assert provenance._commit() == "unknown"
    assert not mark.exists()


def test_a_git_in_the_current_folder_is_not_run(checkout, monkeypatch, tmp_path):
    program = tmp_path / "git"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path / 'mark'}\n")
    program.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f":.:{os.environ['PATH']}")
    assert provenance._commit() == "unknown"
    assert not (tmp_path / "mark").exists()


def test_the_commit_is_that_of_the_repository_which_holds_the_package(checkout):
    git(checkout, "add", "src")
    git(checkout, "commit", "-q", "-m", "ours")
    commit = git(checkout, "rev-parse", "--short=12", "HEAD")
    assert provenance._commit() == commit
    (checkout / "theirs.txt").write_text("changed")
    assert provenance._commit() == f"{commit}-dirty"
