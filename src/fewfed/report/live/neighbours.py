"""Whose a connection on loopback is. Other users of a machine can reach its ports as well."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

Place = tuple[str, int]
"""An address of this machine as the server sees it, and a port."""

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_ROOT = 0
_MAPPED = "::ffff:"
"""How a socket of the newer protocol names an address of the older one: it reaches this server as well, but stands in
the other table."""


def is_of_this_user(client: Place, own: Place, tables: Sequence[Path] = _TABLES) -> bool:
    """Whether the client that is connected to `own` is a process of this user or of root.

    Both ends of a connection stand in the tables, each with its user. All of an end is compared: others may use the
    same port at other addresses, and what is left of their connections counts as root's. Where the system does not
    tell, the client counts as one: the page can still be reached from this machine only.
    """
    try:
        theirs, ours = _written(client), _written(own)
        user, is_told = os.getuid(), False
        for table in tables:
            for local, remote, owner in _lines(table):
                if local in theirs and remote in ours:
                    return owner in (user, _ROOT)
                is_told = is_told or local in ours
    except (OSError, AttributeError, ValueError):
        return True
    return not is_told  # Who stands in no table has left already, if this server does stand there.


def _lines(table: Path) -> Iterator[tuple[str, str, int]]:
    """Both ends of every connection as they are written, and its user."""
    try:
        lines = table.read_text().splitlines()[1:]
    except OSError:  # A machine without the newer protocol, or another system.
        return
    for line in lines:
        fields = line.split()
        if len(fields) > 7:
            yield fields[1], fields[2], int(fields[7])


def _written(place: Place) -> tuple[str, str]:
    """A place as the two tables write it: whole words of four bytes, each as a number of this machine."""
    address, port = place
    packed = (socket.inet_aton(address), socket.inet_pton(socket.AF_INET6, f"{_MAPPED}{address}"))
    older, newer = (
        "".join(f"{int.from_bytes(whole[at : at + 4], sys.byteorder):08X}" for at in range(0, len(whole), 4))
        for whole in packed
    )
    return f"{older}:{port:04X}", f"{newer}:{port:04X}"
