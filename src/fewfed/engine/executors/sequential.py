"""The reference executor: one client after another, in this process, on one thread."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fewfed.data.federation import HeldOut
from fewfed.engine.events import Event
from fewfed.engine.executor import Briefing, Invited
from fewfed.engine.executors.local import LocalExecutor
from fewfed.engine.executors.plugin import Plugin
from fewfed.engine.homes import SimulatedHomes
from fewfed.engine.job import Job
from fewfed.engine.lending import Lender
from fewfed.engine.outcomes import Outcome
from fewfed.engine.reception import Reception
from fewfed.engine.scoring import Answered, answers, evaluate
from fewfed.engine.threads import one_thread
from fewfed.task import Score
from fewfed.tree import Tree


class Sequential(LocalExecutor):
    """Readable and slow; what every other executor must agree with."""

    def __init__(self, job: Job, homes: SimulatedHomes | None = None) -> None:
        super().__init__(job, homes)
        self._lender = Lender(job)

    def run(self, briefing: Briefing, members: Iterable[Invited]) -> Iterator[Outcome]:
        reception = Reception(briefing, self.homes)
        with one_thread():
            self._lender.share(briefing.shared)
        for member in self.at_home(briefing.phase, members):
            with one_thread():
                found = self._lender.turn(briefing.phase, briefing.clock, member)
                outcome = reception.take(member.client, found)
            yield outcome
        with one_thread():
            self._lender.finish(briefing.phase)

    def evaluate(self, models: Iterable[Tree], on: HeldOut = "test") -> list[Score]:
        with one_thread():
            return [evaluate(self._job, model, on) for model in models]

    def answers(self, models: Iterable[Tree], on: HeldOut = "test") -> Iterator[Answered]:
        found = (part for number, model in enumerate(models) for part in answers(self._job, model, on, number=number))
        while True:
            with one_thread():  # Not around the yield: whoever asks may use all threads.
                part = next(found, None)
            if part is None:
                return
            yield part

    def events(self) -> list[Event]:
        return []

    def close(self) -> None:
        pass


PLUGIN = Plugin(
    "sequential",
    "one client after another in this process",
    lambda job, homes, _options, _choices: Sequential(job, homes),
)
