"""Which commit a result file names."""

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
    """The package's file in a folder of a repository, not yet part of it."""
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


def test_the_commit_of_a_repository_around_the_package_is_not_its_own(installed):
    assert provenance._commit() == "unknown"


def test_the_commit_is_that_of_the_repository_which_holds_the_package(installed):
    git(installed, "add", "venv")
    git(installed, "commit", "-q", "-m", "ours")
    commit = git(installed, "rev-parse", "--short=12", "HEAD")
    assert provenance._commit() == commit
    (installed / "theirs.txt").write_text("changed")
    assert provenance._commit() == f"{commit}-dirty"


def test_the_commit_is_unknown_outside_any_repository_and_what_one_is_told(installed, monkeypatch):
    shutil.rmtree(installed / ".git")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(installed.parent))
    assert provenance._commit() == "unknown"
    monkeypatch.setenv("PSTN_COMMIT", "abc")
    assert provenance._commit() == "abc"
    monkeypatch.delenv("PSTN_COMMIT")
    monkeypatch.setenv("PATH", "")
    assert provenance._commit() == "unknown"
