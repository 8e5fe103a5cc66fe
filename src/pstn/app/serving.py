"""Starting the page: on this machine alone unless told otherwise, and while its models are still being trained."""

from __future__ import annotations

import errno
import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from pstn import limits
from pstn.app.models import Workshop
from pstn.training.interrupt import sigterm_as_ctrl_c

__all__ = ["serve"]


def serve(
    models: Path | None = None, *, host: str = "127.0.0.1", port: int = 7860, names: Sequence[str] = (),
    say: Callable[[str], None] = print,
) -> None:  # fmt: skip
    """Show the page until Ctrl-C; models that are missing are trained meanwhile, with a bar here and on the page.

    Args:
        models: a folder with the digits' models, as `pstn demo` writes them.
        host: the address to listen on; "0.0.0.0" lets other machines in.
        port: the port to listen on.
        names: host names under which visitors reach the page, beside `host` and localhost; requests to others are
            refused.
        say: where messages go.

    Raises:
        ModelFileError: there are no such models in `models`.
        ValueError: the port is in use, or the address is not one of this machine's.
    """
    # Networks this small lose more to handing work between threads than they gain.
    torch.set_num_threads(1)
    workshop = Workshop(models)
    # Whoever ends it, the drawings are removed.
    with sigterm_as_ctrl_c(), _opened(workshop, host=host, port=port, names=names) as address:
        say(f"The page is at {address} (Ctrl-C ends it).")
        try:
            if workshop.digits is None or workshop.series is None:
                _work(workshop, say)
            while True:
                time.sleep(3600)
        except KeyboardInterrupt:
            say("Closed.")


@contextmanager
def _opened(
    workshop: Workshop, *, host: str = "127.0.0.1", port: int = 7860, names: Sequence[str] = ()
) -> Iterator[str]:
    """Serve the page while the block runs; gives its address.

    Raises:
        ValueError: the port is in use, or the address is not one of this machine's.
    """
    _require_free(host, port)
    with tempfile.TemporaryDirectory(prefix="pstn-app-") as drawings:
        # Read by gradio when it is imported and when a file arrives: nothing is told to anybody, and what visitors
        # gave the page goes with it.
        os.environ.update(GRADIO_ANALYTICS_ENABLED="False", GRADIO_TEMP_DIR=drawings)
        from starlette.middleware import Middleware

        from pstn.app.guard import Guard
        from pstn.app.page import LAUNCH, build_page

        guard = Middleware(Guard, host=host, names=names, uploads=Path(drawings))
        page = build_page(workshop)
        try:
            _, address, _ = page.launch(
                server_name=host, server_port=port, share=False, prevent_thread_lock=True, quiet=True, show_error=False,
                max_file_size=limits.PAGE_FILE_BYTES, state_session_capacity=limits.PAGE_SESSIONS, ssr_mode=False,
                mcp_server=False, enable_monitoring=False, run_history=False, inbrowser=False,
                app_kwargs={"middleware": [guard]}, **LAUNCH,
            )  # fmt: skip
            yield address
        finally:
            page.close(verbose=False)


def _require_free(host: str, port: int) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            reason = error.strerror or error
            if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
                raise ValueError(
                    f"--host must be an address of this machine, such as 127.0.0.1, or 0.0.0.0 for all of them, got "
                    f"{host} ({reason})"
                ) from None
            other = port + 1 if port >= 1024 else 7860  # those below are for the system alone
            raise ValueError(f"port {port} of {host} cannot be used ({reason}): try --port {other}") from None


def _work(workshop: Workshop, say: Callable[[str], None]) -> None:
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    say("Training small models for it, once; they are kept for the next start.")
    with Progress(TextColumn("{task.description:<30}"), BarColumn(), TimeRemainingColumn()) as bars:
        task = bars.add_task("", total=1.0)
        workshop.work(lambda doing, fraction: bars.update(task, completed=fraction, description=doing))
    for problem in workshop.problems:
        say(problem)
