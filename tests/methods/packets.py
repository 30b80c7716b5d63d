"""What really left the clients of a short run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fewfed import tree
from fewfed.engine.executor import Briefing, Invited
from fewfed.engine.executors.sequential import Sequential
from fewfed.engine.job import Job
from fewfed.engine.outcomes import Done, Outcome
from fewfed.engine.packet import Packet
from fewfed.phase import Phase
from fewfed.tree import Tree
from support import Recorder, run


class Spy(Sequential):
    """Keeps every accepted packet, and what its sender was told."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.kept: list[tuple[Phase, Tree, Packet]] = []

    def run(self, briefing: Briefing, members: Iterable[Invited]) -> Iterator[Outcome]:
        for outcome in super().run(briefing, members):
            if isinstance(outcome, Done):
                self.kept.append((briefing.phase, tree.clone(briefing.shared), outcome.packet))
            yield outcome


def sent(job: Job, *, rounds: int = 1, cohort: int = 3) -> tuple[list[tuple[Phase, Tree, Packet]], Recorder]:
    """The packets with rows in them, with their phases and broadcasts, and the run."""
    spy = Spy(job)
    done = run(job, rounds=rounds, cohort=cohort, executor=spy)
    assert not any(metrics["failed"] for metrics in done.metrics)
    return [each for each in spy.kept if each[0].row_uploads], done
