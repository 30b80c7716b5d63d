"""A coordinator among sites that misbehave, are late, leave, or do not want: one of them never spoils the run."""

from __future__ import annotations

import dataclasses
import json
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bad_answers import BAD, KINDS, Culprit
from federation import NAMES, Federation, site_data, write_digits
from in_process import InProcess

from fewfed import load, resume
from fewfed.data.examples import Examples
from fewfed.deploy.coordinator.identity import Identity
from fewfed.deploy.coordinator.settings import FederationSettings, read_config
from fewfed.deploy.parcel import Parcel, Unanswered
from fewfed.deploy.security.envelope import Opened
from fewfed.deploy.status import read_status
from fewfed.errors import ConfigError, RunError
from fewfed.plan import Plan
from fewfed.runs.blueprint import Blueprint
from fewfed.runs.folder import MODEL, RESULT, RunFolder
from fewfed.runs.results import Result
from run_support import called


def test_a_late_site_is_left_out_after_the_deadline_and_told_so(tmp_path: Path) -> None:
    write_digits(tmp_path)
    federation = Federation(tmp_path, "scaffold", rounds=3, quorum=4, deadline=0.3)
    late: list[Parcel] = []

    def hold(opened: Opened, culprit: Culprit) -> Parcel | None:
        if opened.about.round == 1:
            late.append(culprit.sealed(opened.about, opened.body))
            return None
        return culprit.sealed(opened.about, opened.body)

    culprit = Culprit(federation, hold)
    records = RunFolder(Path(federation.run().folder)).metrics()
    assert [len(record["failed"]) for record in records] == [0, 1, 0]
    assert records[1]["failed"][0]["cause"] == "worker"
    assert "no answer in" in records[1]["failed"][0]["reason"]
    assert late
    home = culprit.site._runs[next(iter(culprit.site._runs))].home
    assert [entry.round for entry in home._entries] == [2], "what came too late is undone at the site"


def test_without_a_quorum_the_run_stops_and_goes_on_later(tmp_path: Path) -> None:
    write_digits(tmp_path)
    federation = Federation(tmp_path, rounds=3, quorum=4, deadline=0.2, federation="give_up = 0.6")

    @dataclasses.dataclass
    class Leave:
        def after_round(self, view: Any) -> None:
            if view.clock.round == 0:
                for name in NAMES[:3]:
                    federation.transport.leave(name)

    with pytest.raises(RunError, match=r"fewer than the quorum of 4; no answer from amber, birch, cedar"):
        federation.run(observers=[Leave()])
    for name in NAMES[:3]:
        federation.transport.restart(name, federation.site(name).answer)
    assert len(RunFolder(Path(federation.run(resume=True).folder)).metrics()) == 3


def test_a_site_that_never_comes_back_costs_one_deadline(tmp_path: Path) -> None:
    write_digits(tmp_path)
    federation = Federation(tmp_path, rounds=6, quorum=3, deadline=1.0)

    @dataclasses.dataclass
    class Leave:
        def after_round(self, view: Any) -> None:
            if view.clock.round == 0:
                federation.transport.leave(BAD)

    began = time.monotonic()
    records = RunFolder(Path(federation.run(observers=[Leave()]).folder)).metrics()
    assert [len(record["failed"]) for record in records] == [0, 1, 1, 1, 1, 1]
    assert time.monotonic() - began < 5.0


def test_spare_sites_the_slowest_are_not_waited_for(tmp_path: Path) -> None:
    write_digits(tmp_path)
    federation = Federation(tmp_path, rounds=2, quorum=3, deadline=30.0, federation="spare = 1")
    Culprit(federation, lambda opened, culprit: None)
    records = RunFolder(Path(federation.run().folder)).metrics()
    for record in records:
        assert "enough others were faster" in record["failed"][0]["reason"]


def test_a_site_that_comes_later_joins_then(tmp_path: Path) -> None:
    write_digits(tmp_path)
    federation = Federation(tmp_path, rounds=3, quorum=4)
    federation.transport.leave(BAD)

    @dataclasses.dataclass
    class Come:
        def after_round(self, view: Any) -> None:
            if view.clock.round == 0:
                federation.transport.restart(BAD, federation.site(BAD).answer)

    records = RunFolder(Path(federation.run(observers=[Come()]).folder)).metrics()
    assert [len(record["failed"]) for record in records] == [1, 0, 0]
    assert "not joined" in records[0]["failed"][0]["reason"]


@pytest.mark.parametrize("how", ["never there", "off the roster"])
def test_a_round_whose_only_members_cannot_be_asked_is_left_out(how: str, tmp_path: Path) -> None:
    write_digits(tmp_path)
    # One site a round, drawn by the seed: sooner or later it is the one that is missing.
    federation = Federation(tmp_path, rounds=8, quorum=3, deadline=0.5, more="cohort = 1")
    drawn = [Plan(3, 8).cohort(number, len(NAMES), 1)[0] for number in range(8)]
    missing = NAMES[drawn[2]]
    coordinator, resumed = federation.coordinator(), how == "off the roster"
    if resumed:  # The run began with it.
        (tmp_path / "run").mkdir()
        Identity.new(NAMES, {}).write(tmp_path / "run")
        left = {name: key for name, key in coordinator.sites.items() if name != missing}
        coordinator = dataclasses.replace(coordinator, sites=left)
    federation.transport.leave(missing)
    coordinator.run(federation.transport, resume=resumed)
    records = RunFolder(tmp_path / "run").metrics()
    absent = [number for number, client in enumerate(drawn) if NAMES[client] == missing]
    assert [number for number, record in enumerate(records) if record["failed"]] == absent
    assert all(record["failed"][0]["cause"] == "absent" for record in records if record["failed"])
    assert [record["phases"]["train"]["clients"] for record in records] == [int(n not in absent) for n in range(8)]


def test_a_site_that_lost_its_disk_joins_again(tmp_path: Path) -> None:
    write_digits(tmp_path)
    federation = Federation(tmp_path, rounds=4, quorum=4)

    @dataclasses.dataclass
    class Lose:
        def after_round(self, view: Any) -> None:
            if view.clock.round == 0:
                lost = dataclasses.replace(federation, out="lost").site(BAD)
                federation.transport.restart(BAD, lost.answer)

    records = RunFolder(Path(federation.run(observers=[Lose()]).folder)).metrics()
    assert [len(record["failed"]) for record in records] == [0, 1, 0, 0]
    assert "does not know this run" in records[1]["failed"][0]["reason"]


def test_policies_are_applied_at_the_site(tmp_path: Path) -> None:
    write_digits(tmp_path)
    policies = {BAD: 'roles = ["model", "statistics", "counts"]', "amber": "most_releases = 1"}
    federation = Federation(tmp_path, "flea", rounds=2, quorum=3, policies=policies)
    records = RunFolder(Path(federation.run().folder)).metrics()
    for record in records:
        failed = {(each["client"], each["phase"]): each for each in record["failed"]}
        assert failed[NAMES.index(BAD), "share"]["cause"] == "policy"
        assert "features" in failed[NAMES.index(BAD), "share"]["reason"]


def test_a_policy_that_does_not_tell_counts_hides_how_many_rows_there_are(tmp_path: Path) -> None:
    write_digits(tmp_path)
    federation = Federation(tmp_path, rounds=1, policies={BAD: 'roles = ["model", "statistics"]'}, quorum=4)
    found = Path(federation.run().folder)
    assert read_status(found)["sites"][BAD]["rows"] is None
    assert read_status(found)["sites"]["amber"]["rows"] == 24
    (record,) = RunFolder(found).metrics()
    assert record["per_group"].keys() == set(NAMES) - {BAD}, "nor does it let scores leave"
    assert record["phases"]["measure values"]["clients"] == len(NAMES) - 1, "nor sums over its inputs, with their count"


def test_a_run_that_no_site_may_score_finishes_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_digits(tmp_path)
    policies = dict.fromkeys(NAMES, 'roles = ["model", "statistics", "counts"]')
    federation = Federation(tmp_path, rounds=2, policies=policies)
    result = federation.run()
    assert not result.chosen.measured
    assert "no scores: amber: its policy does not let scores leave" in result.note
    found = Path(result.folder)
    assert not any("terms" in record["phases"]["train"] for record in RunFolder(found).metrics()), "nor losses"
    assert read_status(found)["sites"]["amber"]["unscored"] == "its policy does not let scores leave"
    recorded = RunFolder(found).result()
    assert recorded is not None
    assert recorded["accuracy"] == {"best": None, "last": None, "last10": None}
    assert not Result.from_json(recorded).accuracy.measured
    assert [row["accuracy"] for row in result.per_site] == [None] * 5
    assert result.model().predict(np.zeros((2, 64), dtype=np.float32)).shape == (2,)
    for command in ("show", "verify", "status"):
        code, told, _ = called(capsys, monkeypatch, command, str(found))
        assert code == 0
    assert "no scores" in told


def test_a_site_without_test_rows_keeps_the_model_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_digits(tmp_path)
    federation = Federation(tmp_path, rounds=1)
    data = site_data(tmp_path / "birch.npz")
    none = dataclasses.replace(data, test=Examples(data.test.x[:0], data.test.y[:0]))
    federation.transport.restart("birch", federation.site("birch", none).answer)
    federation.run()
    (kept,) = (tmp_path / "state-run-birch").glob("run-*/model")
    assert called(capsys, monkeypatch, "show", str(kept))[0] == 0
    assert not Result.from_json(RunFolder(kept).result() or {}).chosen.measured


def test_constants_of_the_configuration_scale_inputs(tmp_path: Path) -> None:
    write_digits(tmp_path)
    numbers = ",".join(["2"] * 64)
    more = f'normalise = "fixed"\nscale_mean = "{numbers}"\nscale_std = "{numbers}"'
    found = Path(Federation(tmp_path, rounds=1, more=more).run().folder)
    common = Blueprint.from_json(RunFolder(found).blueprint()).scaling.common
    assert common is not None
    assert common.mean.tolist() == common.std.tolist() == [2.0] * 64
    assert list(RunFolder(found).metrics()[0]["phases"]) == ["train"]
    with pytest.raises(ConfigError, match="64 numbers"):
        Federation(tmp_path, rounds=1, more='normalise = "fixed"\nscale_mean = "1,2"', out="other").run()


@pytest.mark.parametrize("method", ["feddata", "recalibrated(rationed(quantised(flea)))"])
def test_rows_of_a_site_that_withdraws_are_taken_out(tmp_path: Path, method: str) -> None:
    write_digits(tmp_path)
    federation = Federation(tmp_path, method, rounds=4, quorum=3, policies={BAD: "revoked_from = 3"})
    found = Path(federation.run().folder)
    records = RunFolder(found).metrics()
    assert [bool(record["failed"]) for record in records] == [False, False, True, True]
    assert "revoked" in records[2]["failed"][0]["reason"]
    events = [event for record in records for event in record["events"] if event["kind"] == "withdrawn"]
    assert events
    assert events[0]["clients"] == [NAMES.index(BAD)]
    assert read_status(found)["sites"][BAD]["withdrawn"]


def test_rows_of_a_site_that_was_taken_off_the_roster_are_taken_out(tmp_path: Path) -> None:
    write_digits(tmp_path)
    federation = Federation(tmp_path, "feddata", rounds=4, quorum=3)

    class Enough(Exception):
        pass

    @dataclasses.dataclass
    class Stop:
        def after_round(self, view: Any) -> None:
            if view.clock.round == 1:
                raise Enough

    with pytest.raises(Enough):
        federation.run(observers=[Stop()])
    coordinator = federation.coordinator()
    left = {name: key for name, key in coordinator.sites.items() if name != BAD}
    with pytest.raises(ConfigError, match="not on the roster"):
        dataclasses.replace(coordinator, sites=left, out=tmp_path / "new").run(federation.transport)
    found = Path(dataclasses.replace(coordinator, sites=left).run(federation.transport, resume=True).folder)
    records = RunFolder(found).metrics()
    assert records[-1]["failed"]
    assert {failed["reason"] for failed in records[-1]["failed"]} == {"it is not on the roster any more"}
    events = [event for record in records for event in record["events"] if event["kind"] == "withdrawn"]
    assert events[0]["clients"] == [NAMES.index(BAD)]
    assert events[0]["rows"] > 0


def test_a_site_that_is_restarted_with_other_rows_joins_anew(tmp_path: Path) -> None:
    write_digits(tmp_path)
    federation = Federation(tmp_path, rounds=4, quorum=4)
    data = site_data(tmp_path / f"{BAD}.npz")
    more = Examples(torch.cat([data.train.x] * 3), torch.cat([data.train.y] * 3))

    @dataclasses.dataclass
    class Restart:
        def after_round(self, view: Any) -> None:
            if view.clock.round == 0:
                grown = dataclasses.replace(data, train=more, groups={}, group_names={})
                federation.transport.restart(BAD, federation.site(BAD, grown).answer)

    found = Path(federation.run(observers=[Restart()]).folder)
    records = RunFolder(found).metrics()
    assert [len(record["failed"]) for record in records] == [0, 1, 0, 0]
    assert "rows have changed since it joined" in records[1]["failed"][0]["reason"]
    status = read_status(found)["sites"][BAD]
    assert status["rows"] == len(more)
    assert not status["strikes"]


def test_a_site_behind_a_relay_without_a_daemon_misses_turns_and_no_more(tmp_path: Path) -> None:
    """Also when it is asked to join: then it is asked again."""
    write_digits(tmp_path)
    federation = Federation(tmp_path, rounds=4)
    asked: list[int] = []

    class Relay(InProcess):
        def send(self, parcels: Mapping[str, Parcel]) -> None:
            super().send({site: parcel for site, parcel in parcels.items() if site != BAD})
            if BAD in parcels:
                asked.append(1)
                if len(asked) in (1, 2, 8):  # Two letters to join, and one in the middle.
                    self._answers.append((BAD, Unanswered("its daemon is not there")))
                else:
                    super().send({BAD: parcels[BAD]})

    federation.transport = Relay({name: federation.site(name).answer for name in NAMES})
    found = Path(federation.run().folder)
    failed = [each for record in RunFolder(found).metrics() for each in record["failed"]]
    assert [each["client"] for each in failed] in ([], [NAMES.index(BAD)])
    assert all("its daemon is not there" in each["reason"] for each in failed)
    status = read_status(found)["sites"][BAD]
    assert status["joined"]
    assert not status["strikes"]
    assert len(asked) > 8


def test_a_site_with_other_columns_or_classes_does_not_join(tmp_path: Path) -> None:
    write_digits(tmp_path)
    federation = Federation(tmp_path, rounds=1, quorum=4)
    data = site_data(tmp_path / f"{BAD}.npz")
    wide = data.with_inputs(torch.zeros(len(data.train), 65), torch.zeros(len(data.test), 65))
    federation.transport.restart(BAD, federation.site(BAD, wide).answer)
    found = Path(federation.run().folder)
    status = read_status(found)["sites"][BAD]
    assert not status["joined"]
    assert "shape (65,)" in status["declined"]


@pytest.mark.parametrize(
    ("more", "federation", "said"),
    [
        ("noise = 0.5", "", "noise cannot be set"),
        ('metric = "auc"', "", "metric 'auc'"),
        ('start_from = "runs/x"', "", "start_from"),
        ('policy = "p.toml"', "", "policies belong to the sites"),
        ("", "quorum = 9", "quorum"),
        ("", "quorums = 3", "quorum"),
        ("", 'sites = ["../x", "b"]', "cannot be used"),
        ("", 'sites = ["amber", "nobody"]', "not on the roster"),
        ('normalise = "pooled"', "", "normalise = pooled"),
        ("cohort = 9", "", "cohort"),
        ('network = "lenet"', "", "unknown network 'lenet': did you mean 'lenet5'"),
        ('network = "net.py:build"', "", "network 'net.py:build' is code in a file"),
        ('data = "digits"', "", "data cannot be set in a federation of real sites"),
        ("clients = 7", "", "clients cannot be set in a federation of real sites"),
        ('split = "dir:0.5"', "", "split cannot be set in a federation of real sites"),
        ('executor = "ray"', "", "executor cannot be set in a federation of real sites"),
        ("attack_scale = 3", "", "attack_scale cannot be set"),
        ("", "shape = [-1, 8]", r"shape = \[-1, 8\]: expected lengths from 1 on"),
        ("", "shape = [0]", r"shape = \[0\]: expected lengths from 1 on"),
        ("", 'classes = ["a", "b", "a"]', "class 'a' stands there twice"),
        ("", "classes = 1000000000", "classes = 1000000000: expected their number"),
        ("", "classes = -3", "classes = -3: expected their number"),
        pytest.param(
            "", f"classes = {['x' * 1000 + str(n) for n in range(5000)]}", "bytes to name: expected", id="long names"
        ),
    ],
)
def test_configurations_that_are_refused(more: str, federation: str, said: str, tmp_path: Path) -> None:
    write_digits(tmp_path)
    made = Federation(tmp_path, rounds=1)
    path = tmp_path / "serve.toml"
    keys = [text.partition(" ")[0] for text in (more, federation) if text] + ["quorum"] * bool(federation)
    usual = re.sub(rf"^({'|'.join(keys)}) = .*\n", "", path.read_text(), flags=re.MULTILINE)
    path.write_text(f"{more}\n{usual}\n{federation}")
    with pytest.raises(ConfigError, match=said):
        made.run()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("method", ["own.py", "averaged(own.py)"])
def test_a_method_in_a_file_is_refused_before_anybody_is_asked(method: str, tmp_path: Path) -> None:
    write_digits(tmp_path)
    file = tmp_path / "own.py"
    file.write_text(
        "from dataclasses import dataclass\nfrom fewfed.methods.fedavg import FedAvg\n\n\n"
        '@dataclass(frozen=True)\nclass Own(FedAvg):\n    """Own."""\n\n    name = "own"\n'
    )
    with pytest.raises(ConfigError, match="is code in a file"):
        Federation(tmp_path, method.replace("own.py", str(file)), rounds=1).run()


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("classes = 10", 'classes = ["1", "0", "2", "3", "4", "5", "6", "7", "8", "9"]', "another classes in"),
        ("shape = [64]", "shape = [1, 8, 8]", "another shape in"),
        ("wait = 0", "wait = 0\nsecure = true", "another secure in"),
    ],
)
def test_what_sites_were_told_stays_when_a_run_is_gone_on_with(
    before: str, after: str, said: str, tmp_path: Path
) -> None:
    """Otherwise every site would refuse it, and the coordinator wait for them for a day."""
    write_digits(tmp_path)
    federation = Federation(tmp_path, rounds=2)
    stopped_after_a_round(federation)
    file = tmp_path / "serve.toml"
    file.write_text(file.read_text().replace(before, after))
    with pytest.raises(RunError, match=said):
        federation.run(resume=True)


def test_what_only_says_what_is_measured_beside_may_change(tmp_path: Path) -> None:
    write_digits(tmp_path)
    federation = Federation(tmp_path, rounds=2, federation="give_up = 5")
    stopped_after_a_round(federation)
    file = tmp_path / "serve.toml"
    file.write_text(file.read_text().replace("seed = 3", "seed = 3\nleak = false"))
    assert federation.run(resume=True).rounds == 2


def stopped_after_a_round(federation: Federation) -> None:
    class Stop(Exception):
        pass

    class After:
        def after_round(self, view: Any) -> None:
            raise Stop

    with pytest.raises(Stop):
        federation.run(observers=[After()])


def test_a_method_that_takes_all_rows_to_one_place_is_refused(tmp_path: Path) -> None:
    write_digits(tmp_path)
    with pytest.raises(ConfigError, match="one place"):
        Federation(tmp_path, "single", rounds=1).run()


def test_a_folder_is_not_taken_twice(tmp_path: Path) -> None:
    write_digits(tmp_path)
    federation = Federation(tmp_path, rounds=1)
    with pytest.raises(RunError, match="holds no run"):
        federation.run(resume=True)
    federation.run()
    with pytest.raises(RunError, match="holds a run already"):
        federation.run()
    facts = json.loads((tmp_path / "run" / "federation.json").read_text())
    assert facts["attempt"] == 0
    federation.run(resume=True)
    path = tmp_path / "serve.toml"
    path.write_text(path.read_text().replace("lr = 0.05", "lr = 0.06"))
    with pytest.raises(RunError, match="other settings"):
        federation.run(resume=True)


def test_the_page_of_deployment_is_right(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text()
    (example,) = re.findall(r"^```toml\n(.*?)^```", page, re.M | re.S)
    (tmp_path / "federation.toml").write_text(example)
    config = read_config(tmp_path / "federation.toml", lambda _: ("north", "south", "west"))
    assert config.federation.patience(3).quorum == 2
    assert config.offer().sites == ("north", "south", "west")
    table = page.split("## Settings of `[federation]`")[1].split("\n## ")[0]
    known = {
        name
        for row in table.splitlines()
        if row.startswith("| `")
        for name in re.findall(r"`(\w+)`", row.split("|")[1])
    }
    assert known == {entry.name for entry in dataclasses.fields(FederationSettings)}
    assert f"{len(KINDS)} kinds of bad answers" in page


@pytest.mark.parametrize("method", ["fedavg", "flair"])
def test_every_site_has_the_model_at_the_end(method: str, tmp_path: Path) -> None:
    write_digits(tmp_path)
    federation = Federation(tmp_path, method, rounds=2)
    result = federation.run()
    (run,) = {path.name for path in (tmp_path / "state-run-amber").iterdir() if path.is_dir()}
    scores = {row["site"]: row["accuracy"] for row in result.per_site}
    for name in ("amber", "delta"):
        model = load(tmp_path / f"state-run-{name}" / run / "model")
        data = site_data(tmp_path / f"{name}.npz")
        said = model.predict(data.test.x.numpy())
        true = np.array(data.split_names)[data.test.y.numpy()]
        assert float((said == true).mean()) == pytest.approx(scores[name])
    if method == "flair":
        with pytest.raises(RunError, match="stays at the site"):
            load(tmp_path / "run", site="amber")
    else:
        load(tmp_path / "run")


def test_a_model_that_was_put_away_by_half_is_put_away_again(tmp_path: Path) -> None:
    write_digits(tmp_path)
    federation = Federation(tmp_path, rounds=1)
    federation.run()
    (kept,) = (tmp_path / "state-run-amber").glob("*/model")
    (other,) = (tmp_path / "state-run-birch").glob("*/model")
    written, seen = load(kept).predict(site_data(tmp_path / "amber.npz").test.x.numpy()), other.stat().st_mtime_ns
    for name in (RESULT, MODEL):  # As a process leaves it that is killed while it writes.
        (kept / name).unlink()
    federation.run(resume=True)
    assert np.array_equal(load(kept).predict(site_data(tmp_path / "amber.npz").test.x.numpy()), written)
    assert other.stat().st_mtime_ns == seen, "a whole one stays as it is"


def test_a_run_of_sites_is_not_resumed_without_them(tmp_path: Path) -> None:
    write_digits(tmp_path)
    federation = Federation(tmp_path, rounds=2)

    class Stop:
        def after_round(self, view: Any) -> None:
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        federation.run(observers=[Stop()])
    with pytest.raises(RunError, match="--resume"):
        resume(tmp_path / "run")


@pytest.mark.parametrize(("quarantine", "asked"), [(10, [False] * 2), (1, [False, True])])
def test_a_quarantine_is_as_long_as_the_file_says_when_the_run_is_gone_on_with(
    quarantine: int, asked: list[bool], tmp_path: Path
) -> None:
    write_digits(tmp_path)
    federation = Federation(tmp_path, rounds=4, quorum=4, federation="strikes = 1\nquarantine = 0")
    Culprit(federation, next(iter(KINDS.values()))[0])

    class Stop(Exception):
        pass

    class After:
        def after_round(self, view: Any) -> None:
            if view.clock.round == 1:
                raise Stop

    with pytest.raises(Stop):
        federation.run(observers=[After()])
    file = tmp_path / "serve.toml"
    file.write_text(file.read_text().replace("quarantine = 0", f"quarantine = {quarantine}"))
    federation.transport.restart(BAD, federation.site(BAD).answer)
    records = RunFolder(Path(federation.run(resume=True).folder)).metrics()
    reasons = [[failed["reason"] for failed in record["failed"]] for record in records]
    assert [not any("quarantine" in reason for reason in reasons[number]) for number in (1, 2)] == asked


GOOD_SITE = {
    "present": True, "joined": True, "declined": "", "rows": 3, "sent_bytes": 1, "received_bytes": 1, "accuracy": None
}  # fmt: skip
ODD_STATUS: dict[str, Any] = {
    "no object": [],
    "no sites": {"sites": None},
    "a site that is none": {"sites": {"amber": 3}},
    "a site without anything": {"sites": {"amber": {}}},
    "a site without numbers": {"sites": {"amber": {**GOOD_SITE, "sent_bytes": "many"}}},
    "an accuracy that is none": {"sites": {"amber": {**GOOD_SITE, "accuracy": "good"}}},
    "a round that is none": {"round": "first"},
    "no state": {"state": None},
}


@pytest.mark.parametrize("kind", ODD_STATUS)
def test_a_damaged_status_is_told_in_a_sentence_and_hinders_nobody(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_digits(tmp_path)
    federation = Federation(tmp_path, rounds=1)
    federation.run()
    good = {"state": "finished", "written": 1.0, "round": 1, "rounds": 1, "sites": {"amber": GOOD_SITE}}
    odd = ODD_STATUS[kind]
    (tmp_path / "run" / "status.json").write_text(json.dumps(odd if isinstance(odd, list) else {**good, **odd}))
    code, _, told = called(capsys, monkeypatch, "status", str(tmp_path / "run"))
    assert code == 2
    assert "status.json' is damaged" in told
    assert federation.coordinator().finished() is None
    federation.run(resume=True)
    assert federation.coordinator().finished() is not None


def test_bytes_are_counted_over_all_attempts(tmp_path: Path) -> None:
    write_digits(tmp_path)
    federation = Federation(tmp_path, rounds=1)
    federation.run()
    before = read_status(tmp_path / "run")["sites"]["amber"]["sent_bytes"]
    federation.run(resume=True)
    assert read_status(tmp_path / "run")["sites"]["amber"]["sent_bytes"] > before
