"""The executor `workers`: one single-threaded process a core. Each runs clients one by one, or several in a stack."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any

from fewfed.data.federation import HeldOut
from fewfed.engine.choices import Answer, Choices
from fewfed.engine.events import Chosen, Event
from fewfed.engine.executor import Briefing, Invited
from fewfed.engine.executors.local import LocalExecutor
from fewfed.engine.executors.workers.messages import packed, read, unpacked
from fewfed.engine.executors.workers.options import EXACT, Options
from fewfed.engine.executors.workers.pool import Item, Pool, Reply
from fewfed.engine.executors.workers.stacking import bundles
from fewfed.engine.executors.workers.trial import WIDTH, Choice, Question, Way, one_by_one
from fewfed.engine.homes import SimulatedHomes
from fewfed.engine.job import Job
from fewfed.engine.layout import has_kernels
from fewfed.engine.outcomes import Outcome
from fewfed.engine.reception import Reception
from fewfed.engine.scoring import Answered, evaluation_rows, rows_of
from fewfed.engine.threads import one_thread
from fewfed.engine.turn import Member
from fewfed.errors import RunError
from fewfed.phase import Phase
from fewfed.task import Score
from fewfed.tree import Tree

_QUESTION = "workers, phase "


class Workers(LocalExecutor):
    """Worker processes. One client at a time each, unless the options say otherwise; outcomes come back in order.

    With `stack` 1 and `layout` "plain", bit for bit what `Sequential` computes: every turn runs on one thread. With
    more, so many clients of a training phase run side by side in a process, and with "channels_last" convolutions keep
    their kernels in that memory order; both agree to rounding. With 0 and "auto", timing decides.
    """

    def __init__(
        self,
        job: Job,
        homes: SimulatedHomes | None = None,
        options: Options = EXACT,
        choices: Choices | None = None,
    ) -> None:
        """`choices`: what was found by timing before, so that it is not timed again."""
        super().__init__(job, homes)
        self._stack, self._layout = options.stack, options.layout
        self._has_kernels = has_kernels(job.net.model()["params"])
        self._choices = choices or Choices()
        self._ways = {
            question.removeprefix(_QUESTION): way
            for question, answer in self._choices.known().items()
            if question.startswith(_QUESTION) and (way := _way_of(answer))
        }
        self._events: list[Event] = []
        self._said: set[Event] = set()
        self._pool = Pool(job, options.processes or cores(), options.deadline)

    def run(self, briefing: Briefing, members: Iterable[Invited]) -> Iterator[Outcome]:
        phase, clock = briefing.phase, briefing.clock
        reception = Reception(briefing, self.homes)
        self._pool.share(briefing.shared)
        order = {"round": clock.round, "rounds": clock.rounds, "epochs": clock.epochs, "phase": phase.name}
        way, at_home = self._way(phase, order, self.at_home(phase, members))
        order["channels_last"] = way is Way.CHANNELS_LAST or self._layout == "channels_last"
        side_by_side = (self._stack or WIDTH) if way is Way.STACKED else 1
        for reply in self._pool.work(self._items(order, at_home, side_by_side)):
            for client, message, arrays in self._each(reply):
                with one_thread():
                    outcome = reception.take(client, read(client, phase.name, message, arrays))
                yield outcome

    def _each(self, reply: Reply) -> Iterator[tuple[int, dict[str, Any], Tree]]:
        """The replies of single clients: one, or those of a bundle."""
        if not reply.item.singles:
            yield reply.item.message["client"], reply.message, reply.arrays
            return
        self._say_once(Event.from_json(event) for event in reply.message["events"])
        yield from zip(reply.item.message["clients"], reply.message["messages"], unpacked(reply.arrays), strict=True)

    def evaluate(self, models: Iterable[Tree], on: HeldOut = "test") -> list[Score]:
        scores = []
        for reply in self._pool.work(self._scoring(models, on)):
            if "failed" in reply.message:
                raise RunError(f"the model could not be scored: {reply.message['failed']}")
            score = self._job.task.score_type.from_json(reply.message["score"])
            if reply.message["part"] == 0:
                scores.append(score)
            else:
                scores[-1] = scores[-1] + score
        return scores

    def answers(self, models: Iterable[Tree], on: HeldOut = "test") -> Iterator[Answered]:
        number = -1
        for reply in self._pool.work(self._scoring(models, on, "answer")):
            if "failed" in reply.message:
                raise RunError(f"the model could not be scored: {reply.message['failed']}")
            number += reply.message["part"] == 0
            # The memory of the reply is used again for the next.
            yield Answered(number, reply.item.message["first"], reply.arrays["output"].clone())

    def events(self) -> list[Event]:
        events = [*self._pool.died, *self._events]
        self._pool.died.clear()
        self._events.clear()
        return events

    def close(self) -> None:
        self._pool.close()

    def _way(self, phase: Phase, order: dict[str, Any], members: Iterator[Member]) -> tuple[Way, Iterator[Member]]:
        """How workers run the clients of a phase, and all members again (a trial takes some from the iterator)."""
        if not phase.epochs or self._stack > 1:
            return (Way.STACKED if phase.epochs else Way.ONE_BY_ONE), members
        # A network with dropout would draw other numbers in a stack than for clients one by one.
        stacks = not self._stack and not self._job.net.is_random
        if not stacks and not (self._layout == "auto" and self._has_kernels):
            return one_by_one(self._layout), members
        if phase.name not in self._ways:
            self._ways[phase.name], members = self._choose(phase, order, members, stacks)
        return self._ways[phase.name], members

    def _choose(
        self, phase: Phase, order: dict[str, Any], members: Iterator[Member], stacks: bool
    ) -> tuple[Way, Iterator[Member]]:
        question = _QUESTION + phase.name
        answer = self._choices.recall(question)
        if answer is None or _way_of(answer) is None:
            most = len(self._pool) * WIDTH
            head = list(islice(members, most))
            members = chain(head, members)
            share = -(-len(head) // len(self._pool))
            found = self._try(order, head[:share], Question(self._layout, stacks, more=len(head) == most))
            if found is None:
                return one_by_one(self._layout), members
            answer = self._choices.settle(question, Answer(found.way, found.why))
        way = _way_of(answer) or one_by_one(self._layout)
        self._events.append(Chosen(f"clients of phase '{phase.name}'", way, answer.why))
        return way, members

    def _try(self, order: dict[str, Any], members: Sequence[Member], question: Question) -> Choice | None:
        clients = [member.client for member in members]
        message = {"kind": "trial", "clients": clients, "question": dataclasses.asdict(question), **order}
        trial = Item(0, message, packed([_own(member) for member in members]))
        (reply,) = (reply.message for reply in self._pool.work(iter([trial])))
        if "failed" in reply:
            return Choice(one_by_one(self._layout), f"since the trial failed: {reply['failed']}")
        found = reply["choice"]
        return Choice(Way(found["way"]), found["why"]) if found else None

    def _items(self, order: dict[str, Any], members: Iterator[Member], side_by_side: int) -> Iterator[Item]:
        if side_by_side == 1:
            yield from (_item(index, member, order) for index, member in enumerate(members))
            return
        index = 0
        for bundle in bundles(members, len(self._pool), side_by_side):
            singles = tuple(_item(index + position, member, order) for position, member in enumerate(bundle))
            index += len(bundle)
            if len(singles) == 1:
                yield singles[0]
            else:
                message = {"kind": "bundle", "clients": [member.client for member in bundle], **order}
                yield Item(singles[0].index, message, packed([item.arrays for item in singles]), singles)

    def _say_once(self, events: Iterable[Event]) -> None:
        """Report each event once, although every worker finds the same."""
        for event in events:
            if event not in self._said:
                self._said.add(event)
                self._events.append(event)

    def _scoring(self, models: Iterable[Tree], on: HeldOut, kind: str = "evaluate") -> Iterator[Item]:
        """Each model's scoring in the parts that `evaluate` adds up, so that workers share the rows of one model."""
        rows, at_once = len(rows_of(self._job, on)), evaluation_rows(self._job)
        # Forward passes gain more from channels last than whole steps do, so one phase that chose it is enough.
        last_wins = Way.CHANNELS_LAST in self._ways.values()
        last = one_by_one(self._layout) is Way.CHANNELS_LAST or last_wins
        order = {"kind": kind, "on": on, "channels_last": last}
        index = 0
        for model in models:
            for part, first in enumerate(range(0, rows, at_once)):
                stop = min(first + at_once, rows)
                yield Item(index, {**order, "part": part, "first": first, "last": stop}, {"model": model})
                index += 1


def _way_of(answer: Answer) -> Way | None:
    """The way an answer names; None for an unknown one, say of another version."""
    return Way(answer.value) if answer.value in set(Way) else None


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1


def _item(index: int, member: Member, order: dict[str, Any]) -> Item:
    return Item(index, {"kind": "run", "client": member.client, **order}, _own(member))


def _own(member: Member) -> Tree:
    own = {"personal": member.personal, "state": member.state}
    beside = {"moments": member.moments, "book": member.book}
    return {**own, **{name: kept for name, kept in beside.items() if kept}}
