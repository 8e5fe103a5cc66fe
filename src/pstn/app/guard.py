"""What reaches the page: requests to its own address, from its own site, of limited size, to what it uses of gradio."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, final
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pstn import limits
from pstn.files import parse_json

__all__ = ["Guard"]

# All of gradio's endpoints that the page uses; files, proxies, API descriptions, monitoring and the like are not.
_READ = re.compile(
    r"/(|config/?|theme\.css|favicon\.ico|manifest\.json|robots\.txt|(assets|static)/[\w./-]+"
    r"|gradio_api/(info/?|app_id/?|theme\.css|startup-events|queue/data|upload_progress|heartbeat/\w+))"
)
_CALLS = ("/gradio_api/queue/join", "/gradio_api/cancel", "/gradio_api/reset")
_UPLOAD = "/gradio_api/upload"
_HOST = re.compile(r"[^/?#@\\\s]+")  # what may follow a name in an address does not belong into the header
_FORM_BYTES = 1 << 16  # what a form adds to the file in it


class _RefusedError(Exception):
    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@final
class Guard:
    """ASGI middleware that refuses what the page has no use for, before gradio sees it.

    A request passes if its Host header names this page (a foreign site can make its own name point here, but not change
    that header), if its Origin, where there is one, is the page itself, if its endpoint is one that the page uses, and
    if its body is within the limits. Files that a request names must be uploads: gradio would fetch an address.

    Args:
        app: the application that answers.
        host: the address that the server listens on.
        names: further names under which visitors reach it.
        uploads: the folder of uploaded files; the oldest are removed when there is too much in it.
    """

    def __init__(self, app: ASGIApp, *, host: str, names: Collection[str], uploads: Path) -> None:
        self.app = app
        self._address = _address(host)
        self._names = {"localhost", host.lower(), *(name.lower() for name in names)}
        self._uploads = uploads.resolve()
        self._active = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer why not."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        if self._active >= limits.PAGE_REQUESTS_AT_ONCE:
            await PlainTextResponse("too many requests at once", 503)(scope, receive, send)
            return
        self._active += 1
        try:
            await self.app(scope, await self._checked(scope, receive), send)
        except _RefusedError as refused:
            await PlainTextResponse(str(refused), refused.status, {"Connection": "close"})(scope, receive, send)
        finally:
            self._active -= 1

    async def _checked(self, scope: Scope, receive: Receive) -> Receive:
        """What the application reads from, once the request has passed.

        Raises:
            _RefusedError: it does not pass.
        """
        headers, path, method = Headers(scope=scope), scope["path"], scope["method"]
        self._require_own_site(headers)
        if method in ("GET", "HEAD") and _READ.fullmatch(path) and ".." not in path:
            return receive
        if method != "POST" or path not in (*_CALLS, _UPLOAD):
            raise _RefusedError(404, "there is nothing here")
        if path == _UPLOAD:
            body = await _read_body(headers, receive, limits.PAGE_FILE_BYTES + _FORM_BYTES)
            self._make_room()
        else:
            body = await _read_body(headers, receive, limits.PAGE_REQUEST_BYTES)
            self._require_uploads_alone(body)
        return _replay(body, receive)

    def _require_own_site(self, headers: Headers) -> None:
        host = headers.get("host", "")
        try:
            name = (urlsplit(f"//{host}").hostname or "").lower() if _HOST.fullmatch(host) else ""
        except ValueError:
            name = ""
        if name not in self._names and not self._is_own_address(name):
            raise _RefusedError(421, "this page does not serve that host name; `pstn app --name` adds one")
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] != host:
            raise _RefusedError(403, "requests from other sites are refused")

    def _is_own_address(self, name: str) -> bool:
        """Whether it is an address of the page's; it cannot be made to point elsewhere, as a name can."""
        address = _address(name)
        if address is None or address.is_loopback:
            return address is not None
        return self._address is not None and (self._address.is_unspecified or self._address == address)

    def _require_uploads_alone(self, body: bytes) -> None:
        try:
            rest: list[Any] = [parse_json(body.decode(), "the request", limit=limits.PAGE_REQUEST_BYTES)]
        except ValueError:
            raise _RefusedError(400, "the request must be JSON") from None
        while rest:
            value = rest.pop()
            if isinstance(value, dict):
                rest.extend(value.values())
                if "path" in value and not self._is_upload(value["path"]):
                    raise _RefusedError(400, "path must be that of an uploaded file")
            elif isinstance(value, list):
                rest.extend(value)

    def _is_upload(self, path: Any) -> bool:
        try:
            return isinstance(path, str) and self._uploads in Path(path).resolve().parents
        except (ValueError, OSError):
            return False

    def _make_room(self) -> None:
        """Remove the oldest uploads until the others are within the limit."""
        files = sorted(_sizes(self._uploads))
        total = sum(size for _, size, _ in files)
        for number, (_, size, path) in enumerate(files):
            if total <= limits.PAGE_UPLOADED_BYTES and len(files) - number <= limits.PAGE_UPLOADED_FILES:
                return
            path.unlink(missing_ok=True)
            total -= size
            with suppress(OSError):  # each upload has a folder of its own, unless another file is in it
                path.parent.rmdir()


def _sizes(folder: Path) -> Iterator[tuple[float, int, Path]]:
    """When each file of a folder was written, how long it is, and its path."""
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):  # gradio removes old ones itself
            if path.is_file():
                yield path.stat().st_mtime, path.stat().st_size, path


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


async def _read_body(headers: Headers, receive: Receive, most: int) -> bytes:
    """Read a body, within a limit of bytes and of time."""
    too_large = _RefusedError(413, f"the request must have at most {most} bytes")
    length = headers.get("content-length", "0")
    if not length.isdecimal() or int(length[:20]) > most:
        raise too_large
    deadline = time.monotonic() + limits.PAGE_BODY_SECONDS
    body = bytearray()
    while True:
        try:
            message = await asyncio.wait_for(receive(), max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            raise _RefusedError(408, "the request took too long to arrive") from None
        body += message.get("body", b"")
        if len(body) > most:
            raise too_large
        if not message.get("more_body", False):
            return bytes(body)


def _replay(body: bytes, receive: Receive) -> Receive:
    """What the application reads the body from; after it comes what the connection still has to say."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return messages.pop() if messages else await receive()

    return replay
