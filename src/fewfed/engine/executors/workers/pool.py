"""The worker processes: work is handed out as workers become free, and replies are returned in order.

Workers are forked, so they have the job (data, network, method) without copying or serialising it. A worker that dies
is replaced, and its work is tried again.
"""

from __future__ import annotations

import dataclasses
import os
import select
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from fewfed import tree
from fewfed.engine.events import WorkerDied
from fewfed.engine.executors.workers.channel import Channel, Closed
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


@dataclass
class Item:
    """One piece of work for a worker: a client's turn, a bundle of them, or part of a model's scoring."""

    index: int
    message: dict[str, Any]
    arrays: Tree
    singles: tuple[Item, ...] = ()
    """The single turns of a bundle. The first has the bundle's index, the others the next ones."""
    attempts: int = 0

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
    held: set[str] = field(default_factory=set)
    """Slots whose replies wait for an earlier turn of another worker."""

    @property
    def free(self) -> bool:
        return len(self.busy) < _IN_FLIGHT

    @property
    def may_hold(self) -> bool:
        return len(self.held) < len(_SLOTS) - _IN_FLIGHT


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

    def __init__(self, job: Job, processes: int) -> None:
        self._job = job
        self._broadcast: Tree | None = None
        self._common = Channel.pair()
        self._workers: list[_Worker] = []
        self.died: list[WorkerDied] = []
        """Workers that died since `events` was last called."""
        for _ in range(processes):
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
        for worker in self._workers:
            worker.channel.close()
        for worker in self._workers:
            os.waitpid(worker.pid, 0)
        self._workers = []
        for end in self._common:
            end.close()

    def work(self, items: Iterator[Item]) -> Iterator[Reply]:
        """Hand items out as workers become free; give replies back in the order of the items."""
        again: deque[Item] = deque()
        early: dict[int, Reply] = {}
        wanted = 0
        exhausted = False
        while True:
            room = _AHEAD * len(self._workers)
            # Items to run again go first: the others may be waiting for one of them.
            while (again or len(early) < room) and (worker := self._least_busy()) is not None:
                item = again.popleft() if again else None
                if item is None and not exhausted:
                    item = next(items, None)
                    exhausted = item is None
                if item is None:
                    break
                if not self._send(worker, item):
                    self._replace(worker, again, early)
            if not any(worker.busy for worker in self._workers) and not again and exhausted and not early:
                return
            for worker, (message, arrays) in self._replies(again, early):
                slot = message["slot"]
                item = worker.busy[slot]
                if item.index == wanted:
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

    def _replies(
        self, again: deque[Item], early: dict[int, Reply]
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
        """The free worker with the fewest items, so that an idle worker gets one first."""
        free = [worker for worker in self._workers if worker.free]
        return min(free, key=lambda worker: len(worker.busy), default=None)

    def _send(self, worker: _Worker, item: Item) -> bool:
        slot = next(slot for slot in _SLOTS if slot not in worker.busy and slot not in worker.held)
        try:
            with one_thread():
                worker.channel.send({**item.message, "slot": slot}, item.arrays, slot)
        except Closed:
            return False
        finally:
            worker.busy[slot] = item
        return True

    def _replace(self, worker: _Worker, again: deque[Item], early: dict[int, Reply]) -> None:
        """A worker died: start another and run its items again; the item that was running counts as tried."""
        _, status = os.waitpid(worker.pid, 0)
        cause = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exit {os.WEXITSTATUS(status)}"
        lost = list(worker.busy.values())  # in the order they were sent: the first is the one that ran
        self.died.append(WorkerDied(cause, tuple(item.name for item in lost)))
        worker.channel.close()
        self._workers[self._workers.index(worker)] = self._start()
        for position, item in enumerate(lost):
            item.attempts += position == 0
            if item.attempts >= _ATTEMPTS and item.singles:
                again.extend(item.singles)
            elif item.attempts >= _ATTEMPTS:
                reason = f"its worker process died {_ATTEMPTS} times ({cause})"
                message = {"failed": reason, "cause": "worker", "part": 0}
                early[item.index] = Reply(item, message, {})
            else:
                again.append(item)

    def _start(self) -> _Worker:
        ours, theirs = Channel.pair()
        others = [worker.channel for worker in self._workers]
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
            self._common[0].share(self._broadcast, "shared", [ours])
        return worker


def _kept(worker: _Worker, slot: str, reply: Reply) -> Reply:
    """Keep a reply that came early: in the worker's memory if it has a slot to spare, else as a copy."""
    if worker.may_hold:
        worker.held.add(slot)
        return dataclasses.replace(reply, free=lambda: worker.held.discard(slot))
    with one_thread():
        return dataclasses.replace(reply, arrays=tree.clone(reply.arrays))
