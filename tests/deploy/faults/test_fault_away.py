"""A site that is away for many rounds: what it remembers is what was accepted before it left."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from disturbed import TRIO, assert_equals, reference
from federation import Federation, write_digits
from in_process import Answering

from fewfed.deploy.parcel import Parcel
from fewfed.deploy.security.envelope import Direction, Expected, unseal
from fewfed.deploy.security.names import COORDINATOR
from fewfed.engine.loop import RoundView

ROUNDS, LEFT, BACK = 9, 2, 7


def test_a_site_that_left_before_it_heard_of_its_last_answer_still_keeps_it(tmp_path: Path) -> None:
    """It answers round 2 and is gone before anything else reaches it, also the question for a score."""
    (tmp_path / "away").mkdir()
    write_digits(tmp_path / "away")
    federation = Federation(tmp_path / "away", "scaffold", ROUNDS, names=TRIO, quorum=2, deadline=0.3)
    federation.transport.restart("cedar", _away(federation, federation.site("cedar").answer))
    found = Path(federation.run(observers=[_Back(federation)]).folder)
    turns = {(round, "train", "cedar") for round in range(LEFT, BACK)}
    assert_equals(found, reference(tmp_path / "reference", turns, ROUNDS, "scaffold"), scored=False)


@dataclass(frozen=True)
class _Back:
    """Starts the site again, with what is on its disk, in time for a round."""

    federation: Federation

    def after_round(self, view: RoundView) -> None:
        if view.clock.round == BACK - 1:
            self.federation.transport.restart("cedar", self.federation.site("cedar").answer)


def _away(federation: Federation, answer: Answering) -> Answering:
    keys = {COORDINATOR: federation.keys[COORDINATOR].public}
    expected = Expected(direction=Direction.REQUEST, recipient="cedar", sender=COORDINATOR)

    def answered(parcel: Parcel) -> Parcel | None:
        about = unseal(parcel.letter, expected, keys).about
        scores = about.kind == "score"
        return None if about.round >= LEFT - scores else answer(parcel)

    return answered
