"""Whose a connection on loopback is. Other users of a machine can reach its ports as well."""

from __future__ import annotations

import os
from pathlib import Path

_TABLE = Path("/proc/net/tcp")
_ROOT = 0


def is_of_this_user(port: int, own_port: int, table: Path = _TABLE) -> bool:
    """Whether the client at `port` of this machine, connected to `own_port`, is a process of this user or of root.

    Where the system does not tell, it counts as one: the page can still be reached from this machine only.
    """
    try:
        lines = table.read_text().splitlines()[1:]
        user = os.getuid()
    except (OSError, AttributeError):
        return True
    for line in lines:
        fields = line.split()
        if len(fields) > 7 and (_port(fields[1]), _port(fields[2])) == (port, own_port):
            return int(fields[7]) in (user, _ROOT)
    return True  # It has left already, or the table is of another system.


def _port(address: str) -> int:
    return int(address.rpartition(":")[2], 16)
