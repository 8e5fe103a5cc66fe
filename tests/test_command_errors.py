"""How commands fail: one line that says what to do, and an exit code."""

import io
import zipfile

import pytest
import safetensors
import torch
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
        (
            safetensors.SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
            "Error while serializing: I/O error: No space left on device",
            1,
        ),
        (MemoryError(), "there is not enough memory", 1),
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has\nmore to say"),
            "there is not enough memory for 20.00 GiB more: try a smaller --batch-size or fewer --samples",
            1,
        ),
        (
            RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 4 bytes."),
            "there is not enough memory for 4 bytes more: try a smaller --batch-size or fewer --samples",
            1,
        ),
        (
            RuntimeError("[enforce fail] DefaultCPUAllocator: not enough memory: you tried to allocate 4 bytes."),
            "there is not enough memory for 4 bytes more: try a smaller",
            1,
        ),
    ],
)
def test_an_error_names_the_file_and_what_to_do(error, told, code, capsys):
    with pytest.raises(typer.Exit) as stopped, plain_errors():
        raise error
    assert stopped.value.exit_code == code
    assert capsys.readouterr().err.startswith(f"error: {told}")


def test_memory_that_torch_cannot_have_is_no_traceback(capsys):
    with pytest.raises(typer.Exit) as stopped, plain_errors():
        torch.empty(1 << 60, dtype=torch.uint8)
    assert stopped.value.exit_code == 1
    assert "not enough memory for" in capsys.readouterr().err


@pytest.mark.parametrize(("byte", "value"), [(8, 99), (6, 1), (6, 32)])  # the method of compression, and its flags
def test_a_damaged_archive_is_no_traceback(byte, value, capsys):
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as archive:
        archive.writestr("x.npy", b"1234")
    damaged = bytearray(written.getvalue())
    damaged[damaged.index(b"PK\x01\x02") + 2 + byte] = value
    damaged[byte] = value
    with pytest.raises(typer.Exit) as stopped, plain_errors(), zipfile.ZipFile(io.BytesIO(damaged)) as archive:
        archive.read("x.npy")
    assert stopped.value.exit_code == 1
    assert "error: an archive (.npz or .zip) is damaged" in capsys.readouterr().err


@pytest.mark.parametrize("error", [RuntimeError("shapes differ"), NotImplementedError("later"), KeyError("x")])
def test_a_bug_stays_a_traceback(error):
    with pytest.raises(type(error)), plain_errors():
        raise error
