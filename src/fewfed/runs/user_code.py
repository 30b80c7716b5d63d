"""Code of the user's that a run is made of, and whether this user has run it before.

A run folder names its method, which may be a file. Continuing a folder that somebody sent would then run that person's
code, so a file is only run where this user named it, now or before. What was named before is remembered by its content.
"""

from __future__ import annotations

import contextlib
import inspect
import re
from pathlib import Path

from torch import nn

from fewfed.data.readers.folders import cache_folder
from fewfed.engine.own_folder import OwnFolder
from fewfed.engine.storage import digest_of
from fewfed.errors import ConfigError, RunError
from fewfed.network import Network

_FOLDER = "named-code"
_MOST_BYTES = 1 << 24


def method_files(spec: str) -> tuple[str, ...]:
    """The files in a method's name: `mixup(mine.py)` has one."""
    inside = re.fullmatch(r"[^()]+\((.+)\)", spec.strip())
    if inside:
        return method_files(inside[1])
    name = spec.strip().partition(":")[0]
    return (name,) if name.endswith(".py") else ()


def code_of(spec: str) -> list[str]:
    """A digest of each file in a method's name."""
    return [_digest(Path(file)) for file in method_files(spec)]


def network_file(network: str) -> str | None:
    """A digest of the file in a network's name, as in `net.py:build`; None where it names none."""
    file = network if network.endswith(".py") else network.rpartition(":")[0]
    return _digest(Path(file)) if file.endswith(".py") else None


def network_code(own: nn.Module | Network) -> list[str]:
    """A digest of the source of every class in a user's own network that is neither torch's nor ours."""
    net = own if isinstance(own, Network) else Network.of(own)
    classes = {type(part) for stage in net.stages for part in net.module(stage).modules()}
    foreign = {cls for cls in classes if cls.__module__.split(".")[0] not in ("torch", "fewfed")}
    return sorted(digest_of(_source(cls).encode()) for cls in foreign)


def remember_named(spec: str) -> None:
    """The user named this method: its files may be run again when a run is resumed."""
    for digest in code_of(spec):
        with contextlib.suppress(RunError, RuntimeError):  # No home, or no room in it: then it must be named again.
            folder = OwnFolder(cache_folder() / _FOLDER)
            folder.make()
            if not folder.has(digest):
                folder.write(digest, b"")


def refuse_unknown(spec: str, folder: Path) -> None:
    """Raise where continuing a run would run a file that this user has never named."""
    for file, digest in zip(method_files(spec), code_of(spec), strict=True):
        if not is_known(digest):
            raise RunError(
                f"'{folder}' asks to run the code in '{file}', which you have not run before: read it, and if you "
                f"trust it name it with 'fewfed resume {folder} --method {spec}', in Python as method="
            )


def is_known(digest: str) -> bool:
    """Whether this user has named a file of this content before."""
    try:
        known = OwnFolder(cache_folder() / _FOLDER)
        return known.exists() and known.has(digest)
    except RuntimeError:  # A user without a home.
        return False


def _digest(path: Path) -> str:
    try:
        return digest_of(OwnFolder(path.parent).read(path.name, _MOST_BYTES))
    except RunError:
        if path.is_symlink():  # The user's own link to a file is as good as the file.
            return _digest(path.resolve())
        raise ConfigError(
            f"cannot read the method file '{path}': expected a Python file that defines one method"
        ) from None


def _source(cls: type) -> str:
    try:
        return inspect.getsource(cls)
    except (OSError, TypeError):  # Typed at a prompt: its name is all there is.
        return f"{cls.__module__}.{cls.__qualname__}"
