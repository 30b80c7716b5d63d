"""The reference executor: one client after another, in this process, on one thread."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fewfed.engine.events import Event
from fewfed.engine.executor import Briefing, Invited
from fewfed.engine.executors.local import LocalExecutor
from fewfed.engine.executors.plugin import Plugin
from fewfed.engine.outcomes import Outcome
from fewfed.engine.reception import Reception
from fewfed.engine.scoring import evaluate
from fewfed.engine.threads import one_thread
from fewfed.engine.turn import run_turn
from fewfed.task import Score
from fewfed.tree import Tree


class Sequential(LocalExecutor):
    """Readable and slow; what every other executor must agree with."""

    def run(self, briefing: Briefing, members: Iterable[Invited]) -> Iterator[Outcome]:
        reception = Reception(briefing, self.homes)
        for member in self.at_home(members):
            with one_thread():
                found = run_turn(self._job, briefing.phase, briefing.clock, briefing.shared, member)
                outcome = reception.take(member.client, found)
            yield outcome

    def evaluate(self, models: Iterable[Tree]) -> list[Score]:
        with one_thread():
            return [evaluate(self._job, model) for model in models]

    def events(self) -> list[Event]:
        return []

    def close(self) -> None:
        pass


PLUGIN = Plugin(
    "sequential",
    "one client after another in this process",
    lambda job, homes, _options, _choices: Sequential(job, homes),
)
