"""The worker processes: work is handed out as workers become free, and replies are returned in order.

Workers are forked, so they have the job (data, network, method) without copying or serialising it. A worker that dies,
or gives no answer in time, is replaced, and its work is tried again.
"""

from __future__ import annotations

import dataclasses
import os
import select
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from fewfed import processes, tree
from fewfed.engine.events import Event, WorkerDied, WorkerStuck
from fewfed.engine.executors.workers.channel import Channel, Closed
from fewfed.engine.executors.workers.deadline import Deadline
from fewfed.engine.executors.workers.serving import serve
from fewfed.engine.job import Job
from fewfed.engine.threads import one_thread
from fewfed.tree import Tree

_IN_FLIGHT = 2
"""Turns per worker: one runs while the next already waits, so a worker never idles for the main process."""

_SLOTS = ("0", "1", "2")
"""Memory areas of a worker. One more than its turns, so that a reply that came early can stay in its area."""

_AHEAD = 8
"""How many finished turns for each worker may wait for an earlier one. Beyond that, no new turns are started."""

_ATTEMPTS = 2
"""How often a worker may die with a client before the client is left out, or with a bundle before it is split up."""

_LOOK = 1.0
"""Seconds between two looks at workers that do not answer, at most."""

_GRACE = 0.5
"""Seconds a worker has to end by itself before it is killed."""

_FAULTS = ("SIGSEGV", "SIGBUS")
"""How a process ends that writes where it must not: into what was broadcast, for instance."""

_HINTS = {
    "SIGKILL": "killed from outside, often because memory ran out",
    "SIGSEGV": "a fault in compiled code",
    "SIGBUS": "a fault in compiled code, or no room left for memory",
}


@dataclass
class Item:
    """One piece of work for a worker: a client's turn, a bundle of them, or part of a model's scoring."""

    index: int
    message: dict[str, Any]
    arrays: Tree
    singles: tuple[Item, ...] = ()
    """The single turns of a bundle. The first has the bundle's index, the others the next ones."""
    attempts: int = 0
    careful: bool = False
    """Whether to look for what this turn changes that it must not."""

    @property
    def end(self) -> int:
        """The index of the next item."""
        return self.index + (len(self.singles) or 1)

    @property
    def name(self) -> str:
        clients = self.message.get("clients", [self.message.get("client", "evaluation")])
        return ", ".join(str(client) for client in clients)


@dataclass
class _Worker:
    """The main process's side of one worker."""

    pid: int
    channel: Channel
    busy: dict[str, Item] = field(default_factory=dict)
    """What it was sent, by slot and in that order: it works on the first."""
    held: set[str] = field(default_factory=set)
    """Slots whose replies wait for an earlier turn of another worker."""
    waited: float = 0.0
    """Seconds since it began with the first item, as far as the main process was there to see them pass."""

    @property
    def free(self) -> bool:
        return len(self.busy) < _IN_FLIGHT

    @property
    def may_hold(self) -> bool:
        return len(self.held) < len(_SLOTS) - _IN_FLIGHT

    @property
    def first(self) -> Item:
        return next(iter(self.busy.values()))


@dataclass(frozen=True)
class Reply:
    """What came back for an item."""

    item: Item
    message: dict[str, Any]
    arrays: Tree
    free: Callable[[], None] = lambda: None
    """Called when the arrays have been read."""


class Pool:
    """Some worker processes of one job. The main process keeps to one thread: every core has a worker."""

    def __init__(self, job: Job, count: int, deadline: float = 0.0) -> None:
        """`deadline`: seconds a turn may take, as in `Options`."""
        self._job = job
        self._deadline = Deadline(job, deadline)
        self._look = max(_LOOK / 100, min(_LOOK, self._deadline.least / 4))
        self._looked = time.monotonic()
        self._broadcast: Tree | None = None
        self._common = Channel.pair()
        self._workers: list[_Worker] = []
        self._careful = False
        """Whether a turn was found to change what it must not: from then on, all are looked at."""
        self.died: list[Event] = []
        """Workers that died or were stuck since `events` was last called."""
        for _ in range(count):
            self._workers.append(self._start())

    def __len__(self) -> int:
        return len(self._workers)

    def share(self, shared: Tree) -> None:
        """Let every worker see what was broadcast."""
        self._broadcast = shared
        with one_thread():
            gone = self._common[0].share(shared, "shared", [worker.channel for worker in self._workers])
        for worker in [worker for worker in self._workers if worker.channel in gone]:
            self._replace(worker, deque(), {})

    def close(self) -> None:
        """End the workers. One that is in the middle of something, endless or stopped is not waited for."""
        workers, self._workers = self._workers, []
        try:
            for worker in workers:
                worker.channel.close()
            for end in self._common:
                end.close()
        finally:
            processes.end_all([worker.pid for worker in workers], _GRACE)

    def work(self, items: Iterator[Item]) -> Iterator[Reply]:
        """Hand items out as workers become free; give replies back in the order of the items."""
        again: deque[Item] = deque()
        early: dict[int, Reply] = {}
        wanted = 0
        self._looked = time.monotonic()
        exhausted = False
        while True:
            exhausted = self._hand_out(items, again, early) or exhausted
            if not any(worker.busy for worker in self._workers) and not again and exhausted and not early:
                return
            for worker, (message, arrays) in self._replies(again, early):
                slot = message["slot"]
                item = worker.busy[slot]
                self._note(worker, message)
                if item.singles and "failed" in message:  # One by one, who is the cause fails alone.
                    again.extend(item.singles)
                elif item.index == wanted:
                    # Views into the worker's memory are safe here: its slot is refilled only after this yield.
                    yield Reply(item, message, arrays)
                    wanted = item.end
                else:
                    early[item.index] = _kept(worker, slot, Reply(item, message, arrays))
                del worker.busy[slot]
            while wanted in early:
                ready = early.pop(wanted)
                yield ready
                ready.free()
                wanted = ready.item.end

    def _hand_out(self, items: Iterator[Item], again: deque[Item], early: dict[int, Reply]) -> bool:
        """Give free workers something to do; whether there are no more items."""
        room = _AHEAD * len(self._workers)
        # Items to run again go first: the others may be waiting for one of them.
        while (again or len(early) < room) and (worker := self._least_busy()) is not None:
            item = again.popleft() if again else next(items, None)
            if item is None:
                return True
            if item.singles and self._careful:
                again.extend(item.singles)
            elif not self._send(worker, item):
                self._replace(worker, again, early)
        return False

    def _replies(
        self, again: deque[Item], early: dict[int, Reply]
    ) -> Iterator[tuple[_Worker, tuple[dict[str, Any], Tree]]]:
        busy = {worker.channel.fileno(): worker for worker in self._workers if worker.busy}
        if not busy:
            return
        poll = select.poll()
        for descriptor in busy:
            poll.register(descriptor, select.POLLIN | select.POLLHUP)
        ready = [busy.pop(descriptor) for descriptor, _ in poll.poll(1e3 * self._look)]
        self._count_seconds([*ready, *busy.values()])
        for worker in ready:
            try:
                yield worker, worker.channel.receive()
            except Closed:
                self._replace(worker, again, early)
        for worker in busy.values():
            if worker.waited >= self._deadline.least and worker.waited >= self._deadline.limit(worker.first.message):
                self._replace(worker, again, early, stuck=True)

    def _count_seconds(self, workers: list[_Worker]) -> None:
        """Add the time that has passed; not if this process was itself stopped, or the machine asleep, meanwhile."""
        passed = self._passed()
        self._looked = time.monotonic()
        for worker in workers:
            worker.waited += passed

    def _passed(self) -> float:
        """Seconds since they were last added."""
        return min(time.monotonic() - self._looked, 2 * self._look)

    def _note(self, worker: _Worker, message: dict[str, Any]) -> None:
        """A reply came: remember how long it took, and what was seen."""
        self._deadline.finished(worker.first.message, worker.waited)
        worker.waited = 0.0
        self._careful = self._careful or message.get("careful", False)

    def _least_busy(self) -> _Worker | None:
        """The free worker with the fewest items, so that an idle worker gets one first."""
        free = [worker for worker in self._workers if worker.free]
        return min(free, key=lambda worker: len(worker.busy), default=None)

    def _send(self, worker: _Worker, item: Item) -> bool:
        slot = next(slot for slot in _SLOTS if slot not in worker.busy and slot not in worker.held)
        message = {**item.message, "slot": slot}
        if item.careful or self._careful:
            message["careful"] = True
        if not worker.busy:
            worker.waited = -self._passed()
        try:
            with one_thread():
                worker.channel.send(message, item.arrays, slot)
        except Closed:
            return False
        finally:
            worker.busy[slot] = item
        return True

    def _replace(self, worker: _Worker, again: deque[Item], early: dict[int, Reply], *, stuck: bool = False) -> None:
        """A worker died or is stuck: start another and run its items again. The one that ran counts as tried."""
        status = processes.end(worker.pid, 0.0 if stuck else _GRACE)
        lost = list(worker.busy.values())
        names = tuple(item.name for item in lost)
        self.died.append(
            WorkerStuck(f"{worker.waited:.3g} s", names) if stuck else WorkerDied(processes.cause(status), names)
        )
        worker.channel.close()
        self._workers[self._workers.index(worker)] = self._start()
        if lost:
            faulty = _signal(status) in _FAULTS
            lost[0].attempts += 1
            lost[0].careful = faulty
            self._decide(lost[0], again, early, _reason(worker, status, stuck), split=stuck or faulty)
            again.extend(lost[1:])

    def _decide(self, item: Item, again: deque[Item], early: dict[int, Reply], reason: str, *, split: bool) -> None:
        """What becomes of an item whose worker is gone. `split`: a bundle is not tried a second time."""
        if item.singles and (split or item.attempts >= _ATTEMPTS):
            for one in item.singles:
                one.careful = item.careful
            again.extend(item.singles)
        elif item.attempts >= _ATTEMPTS:
            early[item.index] = Reply(item, {"failed": reason, "cause": "worker"}, {})
        else:
            again.append(item)

    def _start(self) -> _Worker:
        ours, theirs = Channel.pair()
        others = [worker.channel for worker in self._workers]

        def work() -> None:
            processes.leave_interrupts_to_parent()
            for channel in (ours, *others):
                channel.sock.close()
            serve(self._job, theirs)

        pid = processes.forked(work)
        theirs.close()
        worker = _Worker(pid, ours)
        if self._broadcast is not None:
            self._common[0].share(self._broadcast, "shared", [ours])
        return worker


def _reason(worker: _Worker, status: int, stuck: bool) -> str:
    """Why a client is left out."""
    if stuck:
        return (
            f"its worker process gave no answer for {worker.waited:.3g} s, the second time: is there an endless loop? "
            "workers.deadline says how many seconds a turn may take"
        )
    hint = _HINTS.get(_signal(status))
    return f"its worker process died {_ATTEMPTS} times ({processes.cause(status)}{f': {hint}' if hint else ''})"


def _signal(status: int) -> str:
    """The name of the signal that ended a process; nothing where it was none."""
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    return signal.Signals(number).name if number in set(signal.Signals) else ""


def _kept(worker: _Worker, slot: str, reply: Reply) -> Reply:
    """Keep a reply that came early: in the worker's memory if it has a slot to spare, else as a copy."""
    if worker.may_hold:
        worker.held.add(slot)
        return dataclasses.replace(reply, free=lambda: worker.held.discard(slot))
    with one_thread():
        return dataclasses.replace(reply, arrays=tree.clone(reply.arrays))
