"""A site's end of a relay: parcels come from a stock SuperNode on this machine, over a socket in the site's folder.

The SuperNode runs whatever app the coordinator's server sends it. All that such an app can reach here is this socket,
and letters that the coordinator has not signed are not answered.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fewfed.deploy.flower.relay import receive_parcel, send_parcel
from fewfed.deploy.parcel import Parcel
from fewfed.deploy.transport import Delivery
from fewfed.errors import ConfigError, RunError

SOCKET = "relay.sock"
_LONGEST = 100
"""Bytes of a socket's path: the operating system takes hardly more."""
_SECONDS = 30.0
"""For one parcel to pass between two processes of one machine."""


@dataclass(frozen=True)
class _Relayed:
    parcel: Parcel
    reply: Callable[[Parcel], None]

    def answer(self, parcel: Parcel) -> None:
        self.reply(parcel)


class RelayLine:
    """A `Line` to whoever of this user connects to a socket."""

    def __init__(self, folder: Path, *, most_bytes: int, log: logging.Logger, seconds: float = _SECONDS) -> None:
        """`folder`: the site's own, which nobody else uses at the same time."""
        self._place, self._most_bytes, self._log, self._seconds = folder / SOCKET, most_bytes, log, seconds
        self._open: socket.socket | None = None
        self._socket = _listening(self._place)
        log.info("waiting for a SuperNode's app at %s", self._place)

    def receive(self) -> Delivery | None:
        self._hang_up()  # Whoever waits for an answer that never came waits no longer.
        try:
            self._open, _ = self._socket.accept()
        except BlockingIOError:
            return None
        try:
            found = receive_parcel(self._open, self._most_bytes, self._seconds)
        except OSError as error:
            self._log.warning("a parcel did not come through: %s", error)
            return None
        if found is None:
            self._log.warning("a parcel was cut off, or has more than %d bytes", self._most_bytes)
            return None
        return _Relayed(Parcel(*found), self._send)

    def close(self) -> None:
        self._hang_up()
        self._socket.close()
        self._place.unlink(missing_ok=True)

    def _send(self, parcel: Parcel) -> None:
        """Where this fails the coordinator asks again, and the answer is on our disk."""
        assert self._open is not None
        try:
            self._open.settimeout(self._seconds)
            send_parcel(self._open, parcel.letter, parcel.attached)
        except OSError as error:
            self._log.warning("an answer did not come through: %s", error)

    def _hang_up(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None


def _listening(place: Path) -> socket.socket:
    """A socket that only this user can connect to."""
    if len(os.fsencode(place)) > _LONGEST:
        raise ConfigError(
            f"'{place}' is too long for the path of a socket: expected at most {_LONGEST} bytes, as with a shorter "
            "--state",
            key="state",
        )
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        place.unlink(missing_ok=True)  # Left behind by a process that was killed: the folder is ours alone.
        before = os.umask(0o177)
        try:
            found.bind(str(place))
        finally:
            os.umask(before)
        found.listen(4)
        found.setblocking(False)
    except OSError as error:
        found.close()
        raise RunError(f"no socket can be made at '{place}': {error}") from error
    return found
