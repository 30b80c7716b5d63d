"""The process of the SuperLink: Flower's own server, behind a door.

Flower serves three interfaces on one port: one for nodes, one for whoever manages runs, one for running apps. Only the
first has keys. Whoever reached the port could register nodes or stop a run by the others, so this door lets nobody but
the coordinator use them, and bounds what anybody may send at once.

This file is started as a script and imports nothing of the package, with which torch would come: the server moves bytes
and computes nothing.
"""

from __future__ import annotations

import hmac
import importlib.util
import os
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

HEADER = "x-fewfed-coordinator"
SECRET, PARENT = "FEWFED_LINK_SECRET", "FEWFED_LINK_PARENT"
"""Environment variables: a text that only the coordinator knows; the process with which this one ends."""
NODES = "/v1/fleet/"
MOST_BODY = 8_000_000
"""Bytes of one request of a node: Flower cuts what is large into pieces of 5 MB."""

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Door:
    """Stands before the server's application."""

    def __init__(self, app: App, secret: str) -> None:
        self._app, self._secret = app, secret.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        headers = dict(scope.get("headers", ()))
        known = hmac.compare_digest(headers.get(HEADER.encode(), b""), self._secret)
        path = str(scope.get("path", ""))
        if scope["type"] != "http" or not (known or path.startswith(NODES)):
            await _refuse(send, 403)
        elif not known and _length(headers) > MOST_BODY:
            await _refuse(send, 413)
        else:
            await self._app(scope, receive if known else _bounded(receive), send)


def _length(headers: MutableMapping[bytes, bytes]) -> int:
    written = headers.get(b"content-length", b"0")
    return int(written) if written.isdigit() and len(written) < 20 else MOST_BODY + 1


def _bounded(receive: Receive) -> Receive:
    """The same, but whoever sends more than allowed without saying so is cut off."""
    total = 0

    async def received() -> MutableMapping[str, Any]:
        nonlocal total
        message = await receive()
        total += len(message.get("body", b""))
        return {"type": "http.disconnect"} if total > MOST_BODY else message

    return received


async def _refuse(send: Send, status: int) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


def _processes() -> Any:
    """The package's module about processes, without the package."""
    place = Path(__file__).parents[2] / "processes.py"
    spec = importlib.util.spec_from_file_location("processes", place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    """Serve as `flower-superlink` does, with its arguments."""
    _processes().end_with(int(os.environ[PARENT]))
    secret = os.environ.pop(SECRET)
    import uvicorn
    from flwr.superlink.cli.flower_superlink import SuperLinkLifespan, _parse_superlink_lifespan_config
    from flwr.superlink.main import create_app

    config = _parse_superlink_lifespan_config()
    uvicorn.run(
        Door(create_app(config, SuperLinkLifespan), secret),
        host=config.host,
        port=config.port,
        access_log=False,
        log_level="warning",
        ssl_keyfile=config.ssl_keyfile,
        ssl_certfile=config.ssl_certfile,
        timeout_keep_alive=60,
    )


if __name__ == "__main__":
    main()
