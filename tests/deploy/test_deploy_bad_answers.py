"""One bad site among five: its answers are refused with the reason, and the model is that of the others."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from bad_answers import BAD, KINDS, Culprit, arrays, packets
from federation import NAMES, Federation, difference, write_digits

from fewfed import tree
from fewfed.deploy import messages
from fewfed.deploy.messages import Reply, pack
from fewfed.deploy.parcel import Parcel
from fewfed.deploy.security.envelope import Expected, Opened, seal, unseal
from fewfed.deploy.status import read_status
from fewfed.engine import storage
from fewfed.engine.packet import Packet
from fewfed.runs.folder import MODEL, RunFolder


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two rounds in which one site says of itself that it failed: what runs with a bad site must come to."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("without")
    write_digits(folder)
    federation = Federation(folder, rounds=2, quorum=3)
    Culprit(federation, lambda opened, culprit: culprit.sealed(opened.about, Reply(failed="no").body()))
    return Path(federation.run().folder)


@pytest.mark.parametrize("kind", KINDS)
def test_one_bad_site_is_left_out_with_the_reason(kind: str, tmp_path: Path, without: Path) -> None:
    spoil, said = KINDS[kind]
    write_digits(tmp_path)
    federation = Federation(tmp_path, rounds=2, quorum=3)
    Culprit(federation, spoil)
    found = Path(federation.run().folder)
    records = RunFolder(found).metrics()
    for record in records:
        (failed,) = record["failed"]
        assert failed["client"] == NAMES.index(BAD)
        assert failed["cause"] == "packet"
    assert said in records[-1]["failed"][0]["reason"]
    assert difference(storage.load(found / MODEL)[0], storage.load(without / MODEL)[0]) == 0.0
    assert read_status(found)["sites"][BAD]["strikes"] == 2


def test_labels_and_rows_that_cannot_be(tmp_path: Path) -> None:
    def labels(packet: Packet) -> Packet:
        if "labels" not in packet.arrays:
            return packet
        return dataclasses.replace(packet, arrays={**packet.arrays, "labels": packet.arrays["labels"] + 50})

    def many(packet: Packet) -> Packet:
        if "labels" not in packet.arrays:
            return packet
        return dataclasses.replace(packet, arrays=tree.map(lambda part: torch.cat([part] * 40), packet.arrays))

    for number, (change, said) in enumerate(((labels, "go up to"), (many, "rows: expected at most"))):
        folder = tmp_path / str(number)
        folder.mkdir()
        write_digits(folder)
        federation = Federation(folder, "flea", rounds=2, quorum=3)
        Culprit(federation, packets(change))
        reasons = [failed["reason"] for record in RunFolder(Path(federation.run().folder)).metrics()
                   for failed in record["failed"]]  # fmt: skip
        assert reasons
        assert all(said in reason for reason in reasons)


def test_a_site_with_three_strikes_is_not_asked_any_more(tmp_path: Path) -> None:
    write_digits(tmp_path)
    federation = Federation(tmp_path, rounds=6, quorum=3, federation="strikes = 3\nquarantine = 2")
    asked: list[int] = []

    def spoil(opened: Opened, culprit: Culprit) -> Parcel:
        asked.append(opened.about.round)
        return arrays(lambda leaf: leaf * float("nan"))(opened, culprit)  # type: ignore[return-value]

    Culprit(federation, spoil)
    records = RunFolder(Path(federation.run().folder)).metrics()
    reasons = [record["failed"][0]["reason"] for record in records]
    assert asked == [0, 1, 2, 5]
    assert ["quarantine" in reason for reason in reasons] == [False, False, False, True, True, False]


def test_scores_that_cannot_be_are_left_out(tmp_path: Path) -> None:
    write_digits(tmp_path)
    federation = Federation(tmp_path, rounds=1)
    good = federation.site(BAD)
    spoils: list[Callable[[dict[str, Any]], Any]] = [
        lambda score: {**score, "correct": [10**6] * 10},
        lambda score: {**score, "loss": -1.0},
        lambda score: {**score, "total": score["total"][:-1]},
        lambda score: {**score, "groups": {"amber": score}},
        lambda score: {**score, "correct": "all"},
        lambda score: [score],
        lambda score: {**score, "total": [0] * 10, "correct": [0] * 10},
    ]

    def answer(parcel: Parcel) -> Parcel | None:
        found = good.answer(parcel)
        assert found is not None
        opened = unseal(found.letter, Expected(), {BAD: federation.keys[BAD].public})
        if opened.about.kind != messages.SCORE:
            return found
        head, _ = messages.unpack(opened.body)
        head["score"] = spoils[current](head["score"])
        return Parcel(seal(pack(head), opened.about, federation.keys[BAD]))

    for current in range(len(spoils)):
        federation = dataclasses.replace(federation, out=f"run-{current}")
        good = federation.site(BAD)
        federation.transport.restart(BAD, answer)
        (record,) = RunFolder(Path(federation.run().folder)).metrics()
        assert record["per_group"].keys() == set(NAMES) - {BAD}, current
        assert record["failed"] == []
