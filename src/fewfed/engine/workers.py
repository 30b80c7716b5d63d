"""One single-threaded process per core. Parameters lie in shared memory; a process that dies is replaced.

Workers are forked, so the job (data, network, method) is theirs without being copied or serialised. A worker runs one
client a turn, or a bundle of them side by side where that is faster. The main process keeps to one thread: every core
has a worker.
"""

from __future__ import annotations

import dataclasses
import os
import select
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

from fewfed import tree
from fewfed.engine.channel import Channel, Closed
from fewfed.engine.choices import Answer, Choices
from fewfed.engine.client import evaluation_rows
from fewfed.engine.job import Job, Member, Outcome
from fewfed.engine.layout import Layout, has_kernels
from fewfed.engine.messages import outcome_of, packed, unpacked
from fewfed.engine.serving import serve
from fewfed.engine.stacking import bundles
from fewfed.engine.threads import one_thread
from fewfed.engine.trial import WIDTH, Choice, Question, Way, alone
from fewfed.errors import ConfigError
from fewfed.phase import Clock, Phase
from fewfed.task import Score
from fewfed.tree import Tree

_IN_FLIGHT = 2
"""Turns per worker: one runs while the next already waits, so a worker never idles for the main process."""

_SLOTS = ("0", "1", "2")
"""One more, so that a reply that came too early may stay where it is."""

_AHEAD = 8
"""Finished turns, for each worker, that may wait in memory for an earlier one; behind a slow client others pause."""

_ATTEMPTS = 2
"""How often a client may take its worker down before it is left out, a bundle before its clients run one by one."""


_QUESTION = "workers, phase "


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
    held: set[str] = field(default_factory=set)
    """Slots whose replies wait for an earlier turn of another worker."""

    @property
    def free(self) -> bool:
        return len(self.busy) < _IN_FLIGHT

    @property
    def may_hold(self) -> bool:
        return len(self.held) < len(_SLOTS) - _IN_FLIGHT


@dataclass(frozen=True)
class _Reply:
    """What a turn came to."""

    turn: _Turn
    message: dict[str, Any]
    arrays: Tree
    free: Callable[[], None] = lambda: None
    """Called when the arrays have been read."""


class Workers:
    """Worker processes. One client a turn unless `stack` says otherwise; outcomes come back in order.

    With `stack` 1 and `layout` "plain", bit for bit what `Sequential` computes: every turn runs on one thread. With
    more, so many clients of a training phase run side by side in a process, and with "channels_last" kernels lie so
    while a client trains alone; both agree to rounding. With 0 and "auto", as timing says.
    """

    def __init__(
        self,
        job: Job,
        processes: int = 0,
        stack: int = 1,
        layout: Layout = "plain",
        choices: Choices | None = None,
    ) -> None:
        """`choices`: what was found by timing before, so that it is not timed again."""
        if not hasattr(os, "fork"):
            raise ConfigError("executor 'workers' needs os.fork, which this system lacks: use --executor sequential")
        self._job = job
        self._stack = stack
        self._layout = layout
        self._has_kernels = has_kernels(job.net.model()["params"])
        self._choices = choices or Choices()
        self._ways = {
            question.removeprefix(_QUESTION): way
            for question, answer in self._choices.known().items()
            if question.startswith(_QUESTION) and (way := _way_of(answer))
        }
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
        way, members = self._way(phase, order, iter(members))
        order["channels_last"] = way is Way.CHANNELS_LAST or self._layout == "channels_last"
        side_by_side = (self._stack or WIDTH) if way is Way.STACKED else 1
        for reply in self._work(self._turns(order, members, side_by_side)):
            message = reply.turn.message
            if not reply.turn.alone:
                yield outcome_of(message["client"], phase.name, reply.message, reply.arrays)
                continue
            self._say_once(reply.message["events"])
            each = zip(message["clients"], reply.message["reports"], unpacked(reply.arrays), strict=True)
            for client, report, own in each:
                yield outcome_of(client, phase.name, report, own)

    def evaluate(self, models: Iterable[Tree]) -> list[Score]:
        turns = (_Turn(index, {"kind": "evaluate"}, {"model": model}) for index, model in enumerate(models))
        scores = []
        for reply in self._work(self._in_parts(turns)):
            if "failed" in reply.message:
                raise RuntimeError(reply.message["failed"])
            score = self._job.task.score_type.from_json(reply.message["score"])
            if reply.message["part"] == 0:
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

    def _way(self, phase: Phase, order: dict[str, Any], members: Iterator[Member]) -> tuple[Way, Iterator[Member]]:
        """How workers run the clients of a phase, and the members, of whom some may have been looked at."""
        if not phase.epochs or self._stack > 1:
            return (Way.STACKED if phase.epochs else Way.ALONE), members
        # A stack would draw other numbers than its clients do one by one.
        stacks = not self._stack and not self._job.net.draws
        if not stacks and not (self._layout == "auto" and self._has_kernels):
            return alone(self._layout), members
        if phase.name not in self._ways:
            self._ways[phase.name], members = self._choose(phase, order, members, stacks)
        return self._ways[phase.name], members

    def _choose(
        self, phase: Phase, order: dict[str, Any], members: Iterator[Member], stacks: bool
    ) -> tuple[Way, Iterator[Member]]:
        question = _QUESTION + phase.name
        answer = self._choices.recall(question)
        if answer is None or _way_of(answer) is None:
            most = len(self._workers) * WIDTH
            head = list(islice(members, most))
            members = chain(head, members)
            share = -(-len(head) // len(self._workers))
            found = self._try(order, head[:share], Question(self._layout, stacks, more=len(head) == most))
            if found is None:
                return alone(self._layout), members
            answer = self._choices.settle(question, Answer(found.way, found.why))
        way = _way_of(answer) or alone(self._layout)
        self._events.append(str(Choice(phase.name, way, answer.why)))
        return way, members

    def _try(self, order: dict[str, Any], members: Sequence[Member], question: Question) -> Choice | None:
        clients = [member.client for member in members]
        message = {"kind": "trial", "clients": clients, "question": dataclasses.asdict(question), **order}
        trial = _Turn(0, message, packed([_own(member) for member in members]))
        (reply,) = (reply.message for reply in self._work(iter([trial])))
        if "failed" in reply:
            return Choice(order["phase"], alone(self._layout), f"since the trial failed: {reply['failed']}")
        found = reply["choice"]
        return Choice(found["phase"], Way(found["way"]), found["why"]) if found else None

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
        # Passes forward gain more than whole steps do.
        last_wins = Way.CHANNELS_LAST in self._ways.values()
        order = {"kind": "evaluate", "channels_last": alone(self._layout) is Way.CHANNELS_LAST or last_wins}
        index = 0
        for turn in turns:
            for part, first in enumerate(range(0, rows, at_once)):
                last = min(first + at_once, rows)
                yield _Turn(index, {**order, "part": part, "first": first, "last": last}, turn.arrays)
                index += 1

    def _work(self, turns: Iterator[_Turn]) -> Iterator[_Reply]:
        """Hand turns out as workers become free; give replies back in the order of the turns."""
        again: deque[_Turn] = deque()
        early: dict[int, _Reply] = {}
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
            for worker, (message, arrays) in self._replies(again, early):
                slot = message["slot"]
                turn = worker.busy[slot]
                if turn.index == wanted:
                    # Views into the worker's memory are safe here: its slot is refilled only after this yield.
                    yield _Reply(turn, message, arrays)
                    wanted = turn.end
                else:
                    early[turn.index] = _kept(worker, slot, _Reply(turn, message, arrays))
                del worker.busy[slot]
            while wanted in early:
                ready = early.pop(wanted)
                yield ready
                ready.free()
                wanted = ready.turn.end

    def _replies(
        self, again: deque[_Turn], early: dict[int, _Reply]
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
        slot = next(slot for slot in _SLOTS if slot not in worker.busy and slot not in worker.held)
        try:
            with one_thread():
                worker.channel.send({**turn.message, "slot": slot}, turn.arrays, slot)
        except Closed:
            return False
        finally:
            worker.busy[slot] = turn
        return True

    def _replace(self, worker: _Worker, again: deque[_Turn], early: dict[int, _Reply]) -> None:
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
                message = {"failed": f"its worker process died {_ATTEMPTS} times ({cause})", "part": 0}
                early[turn.index] = _Reply(turn, message, {})
            else:
                again.append(turn)

    def _share(self, shared: Tree) -> None:
        self._broadcast = shared
        with one_thread():
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


def _way_of(answer: Answer) -> Way | None:
    """What an answer says, or nothing where it was not written by this program."""
    return Way(answer.value) if answer.value in set(Way) else None


def _kept(worker: _Worker, slot: str, reply: _Reply) -> _Reply:
    """A reply that others must come before: left in the worker's memory while it has slots enough, else copied."""
    if worker.may_hold:
        worker.held.add(slot)
        return dataclasses.replace(reply, free=lambda: worker.held.discard(slot))
    with one_thread():
        return dataclasses.replace(reply, arrays=tree.clone(reply.arrays))


def _turn(index: int, member: Member, order: dict[str, Any]) -> _Turn:
    return _Turn(index, {"kind": "run", "client": member.client, **order}, _own(member))


def _own(member: Member) -> Tree:
    return {"personal": member.personal, "state": member.state}
