"""A site: the same request gets the same answer, only what was accepted is remembered, and nobody else is heard."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from federation import NAMES, Federation, difference, write_digits

from fewfed.deploy import messages
from fewfed.deploy.messages import Reply, Request, Verdict
from fewfed.deploy.parcel import Parcel, digest_of
from fewfed.deploy.security.envelope import About, Direction, Expected, new_nonce, seal, unseal
from fewfed.deploy.security.keys import SigningKey
from fewfed.deploy.security.names import COORDINATOR
from fewfed.deploy.site.home import Home, Kept, Stale
from fewfed.deploy.site.work import accepted, own_policies
from fewfed.engine import storage
from fewfed.engine.own_folder import OwnFolder
from fewfed.engine.packet import SERVER, Packet, decode, encode
from fewfed.engine.storage import Damaged
from fewfed.errors import ConfigError, RunError
from fewfed.phase import Clock
from fewfed.runs.folder import CHECKPOINT

RUN = "run-1"


@dataclasses.dataclass
class Desk:
    """A coordinator by hand: it writes single letters to one site."""

    federation: Federation
    name: str = "amber"

    def __post_init__(self) -> None:
        self.site = self.federation.site(self.name)
        self.coordinator = self.federation.coordinator()
        self.offer = self.coordinator.config.offer()
        self.job = self.coordinator.job(_known(self))

    def about(self, kind: str, round: int = 0, phase: str = "", attempt: int = 0, **changes: Any) -> About:
        made = About(RUN, round, phase, kind, attempt, Direction.REQUEST, COORDINATOR, self.name, new_nonce())
        return dataclasses.replace(made, **changes)

    def ask(self, about: About, body: bytes, attached: bytes = b"", key: SigningKey | None = None) -> bytes | None:
        """The body of the site's answer, whose envelope must fit; None where it does not answer."""
        sealed = seal(body, about, key or self.federation.keys[COORDINATOR])
        answer = self.site.answer(Parcel(sealed, attached))
        if answer is None:
            return None
        keys = {self.name: self.federation.keys[self.name].public}
        return unseal(answer.letter, Expected.exactly(about.reply()), keys).body

    def join(self) -> None:
        assert self.ask(self.about(messages.JOIN), self.offer.body())
        body = messages.pack({"mode": "none", "common": None, "sites": {}})
        found = self.ask(self.about(messages.BEGIN), body)
        assert found is not None
        assert Reply.read(found).failed == ""

    def train(self, round: int, *settled: Verdict, attempt: int = 0, model: Any = None, phase: str = "train") -> Reply:
        """Ask for a turn in a round."""
        does = self.job.phase("train", Clock(0, 5, 2)).does
        arrays = does.broadcast(self.job.method.server_init(self.job.setup)) if model is None else model
        attached = encode(Packet(round, phase, SERVER, 1.0, arrays))
        body = Request(settled, attached=digest_of(attached)).body()
        found = self.ask(self.about(messages.PHASE, round, phase, attempt), body, attached)
        assert found is not None
        return Reply.read(found)

    def restart(self) -> None:
        self.site = self.federation.site(self.name)

    @property
    def home(self) -> Home:
        return Home(OwnFolder(self.federation.folder / f"state-run-{self.name}" / RUN))


def _known(desk: Desk) -> Any:
    from fewfed.deploy.coordinator.known_sites import KnownSites
    from fewfed.deploy.model import task_of

    return KnownSites(desk.offer, {}, task_of(desk.offer))


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    write_digits(tmp_path)
    made = Desk(Federation(tmp_path, "scaffold"))
    made.join()
    return made


def joined(desk: Desk, out: str) -> Desk:
    """The same site with another disk."""
    made = Desk(dataclasses.replace(desk.federation, out=out))
    made.join()
    return made


def scaffold(desk: Desk, shift: float = 0.0) -> Any:
    server = desk.job.method.server_init(desk.job.setup)
    shared = desk.job.method.broadcast(server)
    return {**shared, "model": _shifted(shared["model"], shift)}


def _shifted(tree: Any, by: float) -> Any:
    return tree + by if isinstance(tree, torch.Tensor) else {name: _shifted(part, by) for name, part in tree.items()}


def test_a_repeated_request_gets_the_same_answer_and_changes_nothing(desk: Desk) -> None:
    first = desk.train(0)
    assert first.failed == ""
    assert decode(first.content).steps > 0
    assert desk.train(0) == first
    desk.restart()
    assert desk.train(0) == first
    assert desk.home.kept().state is None, "nobody has accepted it"


def test_only_what_was_accepted_is_remembered(desk: Desk) -> None:
    desk.train(0)
    second = desk.train(1, Verdict(0, "train", True))
    after = desk.home.kept().state
    assert after is not None
    other = joined(desk, "other")
    other.train(0)
    refused = other.train(1, Verdict(0, "train", False))
    # SCAFFOLD corrects by what it remembers: whoever remembers nothing trains otherwise.
    ours, theirs = decode(second.content).arrays, decode(refused.content).arrays
    assert difference(ours["model"], theirs["model"]) > 0


def test_what_is_not_said_to_be_accepted_is_undone(desk: Desk) -> None:
    desk.train(0)
    never_told = desk.train(1)
    told = joined(desk, "told")
    told.train(0)
    assert told.train(1, Verdict(0, "train", False)) == never_told


def test_a_killed_site_goes_on_with_what_was_accepted(desk: Desk) -> None:
    twin = joined(desk, "twin")
    for round in range(4):
        verdicts = [Verdict(round - 1, "train", True)] if round else []
        desk.restart()
        assert desk.train(round, *verdicts) == twin.train(round, *verdicts)


def test_a_later_attempt_may_ask_with_other_inputs_and_an_earlier_one_may_not(desk: Desk) -> None:
    desk.train(0)
    first = desk.train(1, Verdict(0, "train", True))
    assert "another broadcast" in desk.train(1, Verdict(0, "train", True), model=scaffold(desk, 0.01)).failed
    second = desk.train(1, Verdict(0, "train", True), attempt=1, model=scaffold(desk, 0.01))
    assert second.failed == ""
    assert second != first
    assert "later attempt" in desk.train(1, Verdict(0, "train", True), attempt=0).failed
    # The answer that was given first is undone: what is remembered is that of round 1.
    assert len(desk.home._entries) == 2


def test_a_request_of_the_past_is_refused(desk: Desk) -> None:
    for round in range(4):
        desk.train(round, *([Verdict(round - 1, "train", True)] if round else []))
    assert "is over here" in desk.train(0, model=scaffold(desk, 0.5)).failed
    assert desk.train(2, Verdict(1, "train", True)).failed == "", "the round before is still known"


def test_a_coordinator_may_go_back_one_round(desk: Desk) -> None:
    for round in range(3):
        desk.train(round, *([Verdict(round - 1, "train", True)] if round else []))
    again = desk.train(1, Verdict(0, "train", True), attempt=1, model=scaffold(desk, 0.01))
    assert again.failed == ""
    assert [entry.round for entry in desk.home._entries] == [1], "the first is folded into what is remembered"


def test_few_files_are_kept_however_many_rounds(desk: Desk) -> None:
    for round in range(5):
        desk.train(round, *([Verdict(round - 1, "train", True)] if round else []))
    folder = desk.federation.folder / "state-run-amber" / RUN
    assert len(list(folder.glob("*.safetensors"))) <= 4
    assert not list(folder.glob("*.part"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"sender": "birch"}, "not on the list"),
        ({"recipient": "birch"}, "recipient"),
        ({"direction": Direction.REPLY}, "reply"),
    ],
    ids=["another sender", "for another site", "a reply"],
)
def test_letters_of_others_are_not_answered(
    desk: Desk, change: dict[str, Any], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert desk.ask(desk.about(messages.JOIN, **change), desk.offer.body()) is None
    assert said in caplog.text


def test_a_wrong_key_or_an_altered_letter_is_not_answered(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    about = desk.about(messages.JOIN)
    assert desk.ask(about, desk.offer.body(), key=SigningKey.new()) is None
    sealed = bytearray(seal(desk.offer.body(), about, desk.federation.keys[COORDINATOR]))
    sealed[-5] ^= 1
    assert desk.site.answer(Parcel(bytes(sealed))) is None
    assert desk.site.answer(Parcel(b"")) is None
    assert caplog.text.count("refused") == 3


@pytest.mark.parametrize("run", ["../outside", "a/b", "..", "A", "x" * 65])
def test_a_path_in_the_name_of_a_run_is_refused(desk: Desk, run: str) -> None:
    before = sorted(path.name for path in desk.federation.folder.rglob("*"))
    found = desk.ask(desk.about(messages.JOIN, run=run), desk.offer.body())
    assert found is not None
    assert "the run is called" in Reply.read(found).failed
    assert sorted(path.name for path in desk.federation.folder.rglob("*")) == before


def _offer(desk: Desk, **changes: Any) -> bytes:
    return dataclasses.replace(desk.offer, **changes).body()


def _config(desk: Desk, part: str, **changes: Any) -> dict[str, Any]:
    config = json.loads(json.dumps(desk.offer.config))
    if part:
        config[part] |= changes
    else:
        config |= changes
    return config


OFFERS: dict[str, tuple[Callable[[Desk], bytes], str]] = {
    "a method in a file": (lambda desk: _offer(desk, config=_config(desk, "", method="evil.py")), "code in a file"),
    "a wrapped method in a file": (
        lambda desk: _offer(desk, config=_config(desk, "", method="sem(evil.py)")),
        "code in a file",
    ),
    "a network in a file": (
        lambda desk: _offer(desk, config=_config(desk, "experiment", network="evil.py:build")),
        "code in a file",
    ),
    "a first model in a folder": (
        lambda desk: _offer(desk, config=_config(desk, "experiment", start_from="/somewhere")),
        "start_from",
    ),
    "rows that are said to be public": (
        lambda desk: _offer(desk, config=_config(desk, "experiment", rows_public=True)),
        "not for the coordinator to say",
    ),
    "other inputs": (lambda desk: _offer(desk, shape=(65,)), "expected the federation's"),
    "fewer classes": (lambda desk: _offer(desk, classes=("0", "1")), "that the federation lacks"),
    "another task": (lambda desk: _offer(desk, task="segmentation"), "classification"),
    "without this site": (lambda desk: _offer(desk, sites=("birch", "cedar")), "not on the run's list"),
    "sites in disorder": (lambda desk: _offer(desk, sites=tuple(reversed(NAMES))), "order"),
    "an unknown method": (lambda desk: _offer(desk, config=_config(desk, "", method="fedavgg")), "fedavg"),
    "a damaged configuration": (lambda desk: _offer(desk, config={"method": 3}), "damaged"),
    "an endless shape": (lambda desk: _offer(desk, shape=(1 << 31, 1 << 31)), "fits into memory"),
    "no JSON": (lambda desk: b"\x05\x00\x00\x00hello", "not JSON"),
    "a head that claims too much": (lambda desk: b"\xff\xff\xff\xff{}", "claims"),
}


@pytest.mark.parametrize("kind", OFFERS)
def test_offers_that_a_site_declines(desk: Desk, kind: str) -> None:
    make, said = OFFERS[kind]
    found = desk.ask(desk.about(messages.JOIN, run="run-2"), make(desk))
    assert found is not None
    assert said in Reply.read(found).failed
    assert not (desk.federation.folder / "state-run-amber" / "run-2").exists()


def test_the_same_run_with_other_settings_is_refused(desk: Desk) -> None:
    found = desk.ask(desk.about(messages.JOIN), _offer(desk, config=_config(desk, "training", lr=0.5)))
    assert found is not None
    assert "other settings" in Reply.read(found).failed


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda shared: {**shared, "model": _shifted(shared["model"], float("nan"))}, "NaN"),
        (lambda shared: {name: part for name, part in shared.items() if name != "model"}, "missing"),
        (lambda shared: {**shared, "extra": torch.zeros(3)}, "unknown"),
        (lambda shared: {**shared, "model": _shifted(shared["model"], 0.0) | {"more": torch.zeros(2)}}, "unknown"),
    ],
    ids=["no number", "something is missing", "something is too much", "something inside is too much"],
)
def test_broadcasts_that_a_site_refuses(desk: Desk, spoil: Callable[[Any], Any], said: str) -> None:
    assert said in desk.train(0, model=spoil(scaffold(desk))).failed
    assert desk.train(0).failed == ""


def test_what_is_attached_must_be_what_the_letter_names(desk: Desk) -> None:
    attached = encode(Packet(0, "train", SERVER, 1.0, scaffold(desk)))
    body = Request(attached=digest_of(attached)).body()
    found = desk.ask(desk.about(messages.PHASE, 0, "train"), body, attached[:-1] + b"x")
    assert found is not None
    assert "attached" in Reply.read(found).failed


def test_a_run_that_nobody_offered_is_not_known(desk: Desk) -> None:
    found = desk.ask(desk.about(messages.PHASE, 0, "train", run="run-9"), Request().body())
    assert found is not None
    assert Reply.read(found).unknown_run


@pytest.mark.parametrize("phase", ["nothing", "train "])
def test_phases_and_rounds_that_are_none(desk: Desk, phase: str) -> None:
    assert "none of round" in desk.train(0, phase=phase).failed
    assert "was asked for" in desk.train(99).failed


def test_a_damaged_disk_is_told(desk: Desk) -> None:
    desk.train(0)
    folder = desk.federation.folder / "state-run-amber" / RUN
    (file,) = folder.glob("*.safetensors")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    desk.restart()
    assert "damaged" in desk.train(0).failed
    (folder / "index.json").write_text("{")
    with pytest.raises(Damaged):
        Home(OwnFolder(folder))


def test_a_full_disk_fails_the_turn_and_nothing_else(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: OwnFolder, name: str, content: bytes, durable: bool = True) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(OwnFolder, "write", full)
        assert "No space left" in desk.train(0).failed
    assert desk.train(0).failed == ""


def test_the_book_of_what_left_never_goes_back(tmp_path: Path) -> None:
    home = Home(OwnFolder(tmp_path / "home"))
    for round in range(4):
        place = ("training", round, "share")
        kept = home.begin(place)
        count = kept.book.get("policy", {}).get("total", torch.tensor(0))
        assert int(count) == round
        book = {"policy": {"total": count + 1}}
        home.keep(place, 0, str(round), b"answer", Kept(state={"n": torch.tensor(round)}, book=book))
        assert home.kept().state is None, "not one of the answers was accepted"
        home = Home(OwnFolder(tmp_path / "home"))
    assert int(home.kept().book["policy"]["total"]) == 4


def test_an_old_request_of_the_exchange_before_the_run_is_refused(tmp_path: Path) -> None:
    home = Home(OwnFolder(tmp_path / "home"))
    home.keep(("training", 0, "train"), 0, "a", b"answer", Kept())
    with pytest.raises(Stale):
        home.found(("scaling", 0, "measure values"), 0, "b")


def test_what_is_forgotten_is_never_taken_for_new(tmp_path: Path) -> None:
    home = Home(OwnFolder(tmp_path / "home"))
    for round in range(5):
        place = ("training", round, "train")
        assert home.found(place, 0, str(round)) is None
        home.begin(place)  # Nobody accepts anything: what was answered before is dropped.
        if round < 4:  # The last turn fails, so that no answer is left at all.
            home.keep(place, 0, str(round), b"answer", Kept())
    for _ in range(2):
        assert not home._entries
        for round in range(4):
            for asked in (str(round), "another broadcast"):
                with pytest.raises(Stale, match="is over here"):
                    home.found(("training", round, "train"), 0, asked)
        assert home.found(("training", 4, "train"), 0, "4") is None, "a turn that failed may be asked for again"
        assert home.found(("training", 3, "another"), 0, "x") is None
        home = Home(OwnFolder(tmp_path / "home"))
    home.hear(1)
    assert home.found(("training", 3, "train"), 1, "3") is None, "a coordinator that was resumed may go back"


def test_a_phase_that_was_answered_and_undone_is_not_answered_again(tmp_path: Path) -> None:
    home = Home(OwnFolder(tmp_path / "home"))
    for phase in ("share", "train"):
        home.begin(("training", 0, phase))
        home.keep(("training", 0, phase), 0, phase, b"answer", Kept())
    with pytest.raises(Stale):
        home.found(("training", 0, "share"), 0, "share")
    assert home.found(("training", 0, "train"), 0, "train") == b"answer"


def test_letters_of_an_earlier_attempt_are_not_heard(desk: Desk) -> None:
    desk.train(0)
    desk.train(1, Verdict(0, "train", True))
    attached = encode(Packet(1, "scores 1", SERVER, 1.0, desk.job.method.server_init(desk.job.setup)["model"]))
    told_otherwise = Request((Verdict(0, "train", False),), attached=digest_of(attached)).body()
    old = desk.about(messages.SCORE, 1, "scores 1")
    before = desk.train(1, Verdict(0, "train", True), attempt=1)
    assert before.failed == ""
    for restarted in (False, True):
        if restarted:
            desk.restart()
        found = desk.ask(old, told_otherwise, attached)
        assert found is not None
        assert "later attempt" in Reply.read(found).failed
        assert [entry.accepted for entry in desk.home._entries] == [True, False], "what it heard before stays"
        assert "later attempt" in desk.train(0).failed


def test_an_answer_that_could_not_be_written_down_was_not_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, place = Home(OwnFolder(tmp_path / "home")), ("training", 0, "train")
    home.begin(place)
    with monkeypatch.context() as patch:
        patch.setattr(Home, "_write_index", lambda _: (_ for _ in ()).throw(RunError("No space left")))
        with pytest.raises(RunError):
            home.keep(place, 0, "a", b"answer", Kept())
    assert home.found(place, 0, "a") is None
    assert home.found(place, 0, "b") is None


def test_a_site_uses_noise_of_the_operating_system(tmp_path: Path) -> None:
    write_digits(tmp_path)
    desks = [Desk(Federation(tmp_path, "dp(fedavg)", out=out)) for out in ("one", "two")]
    for each in desks:
        each.join()
    ours, theirs = (decode(each.train(0).content).arrays for each in desks)
    assert difference(ours, theirs) > 0, "the same seed, and still other noise"
    run = desks[0].site._runs[RUN]
    assert run.jobs[messages.TRAINING].plan.protection == "system"
    kept = Home(OwnFolder(tmp_path / "state-one-amber" / RUN))
    assert float(kept.kept().book["ledger"]["server"].max()) > 0, "what left is billed at the site"


def test_a_run_can_be_resumed_after_every_round(tmp_path: Path) -> None:
    write_digits(tmp_path)
    whole = Federation(tmp_path, "scaffold", rounds=4, out="whole")
    whole.run()
    parts = Federation(tmp_path, "scaffold", rounds=4, out="parts")

    class Stop(Exception):
        pass

    @dataclasses.dataclass
    class After:
        round: int

        def after_round(self, view: Any) -> None:
            if view.clock.round == self.round:
                raise Stop

    for round in range(4):  # An observer comes before the checkpoint: the round is asked for again.
        with pytest.raises(Stop):
            parts.run(resume=round > 0, observers=[After(round)])
        for name in NAMES:
            parts.transport.restart(name, parts.site(name).answer)
    parts.run(resume=True)
    ours, theirs = (storage.load(tmp_path / out / CHECKPOINT)[0] for out in ("parts", "whole"))
    assert difference(ours, theirs) == 0.0


def test_a_table_of_a_policy_that_is_for_no_site_is_refused_and_the_coordinator_is_not_told_what_it_says(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A number is no name of a real site: passed over, it would let go what the site meant to keep."""
    write_digits(tmp_path)
    desk = Desk(Federation(tmp_path, policies={"amber": "[site.2]\nroles = ['model']\n"}))
    with caplog.at_level(logging.WARNING):
        answer = desk.ask(desk.about(messages.JOIN), desk.offer.body())
    assert answer is not None
    assert Reply.read(answer).failed == "its policy cannot be applied: its own log says why"
    assert "has a table [site.2], and no site is called so" in caplog.text
    assert "expected [site.amber] for this one" in caplog.text
    for text, roles in (
        ("[site.amber]\nroles = ['model']\n", ("model",)),
        ("[site.birch]\nroles = ['model']\n", None),
        ("[site.amber]\nroles = ['model']\n[site.birch]\ngroup = 2\n", ("model",)),
    ):
        (tmp_path / "amber.toml").write_text(text)
        assert own_policies(tmp_path / "amber.toml", "amber", NAMES)
        work = accepted("amber", desk.offer, desk.site._settings.dataset, tmp_path / "amber.toml", b"")
        assert work.policy.roles == roles
    (tmp_path / "amber.toml").write_text("[site.elsewhere]\ngroup = 2\n")
    with pytest.raises(ConfigError, match=r"a table \[site.elsewhere\]"):
        own_policies(tmp_path / "amber.toml", "amber", NAMES)
    assert own_policies(tmp_path / "amber.toml", "amber", [*NAMES, "elsewhere"])
