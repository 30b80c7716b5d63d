"""The temporary folder of a Ray cluster that was started here: its sockets, its logs, and what its memory cannot hold.

It goes with the cluster. Those of programs that were killed are removed by the next one: a folder that nobody holds
locked is nobody's.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

from fewfed.errors import RunError

_PREFIX = "fewfed-ray-"
_OWNER = "owner"
_LONGEST = 40
"""Letters that its name may have: Ray puts sockets into it, whose names have at most 107."""


class Scratch:
    """A folder that is this process's for as long as the object lives."""

    def __init__(self) -> None:
        import fcntl  # Not on every system on which this package can be imported.

        above = _short_enough()
        _remove_abandoned(above)
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=above))
        # Under its name only once it is locked: before, somebody might take it for abandoned.
        unlocked = self.path / f"{_OWNER}.new"
        self._lock = os.open(unlocked, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        unlocked.rename(self.path / _OWNER)

    def remove(self) -> None:
        """Give it back."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _short_enough() -> Path:
    """Where temporary folders are made, if sockets below it can have a name."""
    usual = tempfile.gettempdir()
    for folder in (usual, "/tmp"):
        if len(f"{folder}/{_PREFIX}12345678") <= _LONGEST and os.access(folder, os.W_OK):
            return Path(folder)
    raise RunError(f"the name of the temporary folder '{usual}' is too long for Ray: let TMPDIR name a shorter one")


def _remove_abandoned(above: Path) -> None:
    import fcntl

    for folder in above.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # Somebody else's, or gone meanwhile.
            lock = os.open(folder / _OWNER, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
