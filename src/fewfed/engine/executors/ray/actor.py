"""What a process on the cluster does: make the run's job once, then run clients one by one and combine their packets.

It keeps nothing that would be lost with it. What clients remember is in files, and which files count is said with every
order, so that an actor that was started again goes on as if it had been there all the time.
"""

from __future__ import annotations

import importlib
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from fewfed import processes, tree
from fewfed.engine import asking
from fewfed.engine.client_store import ClientStore
from fewfed.engine.combine import Combiner
from fewfed.engine.executor import Invited
from fewfed.engine.executors.ray import briefing as briefings
from fewfed.engine.executors.ray.cargo import packed, unpacked
from fewfed.engine.executors.sequential import Sequential
from fewfed.engine.executors.workers.heap import keep_freed_memory
from fewfed.engine.homes import SimulatedHomes
from fewfed.engine.outcomes import Done, Failed
from fewfed.engine.remake import remade
from fewfed.engine.scoring import answers, evaluate
from fewfed.errors import FewfedError, RunError, told
from fewfed.tree import Tree

Answer = tuple[dict[str, Any], Tree]


class Actor:
    """One process with one thread. Everything it is given and returns is bytes, numbers or text."""

    def __init__(self, function: str, folder: str, expected: str, states: str, working_folder: str) -> None:
        """How to make the job (`fewfed.engine.remake`), where clients' states lie, and where the user's program is."""
        self._remake = (function, Path(folder), expected)
        self._states, self._working_folder = Path(states), working_folder
        self._local: Sequential | None = None
        self._common: tuple[int, Tree] = (-1, {})
        processes.end_with(os.getppid())  # Of Ray: a process that outlived it would work on for nobody.

    def ready(self) -> bytes:
        """Make the job, if that has not been done; where this process is, and how numbers round there."""
        return _answered(self._presented)

    def do(self, order: bytes, common: list[Any]) -> bytes:
        """Carry out an order; `common`: the place in Ray's store of what is the same for many orders."""
        return _answered(lambda: self._done(order, common))

    def _presented(self) -> Answer:
        self._executor()
        return {"host": socket.gethostname(), "kernels": kernels_here()}, {}

    def _done(self, order: bytes, common: list[Any]) -> Answer:
        here = self._executor()
        message, arrays = unpacked(order)
        shared = self._looked_up(message["common"], common)
        clients = message["clients"]
        files = {int(client): (name, digest) for client, (name, digest) in message["files"].items()}
        here.homes.follow(files, clients, message["after"])
        if message["kind"] == "turns":
            return _turns(here, message, shared, arrays)
        models = _models(here, shared, clients)
        return _scored(here, message, models) if message["kind"] == "evaluate" else _said(here, message, models)

    def _executor(self) -> Sequential:
        if self._local is None:
            torch.set_num_threads(1)
            keep_freed_memory()
            # Files that the user names are looked for where the run was started.
            if os.path.isdir(self._working_folder):
                os.chdir(self._working_folder)
            job = remade(*self._remake)
            self._local = Sequential(job, SimulatedHomes(job, ClientStore(self._states, durable=False)))
        return self._local

    def _looked_up(self, number: int, common: list[Any]) -> Tree:
        if self._common[0] != number:
            self._common = (-1, {})  # Two of them need not fit.
            self._common = (number, unpacked(importlib.import_module("ray").get(common[0]))[1])
        return self._common[1]


def _turns(here: Sequential, message: Mapping[str, Any], shared: Tree, arrays: Tree) -> Answer:
    """Run the clients of one shard, or of a part of it, and combine their packets unless they are wanted whole."""
    shown, whole = frozenset(message["shown"]), message["whole"]
    briefing = briefings.read(here.job, message["briefing"], shared, shown)
    personal = arrays.get("personal", {})
    members = [Invited(client, personal.get(str(client), {})) for client in message["clients"]]
    combiner = Combiner(briefing.phase, len(here.job.federation))
    failed: list[dict[str, Any]] = []
    packets: list[dict[str, Any]] = []
    kept: Tree = {}
    learned = briefing.schema
    for outcome in here.run(briefing, members):
        if isinstance(outcome, Failed):
            failed.append(outcome.as_json())
            continue
        assert isinstance(outcome, Done)
        packet = outcome.packet
        learned = learned.learned(packet) if learned.leaves is None else learned
        if whole or packet.sender in shown:
            kept[str(packet.sender)] = tree.clone(packet.arrays)
        if not whole:
            combiner.add(packet)
        head = {name: getattr(packet, name) for name in ("round", "phase", "sender", "weight")}
        packets.append({**head, "metrics": dict(packet.metrics)})
    facts, combined = combiner.written()
    files = here.homes.store.hand_over()
    said = {
        "failed": failed,
        "packets": packets,
        "facts": facts,
        "files": {str(client): list(file) for client, file in files.items()},
        "learned": [briefings.written_leaves(learned), sorted(learned.empty)],
    }
    return said, {"combined": combined, "kept": kept}


def _models(here: Sequential, given: Tree, clients: list[int]) -> Iterator[Tree]:
    """The models to be scored: the one that is given, or each client's own, made from the server's tree."""
    # Copies, since there are networks that note something in their buffers.
    if not clients:
        yield tree.clone(given["model"])
    for client in clients:
        yield tree.clone(asking.predictor(here.job, given["server"], here.homes.state(client)))


def _scored(here: Sequential, message: Mapping[str, Any], models: Iterator[Tree]) -> Answer:
    rows = message["first"], message["last"]
    return {"scores": [evaluate(here.job, model, message["on"], *rows).as_json() for model in models]}, {}


def _said(here: Sequential, message: Mapping[str, Any], models: Iterator[Tree]) -> Answer:
    rows = message["first"], message["last"]
    parts = [part for model in models for part in answers(here.job, model, message["on"], *rows)]
    return {"firsts": [part.first for part in parts]}, {str(place): part.output for place, part in enumerate(parts)}


def kernels_here() -> str:
    """Which of its kernels torch uses in this process: others round in other ways."""
    return " ".join(filter(None, (torch.backends.cpu.get_cpu_capability(), os.environ.get("ONEDNN_MAX_CPU_ISA"))))


def _answered(work: Callable[[], Answer]) -> bytes:
    """The answer as bytes; for an error inside, one that says which."""
    try:
        return packed(*work())
    except BaseException as error:  # Also what ends a process elsewhere, such as `sys.exit()` in a user's network.
        return packed({"error": str(error) if isinstance(error, FewfedError) else told(error)})


def read(answer: bytes) -> Answer:
    """What an actor answered; a `RunError` where it could not."""
    message, arrays = unpacked(answer)
    if "error" in message:
        raise RunError(message["error"])
    return message, arrays
