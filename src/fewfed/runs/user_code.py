"""Code of the user's that a run is made of, and whether this user has run it before.

A run folder names its method and its network, which may be files. Continuing a folder that somebody sent would then
run that person's code, so a file is only run where this user named it, now or before. What was named before is
remembered by its content.
"""

from __future__ import annotations

import contextlib
import inspect
import shlex
from collections.abc import Collection, Iterator
from pathlib import Path

from torch import nn

from fewfed.data.readers.folders import cache_folder
from fewfed.engine.own_folder import OwnFolder
from fewfed.engine.storage import digest_of
from fewfed.errors import ConfigError, RunError
from fewfed.methods.registry import EXPECTED as DEFINES_METHOD
from fewfed.network import Network
from fewfed.networks.from_file import EXPECTED as DEFINES_NETWORK
from fewfed.networks.from_file import named_in
from fewfed.runs.experiment import Resolved
from fewfed.spelling import spelled

_FOLDER = "named-code"
_MOST_BYTES = 1 << 24
_EXPECTED = {"method": DEFINES_METHOD, "network": DEFINES_NETWORK}


def method_files(spec: str) -> tuple[str, ...]:
    """The files in a method's name: `mixup(mine.py)` has one."""
    return spelled(spec).files


def code_of(spec: str) -> list[str]:
    """A digest of each file in a method's name."""
    return [_digest(Path(file), "method") for file in method_files(spec)]


def network_file(network: str) -> str | None:
    """A digest of the file in a network's name; None where it names none."""
    own = named_in(network)
    return None if own is None else _digest(Path(own.file), "network")


def network_code(own: nn.Module | Network) -> list[str]:
    """A digest of the source of every class in a user's own network that is neither torch's nor ours."""
    net = own if isinstance(own, Network) else Network.of(own)
    classes = {type(part) for stage in net.stages for part in net.module(stage).modules()}
    foreign = {cls for cls in classes if cls.__module__.split(".")[0] not in ("torch", "fewfed")}
    return sorted(digest_of(_source(cls).encode()) for cls in foreign)


def remember_named(resolved: Resolved) -> None:
    """The user named this method and this network: their files may be run again when a run is resumed."""
    for _, digest, _ in _files(resolved):
        with contextlib.suppress(RunError, RuntimeError):  # No home, or no room in it: then it must be named again.
            folder = OwnFolder(cache_folder() / _FOLDER)
            folder.make()
            if not folder.has(digest):
                folder.write(digest, b"")


def refuse_unknown(resolved: Resolved, folder: Path, named: Collection[str] = ()) -> None:
    """Raise where continuing a run would run a file that this user has never named.

    `named`: what the user has named just now, of "method" and "network".
    """
    for file, digest, kind in _files(resolved):
        if kind not in named and not is_known(digest):
            name = resolved.spec if kind == "method" else resolved.experiment.network
            raise RunError(
                f"'{folder}' asks to run the code in '{file}', which you have not run before: read it, and if you "
                f"trust it name it with 'fewfed resume {shlex.quote(str(folder))} --{kind} {shlex.quote(name)}', in "
                f"Python as {kind}="
            )


def _files(resolved: Resolved) -> Iterator[tuple[str, str, str]]:
    """Every file with code that a run names, its digest, and whether it is of the method or of the network."""
    for file, digest in zip(method_files(resolved.spec), code_of(resolved.spec), strict=True):
        yield file, digest, "method"
    own, digest_of_network = named_in(resolved.experiment.network), network_file(resolved.experiment.network)
    if own is not None and digest_of_network is not None:
        yield own.file, digest_of_network, "network"


def is_known(digest: str) -> bool:
    """Whether this user has named a file of this content before."""
    try:
        known = OwnFolder(cache_folder() / _FOLDER)
        return known.exists() and known.has(digest)
    except RuntimeError:  # A user without a home.
        return False


def _digest(path: Path, kind: str) -> str:
    try:
        return digest_of(OwnFolder(path.parent).read(path.name, _MOST_BYTES))
    except RunError:
        if path.is_symlink():  # The user's own link to a file is as good as the file.
            return _digest(path.resolve(), kind)
        raise ConfigError(f"cannot read the {kind} file '{path}': expected {_EXPECTED[kind]}", key=kind) from None


def _source(cls: type) -> str:
    try:
        return inspect.getsource(cls)
    except (OSError, TypeError):  # Typed at a prompt: its name is all there is.
        return f"{cls.__module__}.{cls.__qualname__}"
