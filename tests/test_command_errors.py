"""How commands fail: one line that says what to do, and an exit code."""

import pytest
import typer

from pstn.command_errors import plain_errors


@pytest.mark.parametrize(
    ("error", "told", "code"),
    [
        (PermissionError(13, "Permission denied", "a.png"), "a.png: Permission denied; you may not", 2),
        (OSError(18, "Invalid cross-device link", ".draft", None, "b.csv"), "b.csv: Invalid cross-device link", 1),
        (NotADirectoryError(20, "Not a directory", "a.csv/b"), "a.csv/b: Not a directory", 2),
        (OSError(28, "No space left on device"), "[Errno 28] No space left on device", 1),
        (ValueError("size must be 1"), "size must be 1", 2),
    ],
)
def test_an_error_names_the_file_and_what_to_do(error, told, code, capsys):
    with pytest.raises(typer.Exit) as stopped, plain_errors():
        raise error
    assert stopped.value.exit_code == code
    assert capsys.readouterr().err.startswith(f"error: {told}")
