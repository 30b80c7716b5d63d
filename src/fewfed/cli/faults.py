"""What the command line says of an error, and the file it leaves where the error is nobody's but this package's own."""

from __future__ import annotations

import errno
import os
import platform
import shlex
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from fewfed.errors import FewfedError, RunError, in_one_line, place_of, told
from fewfed.version import __version__

if TYPE_CHECKING:
    from fewfed.runs.cells import Update

USAGE = 2
"""The exit code of what a user can cause: input, settings, files, the machine."""
INTERNAL = 70
"""The exit code of a fault of this package's own, as in sysexits.h."""


class FaultInRuns(Exception):
    """Runs in processes of their own met a fault of this package, which each has written down already."""


_OURS = frozenset({errno.EBADF, errno.ECHILD, errno.EFAULT, errno.EINVAL, errno.ENOTSOCK, errno.ESRCH})
"""What the system refuses only where a program asks for something that makes no sense."""
_NO_MEMORY = ("can't allocate memory", "not enough memory", "out of memory")


def explained(error: BaseException) -> tuple[str, int]:
    """The sentence for an error, and the exit code. A fault of fewfed's own is written to a file."""
    if isinstance(error, FewfedError):
        return f"error: {error}", USAGE
    if isinstance(error, FaultInRuns):
        return f"error: {error}", INTERNAL
    if _is_memory(error):
        return (
            f"error: there is not enough memory ({in_one_line(error):.200}): try a smaller batch or network, or fewer "
            "processes (workers.processes, --jobs); a run that had begun can be resumed",
            USAGE,
        )
    if place_of(error, methods=False):
        # The only code that is neither this package's nor a library's is a file the user named: a method, a network.
        return f"error: your own code failed: {told(error)}", USAGE
    if isinstance(error, OSError) and (error.filename is not None or error.errno not in _OURS):
        place = f" '{os.fsdecode(error.filename)}'" if isinstance(error.filename, (str, bytes)) else ""
        return f"error: the system refused{place}: {error.strerror or in_one_line(error)}", USAGE
    return f"internal error: {told(error)}; this is a fault of fewfed, please report it {_written(error)}", INTERNAL


def explained_in_run(error: BaseException) -> tuple[str, bool]:
    """The sentence for what ended one of many runs, and whether it is a fault of this package's own."""
    if traceback_wanted():
        traceback.print_exception(error)
    sentence, code = explained(error)
    return sentence.removeprefix("error: "), code == INTERNAL


def failed_runs(endings: Sequence[Update], what: str) -> Exception | None:
    """The error for runs that failed, if any did; `what` a run is called there."""
    from fewfed.runs.cells import failure_of

    failure = failure_of(endings, what)
    if failure is None:
        return None
    text, fault = failure
    return FaultInRuns(text) if fault else RunError(text)


def traceback_wanted() -> bool:
    """Whether the user asked to see where errors come from."""
    return os.environ.get("FEWFED_TRACEBACK", "0") not in ("", "0")


def _is_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError):
        return True
    text = in_one_line(error).lower() if isinstance(error, (RuntimeError, OSError)) else ""
    return getattr(error, "errno", None) == errno.ENOMEM or any(phrase in text for phrase in _NO_MEMORY)


def _written(error: BaseException) -> str:
    """Write down what is needed to find the fault; how the sentence goes on."""
    text = _report(error)
    for folder in (Path.cwd, lambda: Path(tempfile.gettempdir())):
        try:
            return f"with the file {_create(folder(), text)}"
        except OSError:
            continue
    print(text, file=sys.stderr)
    return "with the lines above"


def _create(folder: Path, text: str) -> Path:
    """A new file in a folder, which only the user can read."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    for number in range(100):
        path = folder / f"fewfed-error-{stamp}{f'-{number}' if number else ''}.txt"
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            continue
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
        return path
    raise OSError(errno.EEXIST, "there are too many such files", str(folder))


def _report(error: BaseException) -> str:
    """Versions, the command, and where it happened. Nothing of the environment: it may hold passwords."""
    lines = [
        f"fewfed {__version__}, Python {platform.python_version()}, {platform.platform()}",
        ", ".join(f"{name} {_version(name)}" for name in ("torch", "numpy", "safetensors", "typer", "rich")),
        f"command: {shlex.join(['fewfed', *sys.argv[1:]])}",
        f"time: {time.strftime('%Y-%m-%d %H:%M:%S %z')}",
        "",
        *traceback.format_exception(error),
    ]
    return "\n".join(line.rstrip("\n") for line in lines) + "\n"


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "missing"
