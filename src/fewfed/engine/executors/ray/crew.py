"""The actors of a run, as the driver sees them: orders are handed out, and answers given back in their order.

An actor that dies is started again by Ray, here or on another machine, and until it is back the others do its work.
What it worked on is sent again as it was: what clients remembered when the phase began is in files that nobody
overwrites, so the result does not depend on when an actor died.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from fewfed.engine.events import ActorDied, ActorLost, ActorStuck, Event, Impossible
from fewfed.engine.executors.ray.actor import kernels_here, read
from fewfed.engine.executors.ray.orders import Order, next_for
from fewfed.engine.executors.workers.deadline import Deadline
from fewfed.errors import RunError, in_one_line

ATTEMPTS, ATTEMPTS_ALONE = 2, 3
"""How often an actor may die with an order before its clients are tried one by one, and then with one client before it
is left out. Once may be chance: an actor that died while it had nothing to do is only noticed with the next order."""

_LOOK = 1.0
"""Seconds between two looks at actors that do not answer, at most."""

_START_SECONDS = 300.0
"""Seconds in which an actor must be there, when a run begins or after all have died."""

_AHEAD, _AHEAD_BYTES = 64, 1 << 26
"""Orders that may wait for an actor, and their bytes."""

_HELD_BYTES = 1 << 30
"""Bytes of answers that may wait for an earlier one, beyond which orders are sent in their order."""


@dataclass
class _Member:
    """The driver's side of one actor."""

    number: int
    handle: Any
    busy: dict[Any, Order] = field(default_factory=dict)
    """What it was sent, by Ray's promise of an answer and in that order: it works on the first."""
    coming: Any = None
    """Ray's promise that it is back, while it is not."""
    waited: float = 0.0
    """Seconds since it began with the first order, as far as the driver was there to see them pass."""

    @property
    def first(self) -> Order:
        return next(iter(self.busy.values()))


@dataclass(frozen=True)
class Answered:
    """What came back for an order: of single clients, if it had to be split up, each with its answer, or the reason why
    there is none."""

    order: Order
    content: bytes | None
    singles: dict[int, bytes | str] = field(default_factory=dict)


class Crew:
    """Some actors that all make the same job."""

    def __init__(self, ray: Any, start: Callable[[], Any], count: int, deadline: Deadline) -> None:
        self._ray, self._deadline = ray, deadline
        self._look = max(_LOOK / 100, min(_LOOK, deadline.least / 4))
        self._looked = time.monotonic()
        self._told: set[str] = set()
        self.events: list[Event] = []
        """What happened since somebody last took them away."""
        self._members = [_Member(number, start()) for number in range(count)]
        for member in self._members:
            self._call_back(member)
        self._size = count

    def __len__(self) -> int:
        return self._size

    def close(self) -> None:
        """End the actors, whatever they are doing."""
        members, self._members = self._members, []
        for member in members:
            with contextlib.suppress(Exception):  # Whatever is wrong with it: it goes with the run at the latest.
                self._ray.kill(member.handle, no_restart=True)

    def wait_for_one(self) -> None:
        """Wait until an actor is there; an error where none comes, or where the job cannot be made."""
        self._looked = time.monotonic()
        deadline = time.monotonic() + _START_SECONDS
        while all(member.coming is not None for member in self._members):
            if time.monotonic() > deadline:
                raise RunError(
                    f"no actor of the Ray cluster was there after {_START_SECONDS:.0f} s: are as many cores free as "
                    f"ray.actors = {self._size} needs, and is fewfed installed on its machines?"
                )
            for _ in self._gather([]):  # Nobody works, so nothing comes back but actors.
                pass

    def work(self, orders: Iterator[Order]) -> Iterator[Answered]:
        """Have orders carried out; answers come back in the order of their indices."""
        waiting: list[Order] = []
        early: dict[int, Answered] = {}
        wanted, exhausted = 0, False
        self._looked = time.monotonic()
        try:
            while True:
                while not exhausted and self._may_wait(waiting):
                    order = next(orders, None)
                    exhausted = order is None
                    waiting += [] if order is None else [order]
                self._hand_out(waiting, early)
                if any(member.busy for member in self._members):
                    for answered in self._gather(waiting):
                        early[answered.order.index] = answered
                elif waiting:
                    self.wait_for_one()
                else:
                    return
                while wanted in early:
                    yield early.pop(wanted)
                    wanted += 1
        finally:
            for member in self._members:  # Somebody may have lost interest: what still comes is nobody's.
                member.busy.clear()

    def _may_wait(self, waiting: list[Order]) -> bool:
        few = len(waiting) < _AHEAD and sum(order.nbytes for order in waiting) < _AHEAD_BYTES
        return few or len(waiting) < self._size

    def _hand_out(self, waiting: list[Order], early: dict[int, Answered]) -> None:
        """Give actors something to do: one order each, and a second where enough are left for everybody."""
        held = sum(len(answered.content or b"") for answered in early.values())
        for most in (1, 2):
            for member in self._members:
                if member.coming is not None or len(member.busy) >= most or not waiting:
                    continue
                if most > 1 and len(waiting) <= self._size:
                    continue
                if held <= _HELD_BYTES:
                    order = next_for(member.number, self._size, waiting)
                else:
                    order = min(waiting, key=lambda each: each.index)
                waiting.remove(order)
                self._send(member, order)

    def _send(self, member: _Member, order: Order) -> None:
        if not member.busy:
            member.waited = -self._passed()
        member.busy[member.handle.do.remote(order.content(), [order.common])] = order

    def _gather(self, waiting: list[Order]) -> Iterator[Answered]:
        """What has come back; orders that must be sent again are put with those that wait."""
        promised = {promise: member for member in self._members for promise in member.busy}
        coming = {member.coming: member for member in self._members if member.coming is not None}
        ready, _ = self._ray.wait([*promised, *coming], num_returns=1, timeout=self._look)
        self._count_seconds()
        for promise in ready:
            if promise in coming:
                self._welcome(coming[promise])
            elif promise in promised[promise].busy:  # Not if it was lost with another.
                yield from self._received(promised[promise], promise, waiting)
        for member in [member for member in self._members if member.busy and self._is_late(member)]:
            yield from self._stuck(member, waiting)

    def _is_late(self, member: _Member) -> bool:
        least, about = self._deadline.least, member.first.message["about"]
        return member.waited >= least and member.waited >= self._deadline.limit(about)

    def _received(self, member: _Member, promise: Any, waiting: list[Order]) -> Iterator[Answered]:
        try:
            content: bytes = self._ray.get(promise)
        except self._ray.exceptions.RayError as error:
            yield from self._died(member, error, waiting)
            return
        order = member.busy.pop(promise)
        self._deadline.finished(order.message["about"], member.waited)
        member.waited = 0.0
        yield from self._settled(order, content)

    def _settled(self, order: Order, found: bytes | str) -> Iterator[Answered]:
        """An order has come to its end. `found`: the answer, or why there is none."""
        if order.whole is not None:
            order.whole.found[order.clients[0]] = found
            if len(order.whole.found) == len(order.whole.clients):
                yield Answered(order.whole, None, order.whole.found)
        elif isinstance(found, str):
            raise RunError(f"the model could not be scored: {found}")
        else:
            yield Answered(order, found)

    def _died(self, member: _Member, error: Exception, waiting: list[Order]) -> Iterator[Answered]:
        cause = _cause(error)
        lost = self._lost(member)
        self.events.append(ActorDied(cause, tuple(order.name for order in lost)))
        yield from self._again(lost, f"its actor died {ATTEMPTS_ALONE} times ({cause})", waiting)

    def _stuck(self, member: _Member, waiting: list[Order]) -> Iterator[Answered]:
        waited = f"{member.waited:.3g} s"
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.kill(member.handle, no_restart=False)
        lost = self._lost(member)
        self.events.append(ActorStuck(waited, tuple(order.name for order in lost)))
        reason = (
            f"its actor gave no answer for {waited}, the last of several times: is there an endless loop? ray.deadline "
            "says how many seconds a turn may take"
        )
        yield from self._again(lost, reason, waiting)

    def _lost(self, member: _Member) -> list[Order]:
        """Take everything from an actor that is gone, and have it say when it is back."""
        lost, member.busy = list(member.busy.values()), {}
        member.waited = 0.0
        self._call_back(member)
        return lost

    def _again(self, lost: list[Order], reason: str, waiting: list[Order]) -> Iterator[Answered]:
        """What becomes of orders whose actor is gone. Only the first was worked on."""
        for order in lost[1:]:
            waiting.append(order)
        for order in lost[:1]:
            order.attempts += 1
            if order.attempts < (ATTEMPTS if order.whole is None else ATTEMPTS_ALONE):
                waiting.append(order)
            elif order.whole is None and order.clients and order.message["kind"] == "turns":
                waiting += order.singles()
            else:
                yield from self._settled(order, reason)

    def _call_back(self, member: _Member) -> None:
        member.coming = member.handle.ready.remote()

    def _welcome(self, member: _Member) -> None:
        """An actor says that it is there, or Ray that it is not."""
        promise, member.coming = member.coming, None
        try:
            found, _ = read(self._ray.get(promise))
        except self._ray.exceptions.ActorDiedError as error:
            self._give_up(member, f"it died for good: {_cause(error)}")
        except self._ray.exceptions.RayError:
            time.sleep(self._look / 10)
            self._call_back(member)
        except RunError as error:  # It cannot make the job.
            self._ray.kill(member.handle, no_restart=True)
            self._give_up(member, str(error))
        else:
            self._compare(found["host"], found["kernels"])

    def _give_up(self, member: _Member, why: str) -> None:
        self._members.remove(member)
        if not self._members:
            raise RunError(f"no actor of the Ray cluster is left: {why}")
        self.events.append(ActorLost(why, len(self._members)))

    def _compare(self, host: str, kernels: str) -> None:
        """Tell once of each machine whose numbers round in another way."""
        if kernels != kernels_here() and host not in self._told:
            self._told.add(host)
            why = f"the processor of {host} is used as {kernels}, this one as {kernels_here()}"
            self.events.append(Impossible("bits that do not depend on the machine", why))

    def _count_seconds(self) -> None:
        """Add the time that has passed; not if the driver was itself stopped, or the machine asleep, meanwhile."""
        passed = self._passed()
        self._looked = time.monotonic()
        for member in self._members:
            member.waited += passed

    def _passed(self) -> float:
        """Seconds since they were last added."""
        return min(time.monotonic() - self._looked, 2 * self._look)


def _cause(error: Exception) -> str:
    """Why an actor is gone, in a few words of Ray's."""
    text = in_one_line(error)
    return text if len(text) <= 200 else f"{text[:200]} ..."
