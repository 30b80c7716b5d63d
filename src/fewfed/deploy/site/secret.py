"""The secret that a site makes staying noise with. It is drawn once, and stays in the site's own folder.

With a new one after every restart the same rows would leave under other noise each time, and whoever keeps the packets
could average it away. It is written down nowhere else: not in what is sent, nor in a log.
"""

from __future__ import annotations

import hashlib
import os
import stat

from fewfed.engine.own_folder import OwnFolder
from fewfed.errors import RunError

FILE = "noise.secret"
"""No run can be called this: the names of runs have no dots."""
_BYTES = 32
_FILE_BYTES = _BYTES + hashlib.sha256().digest_size
_NEW = "delete it to have another one, under which the same rows leave with other noise than before"


def kept_secret(folder: OwnFolder) -> bytes:
    """The secret in a site's folder, which is made where there is none; `RunError` where it cannot be used."""
    if not folder.has(FILE):
        made = os.urandom(_BYTES)
        folder.write(FILE, made + _digest(made))
        return made
    with folder.reading(FILE) as opened:
        mode = stat.S_IMODE(os.fstat(opened).st_mode)
    path = folder.path / FILE
    if mode & 0o077:
        raise RunError(
            f"'{path}' may be read by others (mode {mode:o}): expected 600; run chmod 600 {path}, or, if somebody has "
            f"read it, {_NEW}"
        )
    content = folder.read(FILE, _FILE_BYTES)
    secret = content[:_BYTES]
    if len(content) != _FILE_BYTES or content[_BYTES:] != _digest(secret):
        raise RunError(f"'{path}' is damaged: expected what this program wrote; put a copy of it back, or {_NEW}")
    return secret


def _digest(secret: bytes) -> bytes:
    return hashlib.sha256(secret).digest()
