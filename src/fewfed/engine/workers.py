"""One single-threaded process per core. Parameters lie in shared memory; a process that dies is replaced.

Workers are forked, so the job (data, network, method) is theirs without being copied or serialised. A worker runs one
client a turn, or a bundle of them side by side where that is faster.
"""

from __future__ import annotations

import os
import select
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

from fewfed import tree
from fewfed.engine.channel import Channel, Closed
from fewfed.engine.client import evaluation_rows
from fewfed.engine.job import Job, Member, Outcome
from fewfed.engine.messages import outcome_of, packed, unpacked
from fewfed.engine.serving import serve
from fewfed.engine.stacking import LEAST, WIDTH, Choice, bundles
from fewfed.errors import ConfigError
from fewfed.phase import Clock, Phase
from fewfed.task import Score
from fewfed.tree import Tree

_SLOTS = ("0", "1")
"""Turns in flight per worker: one runs while the next already waits, so a worker never idles for the main process."""

_AHEAD = 8
"""Finished turns, for each worker, that may wait in memory for an earlier one; behind a slow client others pause."""

_ATTEMPTS = 2
"""How often a client may take its worker down before it is left out, a bundle before its clients run one by one."""


@dataclass
class _Turn:
    """One piece of work: a client's turn, a bundle of them, or a model to score."""

    index: int
    message: dict[str, Any]
    arrays: Tree
    alone: tuple[_Turn, ...] = ()
    """The turns of a bundle; their indices are those from the bundle's on."""
    attempts: int = 0

    @property
    def end(self) -> int:
        """The index of what comes after."""
        return self.index + (len(self.alone) or 1)

    @property
    def name(self) -> str:
        clients = self.message.get("clients", [self.message.get("client", "evaluation")])
        return ", ".join(str(client) for client in clients)


@dataclass
class _Worker:
    """The main process's side of one worker."""

    pid: int
    channel: Channel
    busy: dict[str, _Turn] = field(default_factory=dict)

    @property
    def free(self) -> bool:
        return len(self.busy) < len(_SLOTS)


class Workers:
    """Worker processes. One client a turn unless `stack` says otherwise; outcomes come back in order.

    With `stack` 1, bit for bit what `Sequential` computes: every turn runs on one thread. With more, so many clients of
    a training phase run side by side in a process, which agrees to rounding; with 0, as many as timing says.
    """

    def __init__(self, job: Job, processes: int = 0, stack: int = 1, chosen: Iterable[Choice] = ()) -> None:
        """`chosen`: what an earlier part of the run found by timing, so that it is not timed again."""
        if not hasattr(os, "fork"):
            raise ConfigError("executor 'workers' needs os.fork, which this system lacks: use --executor sequential")
        self._job = job
        self._stack = stack
        self._choices = {choice.phase: choice for choice in chosen}
        self._events: list[str] = []
        self._said: set[str] = set()
        self._broadcast: Tree | None = None
        self._board = Channel.pair()
        count = processes or len(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else [0])
        self._workers = [self._start() for _ in range(count)]

    def place(self, server: Tree) -> Tree:
        return server

    def run(self, phase: Phase, clock: Clock, shared: Tree, members: Iterable[Member]) -> Iterator[Outcome]:
        self._share(shared)
        order = {"round": clock.round, "rounds": clock.rounds, "epochs": clock.epochs, "phase": phase.name}
        side_by_side, members = self._side_by_side(phase, order, iter(members))
        turns = self._turns(order, members, side_by_side)
        for turn, reply, arrays in self._work(turns):
            if not turn.alone:
                yield outcome_of(turn.message["client"], phase.name, reply, arrays)
                continue
            self._say_once(reply["events"])
            for client, report, own in zip(turn.message["clients"], reply["reports"], unpacked(arrays), strict=True):
                yield outcome_of(client, phase.name, report, own)

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

    def _side_by_side(
        self, phase: Phase, order: dict[str, Any], members: Iterator[Member]
    ) -> tuple[int, Iterator[Member]]:
        """How many clients of a phase a worker runs at once, and the members, of whom some may have been looked at."""
        if self._job.net.draws and not self._stack:
            return 1, members  # A stack would draw other numbers than its clients do one by one.
        if not phase.epochs or self._stack:
            return (self._stack if phase.epochs else 1), members
        if phase.name not in self._choices:
            most = len(self._workers) * WIDTH
            head = list(islice(members, most))
            members = chain(head, members)
            share = -(-len(head) // len(self._workers))
            if share < LEAST:
                return 1, members
            self._choices[phase.name] = choice = self._try(order, head[:share], more=len(head) == most)
            self._events.append(str(choice))
        return (WIDTH if self._choices[phase.name].stacked else 1), members

    def _try(self, order: dict[str, Any], members: Sequence[Member], more: bool) -> Choice:
        message = {"kind": "trial", "clients": [member.client for member in members], "more": more, **order}
        trial = _Turn(0, message, packed([_own(member) for member in members]))
        ((_, reply, _),) = self._work(iter([trial]))
        if "failed" in reply:
            return Choice(order["phase"], False, f"since the trial failed: {reply['failed']}")
        return Choice(reply["phase"], reply["stacked"], reply["why"])

    def _turns(self, order: dict[str, Any], members: Iterator[Member], side_by_side: int) -> Iterator[_Turn]:
        if side_by_side == 1:
            yield from (_turn(index, member, order) for index, member in enumerate(members))
            return
        index = 0
        for bundle in bundles(members, len(self._workers), side_by_side):
            alone = tuple(_turn(index + position, member, order) for position, member in enumerate(bundle))
            index += len(bundle)
            if len(alone) == 1:
                yield alone[0]
            else:
                message = {"kind": "bundle", "clients": [member.client for member in bundle], **order}
                yield _Turn(alone[0].index, message, packed([turn.arrays for turn in alone]), alone)

    def _say_once(self, events: Iterable[str]) -> None:
        """Every worker finds out the same."""
        for event in events:
            if event not in self._said:
                self._said.add(event)
                self._events.append(event)

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
            room = _AHEAD * len(self._workers)
            # A turn that is run again may be the one the others wait for.
            while (again or len(early) < room) and (worker := self._least_busy()) is not None:
                turn = again.popleft() if again else None
                if turn is None and not exhausted:
                    turn = next(turns, None)
                    exhausted = turn is None
                if turn is None:
                    break
                if not self._send(worker, turn):
                    self._replace(worker, again, early)
            if not any(worker.busy for worker in self._workers) and not again and exhausted and not early:
                return
            for worker, reply in self._replies(again, early):
                slot = reply[0]["slot"]
                turn = worker.busy[slot]
                if turn.index == wanted:
                    # Views into the worker's memory are safe here: its slot is refilled only after this yield.
                    yield turn, reply[0], reply[1]
                    wanted = turn.end
                else:
                    early[turn.index] = (turn, reply[0], tree.clone(reply[1]))
                del worker.busy[slot]
            while wanted in early:
                ready = early.pop(wanted)
                yield ready
                wanted = ready[0].end

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

    def _least_busy(self) -> _Worker | None:
        """Who gets the next turn: none waits behind another while a worker has nothing to do."""
        free = [worker for worker in self._workers if worker.free]
        return min(free, key=lambda worker: len(worker.busy), default=None)

    def _send(self, worker: _Worker, turn: _Turn) -> bool:
        slot = next(slot for slot in _SLOTS if slot not in worker.busy)
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
        names = ", ".join(turn.name for turn in lost)
        self._events.append(f"a worker process died ({cause}) and was replaced; run again: {names}")
        worker.channel.close()
        self._workers[self._workers.index(worker)] = self._start()
        for position, turn in enumerate(lost):
            turn.attempts += position == 0
            if turn.attempts >= _ATTEMPTS and turn.alone:
                again.extend(turn.alone)
            elif turn.attempts >= _ATTEMPTS:
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
                serve(self._job, theirs)
                status = 0
            finally:
                os._exit(status)
        theirs.close()
        worker = _Worker(pid, ours)
        if self._broadcast is not None:
            self._board[0].share(self._broadcast, "shared", [ours])
        return worker


def _turn(index: int, member: Member, order: dict[str, Any]) -> _Turn:
    return _Turn(index, {"kind": "run", "client": member.client, **order}, _own(member))


def _own(member: Member) -> Tree:
    return {"personal": member.personal, "state": member.state}
