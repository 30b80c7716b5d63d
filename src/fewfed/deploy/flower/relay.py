"""The app that a stock SuperNode runs at a site: it hands a parcel to the site's daemon, and sends back the answer.

It holds no keys, no rows and no state; what passes through it is sealed by others. It travels to SuperNodes as it is
here, as the only file of an app, so it needs Flower and nothing else of the package.

Over the daemon's socket goes one parcel each way: two lengths, then the letter and what is attached.
"""

from __future__ import annotations

import socket
import struct
import time
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

RECORD, LETTER, ATTACHED = "parcel", "letter", "attached"
SMALL = 200_000
"""A parcel of so many bytes goes in one piece: every piece is a request of its own, in both directions."""
MOST_BYTES = 1 << 31
_LENGTHS = struct.Struct("<QQ")
_PIECE = 1 << 20
_WAIT = 30.0
"""Seconds for which a daemon that is being started again is waited for, unless the node's configuration says `wait`."""
_PAUSE = 0.2

app = ClientApp()


@app.query()
def relayed(message: Message, context: Context) -> Message:
    """The daemon's answer to a message. Without one this raises, and the coordinator goes on without this turn."""
    place = context.node_config.get("socket")
    if not isinstance(place, str) or not place:
        raise RuntimeError("where is the site's daemon? Expected --node-config 'socket=\"STATE/relay.sock\"'")
    parcel = parts_of(message.content[RECORD])
    with reached(place, float(context.node_config.get("wait", _WAIT))) as daemon:
        send_parcel(daemon, *parcel)
        answer = receive_parcel(daemon, MOST_BYTES)
    if answer is None:
        raise RuntimeError("the site's daemon has not answered: its log says why")
    return Message(RecordDict({RECORD: record_of(*answer)}), reply_to=message)


def reached(place: str, seconds: float) -> socket.socket:
    """A connection to the daemon; one that is not there may still be starting."""
    deadline = time.monotonic() + seconds
    while True:
        found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            found.connect(place)
            return found
        except OSError as error:
            found.close()
            if time.monotonic() > deadline:
                raise RuntimeError(f"the site's daemon is not there ({error.strerror or error})") from error
        time.sleep(_PAUSE)


def send_parcel(connection: socket.socket, letter: bytes, attached: bytes) -> None:
    connection.sendall(_LENGTHS.pack(len(letter), len(attached)))
    connection.sendall(letter)
    connection.sendall(attached)


def receive_parcel(
    connection: socket.socket, most_bytes: int, seconds: float | None = None
) -> tuple[bytes, bytes] | None:
    """Letter and attachment, within so many seconds in all.

    None where the other end said nothing, or ended too early, or would send too much.
    """
    until = None if seconds is None else time.monotonic() + seconds
    head = _received(connection, _LENGTHS.size, until)
    if head is None:
        return None
    lengths = _LENGTHS.unpack(head)
    if sum(lengths) > most_bytes:
        return None
    letter = _received(connection, lengths[0], until)
    attached = None if letter is None else _received(connection, lengths[1], until)
    return None if letter is None or attached is None else (letter, attached)


def _received(connection: socket.socket, length: int, until: float | None) -> bytes | None:
    """So many bytes. Memory is taken as they come, not as they were announced."""
    found = bytearray()
    while len(found) < length:
        connection.settimeout(None if until is None else max(0.001, until - time.monotonic()))
        piece = connection.recv(min(_PIECE, length - len(found)))
        if not piece:
            return None
        found += piece
    return bytes(found)


def record_of(letter: bytes, attached: bytes) -> ArrayRecord | ConfigRecord:
    """A parcel as a record of Flower's."""
    parts = {LETTER: letter, **({ATTACHED: attached} if attached else {})}
    if len(letter) + len(attached) <= SMALL:
        return ConfigRecord({name: part for name, part in parts.items()})  # noqa: C416
    return ArrayRecord({name: Array("uint8", (len(part),), "fewfed", part) for name, part in parts.items()})


def parts_of(record: Any) -> tuple[bytes, bytes]:
    """Letter and attachment in such a record."""
    letter, attached = (record.get(name, b"") for name in (LETTER, ATTACHED))
    return _bytes(letter), _bytes(attached)


def _bytes(part: Any) -> bytes:
    return part if isinstance(part, bytes) else bytes(part.data)
