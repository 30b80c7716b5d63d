"""The record is what was sent: the same whoever computes, bounded, resumable, and refused where it is damaged."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import fewfed
from fewfed import Training, resume, run, tree
from fewfed.conformance.clients import federation
from fewfed.conformance.reference import job_for
from fewfed.engine.executor import Briefing, Executor, Invited
from fewfed.engine.executors.cuda.executor import Device
from fewfed.engine.executors.cuda.options import Options
from fewfed.engine.executors.sequential import Sequential
from fewfed.engine.executors.workers.executor import Workers
from fewfed.engine.executors.workers.options import EXACT
from fewfed.engine.job import Job, is_inside
from fewfed.engine.loop import run_rounds
from fewfed.engine.outcomes import Done, Outcome
from fewfed.engine.own_folder import OwnFolder
from fewfed.engine.packet import Packet
from fewfed.errors import ConfigError, RunError
from fewfed.privacy.record import FOLDER, INDEX, Record, phase_folder
from fewfed.privacy.recorder import Recorder
from fewfed.privacy.recording import Recording, recording_of, tenths
from fewfed.runs.experiment import resolve
from fewfed.runs.seals import sealed
from fewfed.runs.verify import verify
from fewfed.tree import Tree
from run_support import SHORT, assert_same_end, called, killed_after, records, small
from support import gap, same

ROUNDS, COHORT = 3, 4
EVERYTHING = Recording(frozenset(range(1, ROUNDS + 1)), None, 1 << 30)


def recorded(job: Job, executor: Executor, folder: Path, recording: Recording = EVERYTHING) -> tuple[Tree, Record]:
    """Run some rounds with a record of them."""
    place = OwnFolder(folder)
    place.make()
    recorder = Recorder(place, recording)
    try:
        server = run_rounds(job, executor, [recorder], rounds=ROUNDS, cohort=COHORT, witness=recorder)
    finally:
        executor.close()
    return server, Record.open(folder)


def files(folder: Path) -> dict[str, bytes]:
    """Every file of a record by its place."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def read(folder: Path) -> None:
    """Everything that a record holds, and what it should hold."""
    opened = Record.open(folder)
    for round in {1, *opened.rounds}:
        opened.exchanges(round)


@dataclass
class Overheard:
    """One phase as an executor saw it."""

    round: int
    phase: str
    shared: Tree
    personal: dict[int, Tree] = field(default_factory=dict)
    packets: dict[int, Packet] = field(default_factory=dict)


class Spy(Sequential):
    """Notes for itself what goes in and out."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.heard: list[Overheard] = []

    def run(self, briefing: Briefing, members: Iterable[Invited]) -> Iterator[Outcome]:
        here = Overheard(briefing.clock.round + 1, briefing.phase.name, tree.clone(briefing.shared))
        for outcome in super().run(briefing, self._noted(members, here)):
            if isinstance(outcome, Done):
                packet = outcome.packet
                here.packets[packet.sender] = Packet(
                    packet.round, packet.phase, packet.sender, packet.weight, tree.clone(packet.arrays), packet.metrics
                )
            yield outcome
        if not is_inside(briefing.phase):
            self.heard.append(here)

    def _noted(self, members: Iterable[Invited], here: Overheard) -> Iterator[Invited]:
        for member in members:
            if member.personal:
                here.personal[member.client] = tree.clone(member.personal)
            yield member


@pytest.mark.parametrize("spec", ["flea", "sem", "flute", "fedgen", "fedfa(fedprox)"])
def test_the_record_is_what_crossed(spec: str, tmp_path: Path) -> None:
    job = job_for(spec, {"start": 1, "steps": 4, "batch": 16} if spec == "fedgen" else None)
    spy = Spy(job)
    _, record = recorded(job, spy, tmp_path)
    found = [exchanged for round in record.rounds for exchanged in record.exchanges(round)]
    assert [(each.round, each.phase) for each in found] == [(each.round, each.phase) for each in spy.heard]
    for ours, theirs in zip(found, spy.heard, strict=True):
        assert same(ours.broadcast, theirs.shared)
        assert ours.packets.keys() == theirs.packets.keys()
        assert ours.personal.keys() == theirs.personal.keys()
        for client, packet in theirs.packets.items():
            assert same(ours.packets[client].arrays, packet.arrays)
            assert ours.packets[client].weight == packet.weight
            assert ours.packets[client].metrics == packet.metrics
        assert all(same(ours.personal[client], personal) for client, personal in theirs.personal.items())
    assert record.left_out == ()
    assert spec != "sem" or any(each.personal for each in found)


def test_worker_processes_leave_the_same_bytes(tmp_path: Path) -> None:
    for name, made in (("one", Sequential), ("many", lambda job: Workers(job, options=EXACT))):
        recorded(job_for("flea"), made(job_for("flea")), tmp_path / name)
    assert files(tmp_path / "one") == files(tmp_path / "many")


@pytest.mark.parametrize("mode", ["graphs", "stacked"])
def test_packets_that_are_combined_at_once_are_shown_whole(mode: Any, tmp_path: Path) -> None:
    job = job_for("flea")
    chosen = Recording(EVERYTHING.rounds, frozenset({0, 2, 3, 5}), 1 << 30)
    options = Options(device="cpu", mode=mode, streams=2, stack=4)
    plain = run_rounds(job, Device(job, None, options), [], rounds=ROUNDS, cohort=COHORT)
    server, ours = recorded(job, Device(job, None, options), tmp_path / "device", chosen)
    _, theirs = recorded(job, Sequential(job), tmp_path / "plain", chosen)
    assert same(server, plain), "recording changes nothing"
    assert ours.rounds == theirs.rounds
    for round in ours.rounds:
        for a, b in zip(ours.exchanges(round), theirs.exchanges(round), strict=True):
            assert (a.phase, list(a.packets), list(a.personal)) == (b.phase, list(b.packets), list(b.personal))
            assert all(gap(a.packets[client].arrays, b.packets[client].arrays) < 1e-2 for client in a.packets)
            assert all(a.packets[client].steps == b.packets[client].steps for client in a.packets)


def test_a_run_is_the_same_with_a_record_and_without(tmp_path: Path) -> None:
    run("flea", small(), SHORT, out=tmp_path / "plain")
    run("flea", small(record="packets"), SHORT, out=tmp_path / "recorded")
    assert records(tmp_path / "plain") == records(tmp_path / "recorded")
    assert_same_end(tmp_path / "recorded", tmp_path / "plain")
    assert not (tmp_path / "plain" / FOLDER).exists()
    values = {"record": "packets", "record_rounds": "1,last", "record_mb": "3"}
    assert resolve("flea", values).identity == resolve("flea", {}).identity
    assert [finding.problem for finding in verify(tmp_path / "recorded") if finding.problem] == []


def test_a_killed_run_leaves_the_record_of_one_that_was_not(tmp_path: Path) -> None:
    settings = small(rounds=6, record="packets", record_rounds="2,4-6", record_mb=1.1, checkpoint_seconds=0.0)
    run("flea", settings, SHORT, out=tmp_path / "whole")
    killed_after(
        4, tmp_path / "killed", lambda halt: run("flea", settings, SHORT, out=tmp_path / "killed", observers=[halt])
    )
    # As if the last checkpoint had come earlier than what was recorded, and a packet had been cut short.
    (tmp_path / "killed" / FOLDER / "round-00005").mkdir(exist_ok=True)
    (tmp_path / "killed" / FOLDER / "round-00005" / "train").mkdir(exist_ok=True)
    (tmp_path / "killed" / FOLDER / "round-00005" / "train" / "broadcast.packet").write_bytes(b"FEWFED")
    resume(tmp_path / "killed")
    whole, killed = files(tmp_path / "whole" / FOLDER), files(tmp_path / "killed" / FOLDER)
    assert whole == killed
    index = json.loads(whole[INDEX])
    assert not index["complete"], "the limit is reached on the way"
    assert index["bytes"] <= 1_100_000
    assert Record.open(tmp_path / "killed").rounds == (2, 4, 5)


def test_rounds_after_the_checkpoint_are_recorded_again(tmp_path: Path) -> None:
    """The index may know more rounds than the checkpoint does."""
    job = job_for("fedavg")
    recorded(job, Sequential(job), tmp_path)
    before = files(tmp_path)
    recorder = Recorder(OwnFolder(tmp_path), EVERYTHING, done=1)
    assert Record.open(tmp_path).rounds == (1,)
    stopped, again = _after_one_round(job, Sequential(job)), Sequential(job)
    run_rounds(job, again, [recorder], rounds=ROUNDS, cohort=COHORT, server=stopped, start=1, witness=recorder)
    assert files(tmp_path) == before


def _after_one_round(job: Job, executor: Executor) -> Tree:
    """The server after the first of the rounds."""
    kept: list[Tree] = []

    class Keep:
        def after_round(self, view: Any) -> None:
            kept.append(tree.clone(view.server))

    run_rounds(job, executor, [Keep()], rounds=ROUNDS, cohort=COHORT)
    return kept[0]


@pytest.mark.parametrize("most", [1, 20_000, 100_000, 400_000])
def test_what_does_not_fit_is_left_out_and_said(most: int, tmp_path: Path) -> None:
    job = job_for("flea")
    _, record = recorded(job, Sequential(job), tmp_path, Recording(EVERYTHING.rounds, None, most))
    _, whole = recorded(job, Sequential(job), tmp_path / "whole")
    written = sum(path.stat().st_size for path in tmp_path.rglob("*.packet") if "whole" not in path.parts)
    assert record.size == written <= most < whole.size
    # What is there is the beginning of what there would be, and everything else is named.
    ours = [(entry.round, entry.phase, name) for entry in record.entries for name, _ in entry.files()]
    theirs = [(entry.round, entry.phase, name) for entry in whole.entries for name, _ in entry.files()]
    assert ours == theirs[: len(ours)]
    missing = {(e.round, e.phase, client) for e in record.left_out for client in e.left_out}
    named = {(e.round, e.phase, client) for e in whole.entries for client in e.clients}
    assert missing == named - {(e.round, e.phase, client) for e in record.entries for client in e.clients}
    assert not json.loads((tmp_path / FOLDER / INDEX).read_text())["complete"]
    assert len(record.rounds) == len({round for round, _, _ in ours})


def test_chosen_rounds_and_clients(tmp_path: Path) -> None:
    job = job_for("fedavg")
    cohorts = {round + 1: set(job.plan.cohort(round, len(federation()), COHORT)) for round in range(ROUNDS)}
    _, record = recorded(job, Sequential(job), tmp_path, Recording(frozenset({1, 3}), frozenset({1, 2, 6}), 1 << 30))
    assert record.rounds == (1, 3)
    for round in record.rounds:
        (exchanged,) = record.exchanges(round)
        assert set(exchanged.packets) == cohorts[round] & {1, 2, 6}
        assert exchanged.broadcast["model"]
    with pytest.raises(RunError, match=r"round 2 is not in the record.*expected one of 1, 3"):
        record.exchanges(2)


def test_rounds_and_clients_as_a_user_writes_them() -> None:
    assert tenths(100) == (1, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100)
    assert tenths(5) == (1, 2, 3, 4, 5)
    assert tenths(1) == (1,)
    made = recording_of("1, 10,last,3-5", "0,3-4", 1.5, of_rounds=30, of_clients=5)
    assert made == Recording(frozenset({1, 3, 4, 5, 10, 30}), frozenset({0, 3, 4}), 1_500_000)
    assert recording_of("all", "all", 1, of_rounds=3, of_clients=5) == Recording(frozenset({1, 2, 3}), None, 1_000_000)
    wrong = [("0", "all"), ("31", "all"), ("", "all"), ("x", "all"), ("5-3", "all"), ("1,,2", "all"), ("-1", "all"),
             ("1", "5"), ("1", "last"), ("1", "-1"), ("٣", "all"), ("1-99999999999999999999", "all")]  # fmt: skip
    for rounds, clients in wrong:
        with pytest.raises(ConfigError, match=r"record_.*expected numbers from"):
            recording_of(rounds, clients, 1, of_rounds=30, of_clients=5)


def test_options_without_a_record_are_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="record_mb is set, but nothing is recorded"):
        run("fedavg", small(record_mb=3.0), SHORT, out=tmp_path / "run")
    with pytest.raises(ConfigError, match="record_clients = '9'"):
        run("fedavg", small(record="packets", record_clients="9"), SHORT, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    asked: Sequence[str] = (
        *("run", "fedavg", "--network", "mlp", "--clients", "6", "--cohort", "3", "--rounds", "3", "--epochs", "1"),
        *("--executor", "sequential", "--record", "packets", "--set", "record_rounds=last", "--out", "here"),
    )
    code, out, _ = called(capsys, monkeypatch, *asked)
    assert code == 0
    assert "packets of round 3" in out
    assert Record.open(tmp_path / "here").rounds == (3,)
    code, _, err = called(capsys, monkeypatch, *asked[:-1], "there", "--set", "record_mb=0.001")
    assert code == 0
    assert "left out" in err


def test_nothing_recorded_is_told() -> None:
    with pytest.raises(RunError, match="holds no packets: they are kept by a run with --record packets"):
        Record.open(Path("nowhere"))


def test_no_name_of_a_phase_leads_elsewhere(tmp_path: Path) -> None:
    names = [
        "..",
        ".",
        "../../x",
        "a/b",
        "a\\b",
        "nul\0",
        "x" * 300,
        "ü" * 300,
        "train",
        "measure values",
        "%2E%2E",
        "-",
    ]
    found = [phase_folder(name) for name in names]
    assert len(set(found)) == len(names)
    assert all(0 < len(name) <= 100 and "/" not in name and name not in (".", "..") for name in found)
    assert phase_folder("train") == "train"
    for name in found:
        (tmp_path / name).mkdir()
    assert len(list(tmp_path.iterdir())) == len(names)


def test_a_damaged_record_is_refused_in_a_sentence(tmp_path: Path) -> None:
    """Flipped, cut and lengthened files, files of others, links, missing ones: an error of fewfed's, or the same."""
    job = job_for("flea")
    _, record = recorded(job, Sequential(job), tmp_path)
    good = [record.exchanges(round) for round in record.rounds]
    assert good
    places = sorted(path for path in (tmp_path / FOLDER).rglob("*") if path.is_file())
    chance = random.Random(5)
    for _ in range(150):
        place = chance.choice(places)
        before = place.read_bytes()
        match chance.randrange(5):
            case 0:
                at = chance.randrange(len(before))
                place.write_bytes(before[:at] + bytes([before[at] ^ 1 << chance.randrange(8)]) + before[at + 1 :])
            case 1:
                place.write_bytes(before[: chance.randrange(len(before))])
            case 2:
                place.write_bytes(before + b"\0")
            case 3:
                other = chance.choice([each for each in places if each != place])
                place.write_bytes(other.read_bytes())
            case 4:
                place.unlink()
        if place.exists() and place.read_bytes() == before:
            continue
        with pytest.raises(RunError) as told:
            read(tmp_path)
        assert str(place.name) in str(told.value) or "holds no packets" in str(told.value)
        place.write_bytes(before)
    assert Record.open(tmp_path).exchanges(1)


@pytest.mark.parametrize("change", ["seed", "method", "training"])
def test_the_record_of_another_run_is_refused(tmp_path: Path, change: str) -> None:
    """Scored by the rows of this run, what another one sent would seem to tell nothing."""
    changes: dict[str, Any] = {"seed": {"seed": 1}}.get(change, {})
    values = {"share": 0.2} if change == "method" else {}
    epochs = 2 if change == "training" else 1
    first, second = tmp_path / "first", tmp_path / "second"
    fewfed.run("flea", small(rounds=1, record="packets"), Training(epochs=1), out=first)
    fewfed.run("flea", small(rounds=1, record="packets", **changes), Training(epochs=epochs), values=values, out=second)
    shutil.rmtree(first / FOLDER)
    shutil.copytree(second / FOLDER, first / FOLDER)
    with pytest.raises(RunError, match=r"index.json' is the record of another run: expected that of the run in"):
        Record.open(first)
    with pytest.raises(RunError, match="the record of another run"):
        fewfed.attack(first, ["labels"], progress=False)
    assert Record.open(second).rounds == (1,)


def test_a_forged_index_is_refused_in_a_sentence(tmp_path: Path) -> None:
    """Whoever forges a digest gets no further than a sentence."""
    job = job_for("fedavg")
    recorded(job, Sequential(job), tmp_path)
    place = tmp_path / FOLDER / INDEX
    content = json.loads(place.read_text())
    content.pop("digest")
    first = content["exchanges"][0]
    forged: list[Any] = [
        {**content, "format": 2},
        {**content, "exchanges": None},
        {**content, "exchanges": [3]},
        {**content, "exchanges": [{**first, "round": "x"}]},
        {**content, "exchanges": [{**first, "round": 2}]},
        {**content, "exchanges": [{**first, "phase": "../../etc"}]},
        {**content, "exchanges": [{**first, "broadcast": [1, "x"]}]},
        {**content, "exchanges": [{**first, "broadcast": 7}]},
        {**content, "exchanges": [{**first, "clients": {"-1": [1, "x"]}}]},
        {**content, "exchanges": [{**first, "clients": {"1e400": [1e400, "x"]}}]},
        {**content, "exchanges": [{**first, "personal": [[1, 2]]}]},
        {name: value for name, value in content.items() if name != "most_bytes"},
    ]
    for one in forged:
        place.write_bytes(sealed(one)[0])
        with pytest.raises(RunError):
            read(tmp_path)
