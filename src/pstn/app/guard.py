"""Which requests reach the page: to its own address, from its own site, of limited size, to the endpoints it uses."""

from __future__ import annotations

import asyncio
import ipaddress
import re
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any, final
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pstn import limits
from pstn.files import parse_json

# All of gradio's endpoints that the page uses; files, proxies, API descriptions and monitoring are not among them.
_READ = re.compile(
    r"/(|config/?|theme\.css|favicon\.ico|manifest\.json|robots\.txt|(assets|static)/[\w./-]+"
    r"|gradio_api/(info/?|app_id/?|theme\.css|startup-events|queue/data|upload_progress|heartbeat/\w+))"
)
_CALLS = ("/gradio_api/queue/join", "/gradio_api/cancel", "/gradio_api/reset")
_UPLOAD = "/gradio_api/upload"
_HOST = re.compile(r"[^/?#@\\\s]+")  # a name and a port alone: no path, user or query
_FORM_BYTES = 1 << 16  # overhead of a form with a file


@final
class Guard:
    """ASGI middleware that refuses requests which the page does not need, before gradio sees them.

    A request passes if its Host header names this page (a foreign site can make its own name point here, but cannot
    change that header), if its Origin, if any, is the page itself, if its endpoint is one that the page uses, and if
    its body is within the limits. Files that a request names must be uploads: gradio would download a URL.

    Args:
        app: the application that answers.
        host: the address that the server listens on.
        names: other names under which visitors reach it.
        uploads: the folder of uploaded files; the oldest are removed when there are too many.
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
        self._active += 1
        try:
            if self._active > limits.PAGE_REQUESTS_AT_ONCE:
                raise HTTPException(503, "too many requests at once")
            await self.app(scope, await self._check(scope, receive), send)
        except HTTPException as refused:
            await PlainTextResponse(refused.detail, refused.status_code, {"Connection": "close"})(scope, receive, send)
        finally:
            self._active -= 1

    async def _check(self, scope: Scope, receive: Receive) -> Receive:
        """What the application reads from, if the request passes.

        Raises:
            HTTPException: it does not pass.
        """
        headers, path, method = Headers(scope=scope), scope["path"], scope["method"]
        self._require_own_site(headers.get("host", ""), headers.get("origin"))
        if method in ("GET", "HEAD") and _READ.fullmatch(path) and ".." not in path:
            return receive
        if method != "POST" or path not in (*_CALLS, _UPLOAD):
            raise HTTPException(404, "there is nothing here")
        most = limits.PAGE_FILE_BYTES + _FORM_BYTES if path == _UPLOAD else limits.PAGE_REQUEST_BYTES
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length[:20]) > most:
            raise HTTPException(413, f"the request must have at most {most} bytes")
        try:
            async with asyncio.timeout(limits.PAGE_BODY_SECONDS):
                body = await _read_body(receive, most)
        except TimeoutError:
            raise HTTPException(408, "the request took too long to arrive") from None
        if path == _UPLOAD:
            self._remove_old_uploads()
        else:
            self._require_uploads(body)
        messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return messages.pop() if messages else await receive()

        return replay

    def _require_own_site(self, host: str, origin: str | None) -> None:
        try:
            name = (urlsplit(f"//{host}").hostname or "").lower() if _HOST.fullmatch(host) else ""
        except ValueError:
            name = ""
        address, own = _address(name), self._address
        # An address cannot be made to point elsewhere, as a name can.
        own_address = address is not None and (
            address.is_loopback or (own is not None and (own.is_unspecified or own == address))
        )
        if name not in self._names and not own_address:
            raise HTTPException(421, "this page does not serve that host name; `pstn app --name` adds one")
        if origin is not None and origin.partition("://")[2] != host:
            raise HTTPException(403, "requests from other sites are refused")

    def _require_uploads(self, body: bytes) -> None:
        """Refuse a call that names any file but an upload."""
        try:
            rest: list[Any] = [parse_json(body.decode(), "the request", limit=limits.PAGE_REQUEST_BYTES)]
        except ValueError:
            raise HTTPException(400, "the request must be JSON") from None
        while rest:
            value = rest.pop()
            if isinstance(value, list):
                rest.extend(value)
            elif isinstance(value, dict):
                rest.extend(value.values())
                path = value.get("path", str(self._uploads / "any"))
                try:
                    upload = self._uploads in Path(path).resolve().parents
                except (TypeError, ValueError, OSError):
                    upload = False
                if not upload:
                    raise HTTPException(400, "path must be that of an uploaded file")

    def _remove_old_uploads(self) -> None:
        with suppress(FileNotFoundError):  # gradio removes old files itself; the next upload tries again
            paths = [path for path in self._uploads.rglob("*") if path.is_file()]
            files = sorted((path.stat().st_mtime, path.stat().st_size, path) for path in paths)
            total = sum(size for _, size, _ in files)
            while total > limits.PAGE_UPLOADED_BYTES or len(files) > limits.PAGE_UPLOADED_FILES:
                _, size, path = files.pop(0)
                path.unlink(missing_ok=True)
                total -= size
                with suppress(OSError):  # each upload has a folder of its own, unless another file is in it
                    path.parent.rmdir()


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


async def _read_body(receive: Receive, most: int) -> bytes:
    body, more = bytearray(), True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > most:
            raise HTTPException(413, f"the request must have at most {most} bytes")
    return bytes(body)
