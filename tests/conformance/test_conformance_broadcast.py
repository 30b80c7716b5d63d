"""Hands off: no function of any method changes anything a client is given, looked at after every single call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest
from conformance_cases import every_method, job_for, play

from fewfed.engine.executor import Briefing, Invited
from fewfed.engine.executors.sequential import Sequential
from fewfed.engine.outcomes import Outcome
from fewfed.engine.reception import Reception

pytestmark = pytest.mark.timeout(120)


class Careful(Sequential):
    """Compares every number of what clients are given after each call of their method.

    Other executors do so only after something has changed: how they notice is tested in `test_engine_lending.py`.
    """

    def run(self, briefing: Briefing, members: Iterable[Invited]) -> Iterator[Outcome]:
        reception = Reception(briefing, self.homes)
        self._lender.share(briefing.shared)
        for member in self.at_home(briefing.phase, members):
            found = self._lender.turn(briefing.phase, briefing.clock, member, careful=True)
            yield reception.take(member.client, found)


@pytest.mark.parametrize("spec", every_method())
def test_no_function_changes_what_a_client_is_given(spec: str) -> None:
    job = job_for(spec)
    played = play(job, Careful(job), rounds=2, cohort=2, evaluate_every=2)
    assert [failure["reason"] for metrics in played.metrics for failure in metrics["failed"]] == []
