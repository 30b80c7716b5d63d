"""The page on loopback: two addresses, for readers of this machine and this user, from the standard library.

What a request asks for is looked up among two texts that are ready; nothing of it ever reaches the file system.
"""

from __future__ import annotations

import contextlib
import socketserver
import sys
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any

from fewfed.errors import ConfigError, told
from fewfed.report.live.follower import Answer
from fewfed.report.live.neighbours import is_of_this_user

HOST = "127.0.0.1"
PORT = 8370
_NAMES = ("127.0.0.1", "localhost")
"""What a browser may call this machine. Under any other name somebody else's page could have led it here, to read along
as if it were of the same origin."""
_MOST_CLIENTS = 32
_CLIENT_SECONDS = 10.0
"""How long somebody may take to ask, and to take the answer."""
_COMMON = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
_NOT_FRAMED = "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
_NOTHING_MORE = f"default-src 'none'; {_NOT_FRAMED}"

Page = Callable[[], str]
"""The page as it is now. It says itself what a browser may let it do."""


class PageServer(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """Serves one page. A client that is slow, or says nothing, costs a thread for a while and keeps nobody waiting."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, port: int, page: Page, data: Callable[[], Answer]) -> None:
        self.page, self.data = page, data
        self._free = threading.BoundedSemaphore(_MOST_CLIENTS)
        try:
            super().__init__((HOST, port), _Handler)
        except OverflowError:
            raise ConfigError(f"--port {port}: expected a number from 0 to 65535", key="port") from None
        except OSError as error:
            raise ConfigError(
                f"port {port} cannot be had ({error.strerror}): choose another with --port, or any that is free with "
                "--port 0",
                key="port",
            ) from error

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.server_address[1]}/"

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Run folders are for their owner alone, and so is a page made from them."""
        del request
        return is_of_this_user(client_address, (HOST, int(self.server_address[1])))

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Somebody who has left is no fault; anything else is said in one line, and the server goes on."""
        del request, client_address
        error = sys.exc_info()[1]
        if error is not None and not isinstance(error, OSError):
            print(f"a request could not be answered: {told(error)}", file=sys.stderr)


class _Handler(BaseHTTPRequestHandler):
    """One request, one answer, and the connection is closed."""

    server: PageServer
    timeout = _CLIENT_SECONDS
    server_version, sys_version = "fewfed", ""

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def _answer(self) -> None:
        if self._host() not in _NAMES:
            self.send_error(HTTPStatus.MISDIRECTED_REQUEST)
            return
        place = self.path.partition("?")[0]
        if place == "/":
            kind = "text/html; charset=utf-8"
            self._send(self.server.page().encode(errors="replace"), kind, {"Content-Security-Policy": _NOT_FRAMED})
        elif place == "/data.json":
            self._send_data()
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def _send_data(self) -> None:
        answer = self.server.data()
        if answer.tag in [tag.strip() for tag in self.headers.get("If-None-Match", "").split(",")]:
            self.send_response(HTTPStatus.NOT_MODIFIED)
            self._send_headers({"ETag": answer.tag})
            return
        accepted = [each.partition(";")[0].strip() for each in self.headers.get("Accept-Encoding", "").split(",")]
        packed = {"Content-Encoding": "gzip"} if "gzip" in accepted else {}
        body = answer.packed if packed else answer.body
        self._send(body, "application/json", {"ETag": answer.tag, "Vary": "Accept-Encoding", **packed})

    def _host(self) -> str:
        names = self.headers.get_all("Host", [])
        return names[0].strip().rpartition(":")[0] or names[0].strip() if len(names) == 1 else ""

    def _send(self, body: bytes, kind: str, headers: dict[str, str], status: HTTPStatus = HTTPStatus.OK) -> None:
        self.send_response(status)
        self._send_headers({"Content-Type": kind, "Content-Length": str(len(body)), **headers})
        if self.command != "HEAD":
            self.wfile.write(body)

    def _send_headers(self, headers: dict[str, str]) -> None:
        for name, value in ({"Content-Security-Policy": _NOTHING_MORE} | _COMMON | headers).items():
            self.send_header(name, value)
        self.end_headers()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """A few plain words, none of them the client's."""
        del message, explain
        status = HTTPStatus(code)
        if status is HTTPStatus.NOT_IMPLEMENTED:
            status = HTTPStatus.METHOD_NOT_ALLOWED
        allow = {"Allow": "GET, HEAD"} if status is HTTPStatus.METHOD_NOT_ALLOWED else {}
        with contextlib.suppress(AttributeError):  # A request that could not be parsed has no command.
            self.command = self.command or "GET"
        self._send(f"{status.value} {status.phrase}\n".encode(), "text/plain; charset=utf-8", allow, status)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nobody reads a line a second."""
        del format, arguments
