"""Sums under masks between sites: the same result to the stated error, and no single model ever leaves a site."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from federation import NAMES, Federation, difference, write_digits

from fewfed import tree
from fewfed.deploy import messages
from fewfed.deploy.coordinator.run import Coordinator
from fewfed.deploy.coordinator.settings import read_config
from fewfed.deploy.messages import Request
from fewfed.deploy.parcel import Parcel
from fewfed.deploy.secure.layout import Layout
from fewfed.deploy.secure.messages import Masked
from fewfed.deploy.secure.shares import digest_of as share_digest
from fewfed.deploy.secure.site import SecureSite
from fewfed.deploy.security.envelope import Expected, unseal
from fewfed.deploy.security.names import COORDINATOR
from fewfed.deploy.site.site import Site
from fewfed.deploy.status import read_status
from fewfed.engine import storage
from fewfed.engine.packet import Packet, decode, encode
from fewfed.errors import ConfigError, RunError
from fewfed.runs.blueprint import Blueprint
from fewfed.runs.folder import CHECKPOINT, RunFolder

SECURE = "secure = true"
RAW = 'normalise = "none"'
"""Inputs as they are: a difference of one part in a million in their scaling grows in training, masks or not."""


@dataclasses.dataclass
class Tap:
    """Keeps all that leaves a site, and may cut it off at a step of a sum."""

    federation: Federation
    name: str
    cut: str = ""
    sent: list[bytes] = dataclasses.field(default_factory=list)
    steps: list[str] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        self.site = self.federation.site(self.name)
        self.federation.transport.restart(self.name, self.answer)

    def answer(self, parcel: Parcel) -> Parcel | None:
        keys = {COORDINATOR: self.federation.keys[COORDINATOR].public}
        opened = unseal(parcel.letter, Expected(), keys)
        if opened.about.kind == messages.SUM:
            step = Request.read(opened.body).step
            self.steps.append(step)
            if step == self.cut and opened.about.phase == "train":
                return None
        found = self.site.answer(parcel)
        if found is not None:
            self.sent.append(found.letter)
        return found


@pytest.mark.parametrize("method", ["fedavg", "scaffold"])
def test_a_run_under_masks_is_the_run_without(method: str, tmp_path: Path) -> None:
    write_digits(tmp_path)
    plain = Path(Federation(tmp_path, method, more=RAW, rounds=3, out="plain").run().folder)
    masked = Path(Federation(tmp_path, method, more=RAW, rounds=3, out="masked", federation=SECURE).run().folder)
    ours, theirs = (storage.load(folder / CHECKPOINT)[0] for folder in (masked, plain))
    assert 0 < difference(ours, theirs) < 1e-6
    assert [record["failed"] for record in RunFolder(masked).metrics()] == [[], [], []]


def test_inputs_are_measured_under_masks_too(tmp_path: Path) -> None:
    write_digits(tmp_path)
    found = []
    for out, more in (("plain", ""), ("masked", SECURE)):
        folder = Path(Federation(tmp_path, rounds=1, out=out, federation=more).run().folder)
        found.append(Blueprint.from_json(RunFolder(folder).blueprint()).scaling.common)
    plain, masked = found
    assert plain is not None
    assert masked is not None
    assert torch.allclose(masked.mean, plain.mean, rtol=1e-5, atol=1e-5)
    assert torch.allclose(masked.std, plain.std, rtol=1e-5, atol=1e-5)


def test_no_single_model_leaves_a_site(tmp_path: Path) -> None:
    write_digits(tmp_path)
    seen: dict[str, list[bytes]] = {}
    values: dict[str, list[Any]] = {}
    for out, more in (("plain", ""), ("masked", SECURE)):
        federation = Federation(tmp_path, more=RAW, rounds=2, out=out, federation=more)
        tap = Tap(federation, "cedar")
        federation.run()
        seen[out] = tap.sent
        run = next(iter(tap.site._runs.values()))
        values[out] = [run.home.value(("training", round, "train")) for round in range(2)]
    assert values["plain"] == [b"", b""]
    leaves = [leaf for value in values["masked"] for _, leaf in tree.leaves(decode(value).arrays) if leaf.numel() > 8]
    assert leaves
    pieces = [leaf.contiguous().numpy().tobytes()[:64] for leaf in leaves]
    assert not any(piece in letter for letter in seen["masked"] for piece in pieces)
    # The same look finds them where nothing is masked.
    plain = Federation(tmp_path, more=RAW, rounds=1, out="again")
    tap = Tap(plain, "cedar")
    plain.run()
    model = storage.load(tmp_path / "again" / CHECKPOINT)[0]["model"]
    assert any(len(letter) > tree.nbytes(model) for letter in tap.sent)


@pytest.mark.parametrize("step", ["keys", "deal", "masked", "confirmed", "revealed"])
def test_a_site_that_drops_out_at_any_step(step: str, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    write_digits(tmp_path)
    federation = Federation(tmp_path, more=RAW, rounds=1, quorum=3, deadline=0.5, federation=SECURE)
    tap = Tap(federation, "cedar", cut=step)
    (record,) = RunFolder(Path(federation.run().folder)).metrics()
    counted = step in ("confirmed", "revealed")  # From then on its vector is in the sum.
    assert len(record["failed"]) == (0 if counted else 1)
    assert record["phases"]["train"]["clients"] == (5 if counted else 4)
    assert step in tap.steps
    plain = Federation(tmp_path, more=RAW, rounds=1, quorum=3, deadline=0.5, out="plain")
    if not counted:
        site = plain.site("cedar")
        plain.transport.restart("cedar", lambda parcel: _only_before(parcel, plain, site))
    theirs = storage.load(Path(plain.run().folder) / CHECKPOINT)[0]
    assert difference(storage.load(tmp_path / "run" / CHECKPOINT)[0], theirs) < 1e-6


def _only_before(parcel: Parcel, federation: Federation, site: Any) -> Parcel | None:
    """Answers everything but turns in rounds."""
    about = unseal(parcel.letter, Expected(), {COORDINATOR: federation.keys[COORDINATOR].public}).about
    return None if about.kind == messages.PHASE and about.phase == "train" else site.answer(parcel)


def test_too_few_sites_have_no_sum(tmp_path: Path) -> None:
    write_digits(tmp_path)
    federation = Federation(tmp_path, more=RAW, rounds=1, quorum=3, deadline=0.3, federation=SECURE)
    for name in NAMES[:3]:
        Tap(federation, name, cut="masked")
    with pytest.raises(RunError, match="there is no sum: 2 of 5 sites are left"):
        federation.run()


@pytest.mark.parametrize("step", ["masked", "revealed"])
def test_a_round_in_which_too_few_are_left_is_left_out_and_the_next_one_is_not(step: str, tmp_path: Path) -> None:
    write_digits(tmp_path)
    federation = Federation(tmp_path, more=RAW, rounds=3, quorum=3, deadline=0.3, federation=SECURE)
    taps = [Tap(federation, name, cut=step) for name in NAMES[:3]]

    class Mend:
        def after_round(self, view: Any) -> None:
            for tap in taps:
                tap.cut = ""

    records = RunFolder(Path(federation.run(observers=[Mend()]).folder)).metrics()
    assert [record["phases"]["train"]["clients"] for record in records] == [0, 5, 5]
    assert {failed["cause"] for failed in records[0]["failed"]} == {"sum"}


@pytest.mark.parametrize(("threshold", "taken"), [(0, [4, 5]), (4, [4, 5]), (5, [0, 5])])
def test_as_many_as_the_threshold_says_must_answer_to_the_end(threshold: int, taken: list[int], tmp_path: Path) -> None:
    write_digits(tmp_path)
    setting = f"{SECURE}\nsecure_threshold = {threshold}"
    federation = Federation(tmp_path, more=RAW, rounds=2, quorum=5, deadline=0.3, federation=setting)
    tap = Tap(federation, "cedar", cut="masked")

    class Mend:
        def after_round(self, view: Any) -> None:
            tap.cut = ""

    records = RunFolder(Path(federation.run(observers=[Mend()]).folder)).metrics()
    assert [record["phases"]["train"]["clients"] for record in records] == taken


@pytest.mark.parametrize(("cohort", "quorum"), [(5, 3), (3, 4)])
def test_a_threshold_that_is_never_reached_is_refused(cohort: int, quorum: int, tmp_path: Path) -> None:
    write_digits(tmp_path)
    setting, more = f"{SECURE}\nsecure_threshold = 4", f"{RAW}\ncohort = {cohort}"
    with pytest.raises(ConfigError, match="secure_threshold = 4, with a cohort of"):
        Federation(tmp_path, more=more, quorum=quorum, federation=setting).run()


def test_a_site_takes_no_part_where_fewer_than_it_asks_for_could_unmask_it(tmp_path: Path) -> None:
    write_digits(tmp_path)
    federation = Federation(tmp_path, more=RAW, rounds=1, quorum=3, federation=SECURE)
    careful = dataclasses.replace(federation.site("cedar")._settings, least_threshold=4)
    federation.transport.restart("cedar", Site(careful).answer)
    (record,) = RunFolder(Path(federation.run().folder)).metrics()
    assert [failed["client"] for failed in record["failed"]] == [NAMES.index("cedar")]
    willing = Federation(
        tmp_path, more=RAW, rounds=1, quorum=4, federation=f"{SECURE}\nsecure_threshold = 4", out="willing"
    )
    careful = dataclasses.replace(willing.site("cedar")._settings, least_threshold=4)
    willing.transport.restart("cedar", Site(careful).answer)
    (record,) = RunFolder(Path(willing.run().folder)).metrics()
    assert record["failed"] == []


def test_masks_may_be_asked_for_beside_the_file(tmp_path: Path) -> None:
    write_digits(tmp_path)
    Federation(tmp_path)
    plain, masked = (read_config(tmp_path / "serve.toml", lambda _: NAMES, secure=secure) for secure in (False, True))
    assert (plain.offer().secure, masked.offer().secure) == ("", "refuse")
    assert plain.agreed != masked.agreed


@pytest.mark.parametrize(("names", "cohort"), [(NAMES, 2), (tuple(f"s{n:03}" for n in range(101)), 101)])
def test_too_few_or_too_many_for_a_sum_is_said_before_anybody_is_asked(
    names: tuple[str, ...], cohort: int, tmp_path: Path
) -> None:
    write_digits(tmp_path)
    federation = Federation(tmp_path, more=f"{RAW}\ncohort = {cohort}", federation=SECURE)
    config = read_config(tmp_path / "serve.toml", lambda _: names)
    keys = dict.fromkeys(names, federation.keys[NAMES[0]].public)
    with pytest.raises(ConfigError, match=r"expected a cohort of at least 3, of at most 100"):
        Coordinator(config, federation.keys[COORDINATOR], keys, tmp_path / "run").check()


def test_what_cannot_be_hidden_is_refused_or_named(tmp_path: Path) -> None:
    write_digits(tmp_path)
    with pytest.raises(ConfigError, match=r"upload 'features' of phase 'share' cannot be hidden"):
        Federation(tmp_path, "flea", more=RAW, rounds=1, federation=SECURE).run()
    with pytest.raises(ConfigError, match="quorum of at least 3"):
        Federation(tmp_path, more=RAW, rounds=1, quorum=2, federation=SECURE).run()
    plain = Path(Federation(tmp_path, "flea", more=RAW, rounds=2, out="plain").run().folder)
    clear = f'{SECURE}\nsecure_rest = "clear"'
    masked = Path(Federation(tmp_path, "flea", more=RAW, rounds=2, out="masked", federation=clear).run().folder)
    ours, theirs = (storage.load(folder / CHECKPOINT)[0] for folder in (masked, plain))
    assert difference(ours["model"], theirs["model"]) < 1e-6


def test_a_site_gives_a_coordinator_that_asks_without_masks_nothing(tmp_path: Path) -> None:
    write_digits(tmp_path)
    federation = Federation(tmp_path, more=RAW, rounds=1, federation=SECURE)
    taps = [Tap(federation, name) for name in NAMES]
    federation.run()
    for tap in taps:
        run = next(iter(tap.site._runs.values()))
        stored = run.home.found(("training", 0, "train"), 0, run.home._entries[-1].asked)
        assert stored is not None
        assert messages.Reply.read(stored).content == b""


def test_a_resumed_run_sums_again_with_the_same_sites(tmp_path: Path) -> None:
    write_digits(tmp_path)
    federation = Federation(tmp_path, more=RAW, rounds=2, federation=SECURE)

    class Stop(Exception):
        pass

    class After:
        def after_round(self, view: Any) -> None:
            raise Stop

    with pytest.raises(Stop):
        federation.run(observers=[After()])
    for name in NAMES:
        federation.transport.restart(name, federation.site(name).answer)
    federation.run(resume=True)
    whole = Path(Federation(tmp_path, more=RAW, rounds=2, out="whole").run().folder)
    ours, theirs = (storage.load(folder / CHECKPOINT)[0] for folder in (tmp_path / "run", whole))
    assert difference(ours, theirs) < 1e-6


def test_a_round_that_was_revealed_for_others_is_left_out_when_the_run_is_gone_on_with(tmp_path: Path) -> None:
    """Otherwise it could never be gone on with: sites would refuse this sum each time."""
    write_digits(tmp_path)
    federation = Federation(tmp_path, more=RAW, rounds=3, quorum=3, deadline=0.3, federation=SECURE)
    tap = Tap(federation, "cedar", cut="keys")

    class Stop(Exception):
        pass

    class After:
        def after_round(self, view: Any) -> None:
            raise Stop  # Before the checkpoint: the round is asked for again.

    with pytest.raises(Stop):
        federation.run(observers=[After()])
    tap.cut = ""
    records = RunFolder(Path(federation.run(resume=True).folder)).metrics()
    assert [record["phases"]["train"]["clients"] for record in records] == [0, 5, 5]
    assert {failed["cause"] for failed in records[0]["failed"]} == {"sum"}


class Dealer(SecureSite):
    """Deals shares of other secrets than its own, of which nothing can be said before they are put together."""

    def _deal(self, content: bytes) -> bytes:
        own, self._self_secret = self._self_secret, bytes(32)
        answer = super()._deal(content)
        self._self_secret = own
        return answer.replace(share_digest(bytes(32)), share_digest(own))


class Liar(SecureSite):
    """Sends numbers under no mask that anybody else has."""

    def _masked(self, content: bytes) -> bytes:
        found = Masked.decode(super()._masked(content), self.session.digest)
        return Masked(b"\xa5" * len(found.vector), b"", ()).encode(self.session.digest)


class Smuggler(SecureSite):
    """Sends something beside the sum that is to be summed, or cannot be put where it says."""

    beside: ClassVar[dict[str, torch.Tensor]] = {}

    def put(self, layout: Layout, weight: float, arrays: Any, extra: bytes = b"") -> None:
        del extra
        packet = Packet(self.session.round, self.session.phase, NAMES.index(BAD), 1.0, dict(self.beside))
        super().put(layout, weight, arrays, encode(packet))


BAD = "cedar"
FIRST = "model/params/hidden1.linear.weight"


def played_by(kind: type[SecureSite], monkeypatch: pytest.MonkeyPatch) -> None:
    """One site does not keep to the protocol."""

    def made(invitation: bytes, about: Any, name: str, *rest: Any) -> SecureSite:
        return (kind if name == BAD else SecureSite)(invitation, about, name, *rest)

    monkeypatch.setattr("fewfed.deploy.site.masked.SecureSite", made)


def test_a_site_that_deals_badly_costs_rounds_until_it_is_in_quarantine_and_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write_digits(tmp_path)
    played_by(Dealer, monkeypatch)
    federation = Federation(tmp_path, more=RAW, rounds=5, quorum=3, federation=SECURE)
    records = RunFolder(Path(federation.run().folder)).metrics()
    for record in records[:3]:
        causes = {failed["client"]: failed["cause"] for failed in record["failed"]}
        assert causes == {number: "packet" if name == BAD else "sum" for number, name in enumerate(NAMES)}
    assert [record["phases"]["train"]["clients"] for record in records] == [0, 0, 0, 4, 4]
    sites = read_status(tmp_path / "run")["sites"]
    assert {name: sites[name]["strikes"] for name in NAMES} == {name: 3 if name == BAD else 0 for name in NAMES}
    assert f"the shares that '{BAD}' dealt do not give its secret" in caplog.text


def test_a_sum_that_cannot_be_costs_its_round_and_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write_digits(tmp_path)
    played_by(Liar, monkeypatch)
    federation = Federation(tmp_path, more=RAW, rounds=3, quorum=3, federation=SECURE)
    with pytest.raises(RunError, match=r"round 3, phase 'train': .* a site did not keep to the protocol"):
        federation.run()  # It ends after the last round, since not one of them has brought anything.
    assert len(RunFolder(tmp_path / "run").metrics()) == 3
    assert "did not keep to the protocol" in caplog.text


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(FIRST, id="what is summed"),
        pytest.param("model", id="above what is summed"),
        pytest.param(f"{FIRST}/inside", id="below what is summed"),
        pytest.param("another", id="what nobody declares"),
    ],
)
def test_nothing_is_sent_beside_a_sum_that_was_not_agreed_on(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write_digits(tmp_path)
    undisturbed = Federation(tmp_path, more=RAW, rounds=2, quorum=3, federation=SECURE, out="undisturbed")
    undisturbed.run()
    like = storage.load(tmp_path / "undisturbed" / CHECKPOINT)[0]["model"]["params"]["hidden1.linear.weight"]
    monkeypatch.setattr(Smuggler, "beside", {path: torch.full_like(like, 1e6)})
    played_by(Smuggler, monkeypatch)
    federation = Federation(tmp_path, more=RAW, rounds=2, quorum=3, federation=SECURE)
    records = RunFolder(Path(federation.run().folder)).metrics()
    for record in records:
        (failed,) = record["failed"]
        assert (failed["client"], failed["cause"]) == (NAMES.index(BAD), "packet")
        assert f"it sends '{path}' beside the sum" in failed["reason"]
    assert f"it sends '{path}' beside the sum" in caplog.text
    ours, theirs = (storage.load(tmp_path / out / CHECKPOINT)[0]["model"] for out in ("run", "undisturbed"))
    assert difference(ours, theirs) < 1e-6  # Its honest part is in the sum nevertheless.
