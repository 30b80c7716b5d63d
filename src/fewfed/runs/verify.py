"""Whether every file of a run folder is as this program wrote it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fewfed.engine import storage
from fewfed.engine.client_store import ClientStore
from fewfed.engine.own_folder import OwnFolder
from fewfed.engine.storage import Damaged, digest_of
from fewfed.errors import RunError
from fewfed.privacy.record import FOLDER as PACKETS
from fewfed.privacy.record import INDEX, Record
from fewfed.runs.folder import (
    BEFORE,
    BLUEPRINT,
    CHECKPOINT,
    CHOICES,
    CLIENTS,
    CONFIG,
    ENVIRONMENT,
    METRICS,
    MODEL,
    RESULT,
    SCORES,
    SPLIT,
    RunFolder,
)
from fewfed.runs.seals import read_sealed


@dataclass(frozen=True)
class Finding:
    """One file, and what is wrong with it."""

    name: str
    problem: str = ""


def verify(path: Path) -> list[Finding]:
    """Look at every file of a run. Damage is told, not mended."""
    folder, config = RunFolder.open(path)
    own = OwnFolder(path)
    checks: dict[str, Callable[[], object]] = {
        CONFIG: lambda: None,  # Opening it has checked it.
        ENVIRONMENT: lambda: _named(own, ENVIRONMENT, config),
        SPLIT: lambda: _named(own, SPLIT, config),
        BLUEPRINT: folder.blueprint,
        METRICS: folder.metrics,
        CHECKPOINT: lambda: folder.look_at(CHECKPOINT),
        BEFORE: lambda: folder.look_at(BEFORE),
        CHOICES: lambda: read_sealed(own / CHOICES),
        MODEL: lambda: storage.load(own / MODEL),
        SCORES: lambda: read_sealed(own / SCORES),
        RESULT: folder.check_result,
    }
    must = {CONFIG, ENVIRONMENT, SPLIT} | ({METRICS, MODEL, CHECKPOINT} if own.has(RESULT) else set())
    must |= {BLUEPRINT} & set(config.get("files") or ())  # A run of a development version may have none.
    if own.has(CHECKPOINT) or own.has(BEFORE):
        must |= {METRICS}
    found = [
        Finding(name, _problem(check) if own.has(name) else "it is missing")
        for name, check in checks.items()
        if name in must or own.has(name)
    ]
    return [*found, *_states(folder, own), *_packets(own)]


def _named(own: OwnFolder, name: str, config: Mapping[str, Any]) -> None:
    files = config.get("files")
    if not isinstance(files, dict) or files.get(name) != digest_of(own.read(name)):
        raise Damaged(f"'{own.path / name}' is damaged: its content does not fit the digest in {CONFIG}")


def _states(folder: RunFolder, own: OwnFolder) -> Iterator[Finding]:
    """The clients' states that the last checkpoint names."""
    if not own.has(CHECKPOINT):
        return
    try:
        states = dict(storage.load(own / CHECKPOINT)[1]["states"])
    except (RunError, KeyError, TypeError, ValueError):
        return  # Told already.
    store = ClientStore(folder.clients)
    for client, file in states.items():
        name = str(file[0]) if isinstance(file, list) and file else f"of client {client}"
        yield Finding(f"{CLIENTS}/{name:.60}", _problem(partial(store.check, {client: file})))


def _packets(own: OwnFolder) -> Iterator[Finding]:
    """The record of what was sent, where there is one."""
    if not own.below(PACKETS).exists():
        return
    index = f"{PACKETS}/{INDEX}"
    if problem := _problem(lambda: Record.open(own.path)):
        yield Finding(index, problem)
        return
    yield Finding(index)
    yield from (Finding(name, wrong) for name, wrong in Record.open(own.path).problems())


def _problem(check: Callable[[], object]) -> str:
    try:
        check()
    except RunError as error:
        return str(error)
    return ""
