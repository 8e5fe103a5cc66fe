"""`pstn app`: mistakes are one line and exit code 2."""

import socket
import sys

import pytest
from typer.testing import CliRunner

from pstn.cli import main
from pstn.commands import app


@pytest.fixture(autouse=True)
def _own_folders(tmp_path, monkeypatch):
    monkeypatch.setenv("PSTN_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def run(*arguments):
    return CliRunner().invoke(app, ["app", *arguments])


def test_help_says_where_it_listens():
    text = run("--help").output
    assert "127.0.0.1" in text
    assert "pstn app --models pstn-demo" in text
    assert "Exit codes: 0" in text


def test_a_port_in_use_is_said_before_anything_is_trained():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = run("--port", str(port))
    assert result.exit_code == 2
    assert f"port {port}" in result.output
    assert "--port" in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize("host", ["203.0.113.7", "no.such.host.invalid"])
def test_an_address_of_another_machine_is_refused(host):
    result = run("--host", host)
    assert result.exit_code == 2
    assert host in result.output
    assert "--host must be an address of this machine" in result.output
    assert "--port" not in result.output


def test_a_folder_without_models_is_refused():
    result = run("--models", "nowhere")
    assert result.exit_code == 2
    assert "nowhere must hold the folders cnn, stn and pstn" in result.output


def test_without_gradio_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "gradio", None)
    monkeypatch.delitem(sys.modules, "pstn.app.page", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        free = str(taken.getsockname()[1])
    monkeypatch.setattr(sys, "argv", ["pstn", "app", "--port", free])
    with pytest.raises(SystemExit, match=r"pip install 'pstn\[app\]'"):
        main()
