"""One single-threaded process per core. Parameters lie in shared memory; a process that dies is replaced.

Workers are forked, so the job (data, network, method) is theirs without being copied or serialised.
"""

from __future__ import annotations

import os
import select
import signal
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from fewfed import tree
from fewfed.engine.channel import Channel, Closed
from fewfed.engine.client import evaluate, evaluation_rows, run_member
from fewfed.engine.job import Done, Failed, Job, Member, Outcome
from fewfed.errors import ConfigError
from fewfed.phase import Clock, Phase
from fewfed.task import Score
from fewfed.tree import Tree

_SLOTS = ("0", "1")
"""Turns in flight per worker: one runs while the next already waits, so a worker never idles for the main process."""

_ATTEMPTS = 2
"""How often a client may take its worker down before it is left out."""


@dataclass
class _Turn:
    """One piece of work: a client's turn or a model to score."""

    index: int
    message: dict[str, Any]
    arrays: Tree
    attempts: int = 0


@dataclass
class _Worker:
    """The main process's side of one worker."""

    pid: int
    channel: Channel
    busy: dict[str, _Turn] = field(default_factory=dict)

    @property
    def free(self) -> str | None:
        return next((slot for slot in _SLOTS if slot not in self.busy), None)


class Workers:
    """Bit for bit what `Sequential` computes: every turn runs on one thread and outcomes come back in order."""

    def __init__(self, job: Job, processes: int = 0) -> None:
        if not hasattr(os, "fork"):
            raise ConfigError("executor 'workers' needs os.fork, which this system lacks: use --executor sequential")
        self._job = job
        self._events: list[str] = []
        self._broadcast: Tree | None = None
        self._board = Channel.pair()
        count = processes or len(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else [0])
        self._workers = [self._start() for _ in range(count)]

    def place(self, server: Tree) -> Tree:
        return server

    def run(self, phase: Phase, clock: Clock, shared: Tree, members: Iterable[Member]) -> Iterator[Outcome]:
        self._share(shared)
        order = {"round": clock.round, "rounds": clock.rounds, "epochs": clock.epochs, "phase": phase.name}
        turns = (
            _Turn(
                index,
                {"kind": "run", "client": member.client, **order},
                {"personal": member.personal, "state": member.state},
            )
            for index, member in enumerate(members)
        )
        for turn, reply, arrays in self._work(turns):
            client = turn.message["client"]
            if "failed" in reply:
                yield Failed(client, phase.name, reply["failed"])
            else:
                yield Done(
                    client,
                    arrays.get("upload", {}),
                    arrays.get("state", {}),
                    reply["weight"],
                    reply["steps"],
                    reply["terms"],
                )

    def evaluate(self, models: Iterable[Tree]) -> list[Score]:
        turns = (_Turn(index, {"kind": "evaluate"}, {"model": model}) for index, model in enumerate(models))
        scores = []
        for _, reply, _ in self._work(self._in_parts(turns)):
            if "failed" in reply:
                raise RuntimeError(reply["failed"])
            score = self._job.task.score_type.from_json(reply["score"])
            if reply["part"] == 0:
                scores.append(score)
            else:
                scores[-1] = scores[-1] + score
        return scores

    def events(self) -> list[str]:
        events, self._events = self._events, []
        return events

    def close(self) -> None:
        for worker in self._workers:
            worker.channel.close()
        for worker in self._workers:
            os.waitpid(worker.pid, 0)
        self._workers = []
        for end in self._board:
            end.close()

    def _in_parts(self, turns: Iterable[_Turn]) -> Iterator[_Turn]:
        """Cut each scoring into the parts `evaluate` adds up, so that workers share one model's test rows."""
        rows, at_once = len(self._job.federation.test), evaluation_rows(self._job)
        index = 0
        for turn in turns:
            for part, first in enumerate(range(0, rows, at_once)):
                last = min(first + at_once, rows)
                yield _Turn(index, {"kind": "evaluate", "part": part, "first": first, "last": last}, turn.arrays)
                index += 1

    def _work(self, turns: Iterator[_Turn]) -> Iterator[tuple[_Turn, dict[str, Any], Tree]]:
        """Hand turns out as workers become free; give replies back in the order of the turns."""
        again: deque[_Turn] = deque()
        early: dict[int, tuple[_Turn, dict[str, Any], Tree]] = {}
        wanted = 0
        exhausted = False
        while True:
            for worker in list(self._workers):
                while (slot := worker.free) is not None:
                    turn = again.popleft() if again else None
                    if turn is None and not exhausted:
                        turn = next(turns, None)
                        exhausted = turn is None
                    if turn is None:
                        break
                    if not self._send(worker, slot, turn):
                        self._replace(worker, again, early)
                        break
            if not any(worker.busy for worker in self._workers) and not again and exhausted and not early:
                return
            for worker, reply in self._replies(again, early):
                slot = reply[0]["slot"]
                turn = worker.busy[slot]
                if turn.index == wanted:
                    # Views into the worker's memory are safe here: its slot is refilled only after this yield.
                    yield turn, reply[0], reply[1]
                    wanted += 1
                else:
                    early[turn.index] = (turn, reply[0], tree.clone(reply[1]))
                del worker.busy[slot]
            while wanted in early:
                yield early.pop(wanted)
                wanted += 1

    def _replies(
        self, again: deque[_Turn], early: dict[int, tuple[_Turn, dict[str, Any], Tree]]
    ) -> Iterator[tuple[_Worker, tuple[dict[str, Any], Tree]]]:
        busy = {worker.channel.fileno(): worker for worker in self._workers if worker.busy}
        if not busy:
            return
        poll = select.poll()
        for descriptor in busy:
            poll.register(descriptor, select.POLLIN | select.POLLHUP)
        for descriptor, _ in poll.poll():
            worker = busy[descriptor]
            try:
                yield worker, worker.channel.receive()
            except Closed:
                self._replace(worker, again, early)

    def _send(self, worker: _Worker, slot: str, turn: _Turn) -> bool:
        try:
            worker.channel.send({**turn.message, "slot": slot}, turn.arrays, slot)
        except Closed:
            return False
        finally:
            worker.busy[slot] = turn
        return True

    def _replace(
        self, worker: _Worker, again: deque[_Turn], early: dict[int, tuple[_Turn, dict[str, Any], Tree]]
    ) -> None:
        """A worker died: start another and run its turns again; the turn that was running counts as tried."""
        _, status = os.waitpid(worker.pid, 0)
        cause = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exit {os.WEXITSTATUS(status)}"
        lost = list(worker.busy.values())  # in the order they were sent: the first is the one that ran
        names = ", ".join(str(turn.message.get("client", "evaluation")) for turn in lost)
        self._events.append(f"a worker process died ({cause}) and was replaced; run again: {names}")
        worker.channel.close()
        self._workers[self._workers.index(worker)] = self._start()
        for position, turn in enumerate(lost):
            turn.attempts += position == 0
            if turn.attempts >= _ATTEMPTS:
                reply = {"failed": f"its worker process died {_ATTEMPTS} times ({cause})", "part": 0}
                early[turn.index] = (turn, reply, {})
            else:
                again.append(turn)

    def _share(self, shared: Tree) -> None:
        self._broadcast = shared
        gone = self._board[0].share(shared, "shared", [worker.channel for worker in self._workers])
        for worker in [worker for worker in self._workers if worker.channel in gone]:
            self._replace(worker, deque(), {})

    def _start(self) -> _Worker:
        ours, theirs = Channel.pair()
        others = [worker.channel for worker in getattr(self, "_workers", [])]
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                for channel in (ours, *others):
                    channel.sock.close()
                _serve(self._job, theirs)
                status = 0
            finally:
                os._exit(status)
        theirs.close()
        worker = _Worker(pid, ours)
        if self._broadcast is not None:
            self._board[0].share(self._broadcast, "shared", [ours])
        return worker


def _serve(job: Job, channel: Channel) -> None:
    """A worker's life: take a turn, do it on one thread, answer."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    shared: Tree = {}
    while True:
        try:
            message, arrays = channel.receive()
        except Closed:
            return
        if message["kind"] == "share":
            shared = arrays
            continue
        reply, result = _answer(job, shared, message, arrays)
        channel.send({**reply, "slot": message["slot"]}, result, message["slot"])


def _answer(job: Job, shared: Tree, message: dict[str, Any], arrays: Tree) -> tuple[dict[str, Any], Tree]:
    if message["kind"] == "evaluate":
        score = evaluate(job, arrays["model"], message["first"], message["last"])
        return {"part": message["part"], "score": score.as_json()}, {}
    clock = Clock(message["round"], message["rounds"], message["epochs"])
    member = Member(message["client"], arrays.get("personal", {}), arrays.get("state", {}))
    outcome = run_member(job, job.phase(message["phase"], clock), clock, shared, member)
    if isinstance(outcome, Failed):
        return {"failed": outcome.reason}, {}
    return (
        {"weight": outcome.weight, "steps": outcome.steps, "terms": outcome.terms},
        {"upload": outcome.upload, "state": outcome.state},
    )
