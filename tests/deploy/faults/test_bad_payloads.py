"""One bad site of four: whatever it sends, the run goes on, says why it was refused, and is none the worse for it.

The site's last step before it sends is tampered with. The model must be, bit for bit, that of a run in which the bad
site never answered what was refused: its accuracy is that of a run without it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from disturbed import Turn, missing, reference
from federation import Federation, difference, write_digits
from forging import FORGERIES, SCORES, Answer, Forger, Forgery
from in_process import Answering
from typer.testing import CliRunner

from fewfed.cli.app import app
from fewfed.deploy import messages
from fewfed.deploy.messages import Reply
from fewfed.deploy.parcel import Parcel
from fewfed.deploy.security.names import COORDINATOR
from fewfed.deploy.status import read_status
from fewfed.engine import storage
from fewfed.runs.folder import MODEL, RunFolder

FOUR = ("amber", "birch", "cedar", "delta")
BAD, ROUNDS = "delta", 3
OFTEN = (
    "empty", "random bytes", "truncated", "a bit of the body flipped", "replayed", "signed by another site",
    "of another round", "nested deeply", "an array of a terabyte", "wrong shapes", "not a number", "a negative weight",
    "labels of no class", "too many rows", "an array whose name is a path",
)  # fmt: skip
"""Kinds that are tried whenever tests are run; the others with the thorough ones."""


class References:
    """Runs in which the bad site kept silent, each made once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: dict[frozenset[Turn], Path] = {}

    def without(self, turns: set[Turn]) -> Path:
        key = frozenset(turns)
        if key not in self._made:
            self._made[key] = reference(self._folder / str(len(self._made)), key, ROUNDS, names=FOUR)
        return self._made[key]


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> References:
    return References(tmp_path_factory.mktemp("references"))


def forged(federation: Federation, forgery: Forgery, kind: str = messages.PHASE) -> tuple[Answering, Forger]:
    keys = federation.keys
    forger = Forger(BAD, forgery, keys[BAD], keys["amber"], keys[COORDINATOR].public, kind)
    site = federation.site(BAD)

    def answered(parcel: Parcel) -> Parcel | None:
        answer = site.answer(parcel)
        return None if answer is None else forger.spoiled(parcel, answer)

    return answered, forger


def four(folder: Path) -> Federation:
    write_digits(folder)
    return Federation(folder, "flea", ROUNDS, names=FOUR, quorum=3, deadline=30.0)


def shown(out: Path) -> str:
    """What `fewfed status` prints, without the breaks of its table."""
    found = CliRunner().invoke(app, ["status", str(out), "--json"], env={"COLUMNS": "2000"})
    assert found.exit_code == 0, found.output
    return found.output


@pytest.mark.parametrize(
    "kind", [kind if kind in OFTEN else pytest.param(kind, marks=pytest.mark.thorough) for kind in FORGERIES]
)
def test_a_bad_answer_in_a_phase(
    kind: str, tmp_path: Path, references: References, caplog: pytest.LogCaptureFixture
) -> None:
    forgery, said = FORGERIES[kind]
    federation = four(tmp_path)
    answered, forger = forged(federation, forgery)
    federation.transport.restart(BAD, answered)
    with caplog.at_level(logging.WARNING, "fewfed.coordinator"):
        out = Path(federation.run().folder)
    records, turns = RunFolder(out).metrics(), missing(out, FOUR)
    assert len(records) == ROUNDS
    assert forger.forged > 0
    assert {site for _, _, site in turns} == {BAD}
    refused = [failed for record in records for failed in record["failed"] if "quarantine" not in failed["reason"]]
    assert all(said in failed["reason"] and failed["cause"] == "packet" for failed in refused), refused
    assert any(BAD in line and said in line for line in caplog.messages)
    site = read_status(out)["sites"][BAD]
    assert site["strikes"] == len(refused) == min(forger.forged, 3)
    assert site["quarantined"] == (site["strikes"] == 3)
    assert said in site["last_strike"]
    assert said in shown(out)
    others = [each for name, each in read_status(out)["sites"].items() if name != BAD]
    assert [each["strikes"] for each in others] == [0, 0, 0]
    like = references.without(turns)
    assert difference(storage.load(out / MODEL)[0], storage.load(like / MODEL)[0]) == 0.0
    for mine, other in zip(records, RunFolder(like).metrics(), strict=True):
        for name in FOUR[:3]:
            assert mine["per_group"][name] == other["per_group"][name]


@pytest.mark.parametrize("kind", [*SCORES, "no JSON"])
def test_a_bad_score(kind: str, tmp_path: Path, references: References, caplog: pytest.LogCaptureFixture) -> None:
    """What is wrong with a score does nothing to the model; the site's rows are left out of the round's accuracy."""
    federation = four(tmp_path)
    forgery = FORGERIES[kind][0] if kind in FORGERIES else partial(_scored, SCORES[kind])
    answered, forger = forged(federation, forgery, messages.SCORE)
    federation.transport.restart(BAD, answered)
    with caplog.at_level(logging.WARNING, "fewfed.coordinator"):
        out = Path(federation.run().folder)
    records = RunFolder(out).metrics()
    assert forger.forged > 0
    assert all(set(record["per_group"]) == set(FOUR[:3]) for record in records)
    assert any(BAD in line and "refused" in line for line in caplog.messages)
    site = read_status(out)["sites"][BAD]
    assert site["strikes"] == min(forger.forged, 3), "a bad score is a strike like any other"
    like = references.without(missing(out, FOUR))
    assert difference(storage.load(out / MODEL)[0], storage.load(like / MODEL)[0]) == 0.0


def _scored(change: Mapping[str, object], answer: Answer) -> bytes:
    score: dict[str, Any] = dict(Reply.read(answer.body).score or {})
    for name, value in change.items():
        score[name] = _filled(score[name], value) if name in score else value
    return answer.sealed(messages.pack({**messages.unpack(answer.body)[0], "score": score}))


def _filled(form: Any, value: object) -> Any:
    return [_filled(part, value) for part in form] if isinstance(form, list) else value


def test_there_are_enough_kinds() -> None:
    assert len(FORGERIES) >= 40
    assert len(OFTEN) == 15
    assert set(OFTEN) < FORGERIES.keys()
