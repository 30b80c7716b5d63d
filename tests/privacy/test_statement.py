"""The statement of methods whose answer is known: who is sent what, for how long, how many bytes."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fewfed
from fewfed import Dataset, Examples, Experiment, tree
from fewfed.conformance.clients import digits_federation, digits_network
from fewfed.conformance.reference import job_for, job_of
from fewfed.engine.job import Job
from fewfed.errors import ConfigError
from fewfed.method import Combined, Context, Method, Part, Report, Setup
from fewfed.phase import EQUAL, MODEL, NOTHING, Clock, Cohort, Combine, Phase, Role, Upload, shared_rows
from fewfed.privacy.flows import Flow, Plays, Reach, Watched
from fewfed.privacy.stand_ins import varied, with_stand_ins
from fewfed.privacy.statement import Sent, Statement, about_of, count, exchanges_of, spans, statement_of
from fewfed.privacy.statement_text import page, plain
from fewfed.settings import setting
from fewfed.training import Training
from fewfed.tree import Tree
from run_support import called

ROUNDS = 30


def flow_of(method: Method, phase: str, name: str, round: int = 0, rounds: int = ROUNDS) -> Flow:
    job = with_stand_ins(job_of(method, Training(epochs=2, batch=8)))
    return Plays(job, rounds).flow(Watched(round, phase, name))


def sent_of(job: Job, phase: str, name: str, rounds: int = ROUNDS) -> Sent:
    (exchange,) = (each for each in exchanges_of(job, rounds) if each.name == phase)
    (sent,) = (each for each in exchange.sends if each.name == name)
    return sent


@dataclass(frozen=True)
class Pool(Method):
    """Rows go into a pool from which they are taken out after some rounds, whole or as their mean."""

    name = "pool"
    stay: int = setting(3, "rounds", ge=1)
    mean: bool = setting(False, "only the mean of them is sent on")
    shuffled: bool = setting(False, "the pool is in another order, and every second row is missing")

    def phases(self, clock: Clock) -> tuple[Phase, ...]:
        rows = shared_rows(0.5, features=Role.INPUTS, labels=Role.LABELS)
        return (Phase("share", Share(self), uploads=rows), Phase("train", Train(self), clock.epochs, keeps_state=False))

    def server_init(self, setup: Setup) -> Tree:
        return {**super().server_init(setup), "pools": {}, "round": torch.tensor(0)}


class Share(Part[Pool]):
    def broadcast(self, server: Tree) -> Tree:
        return {}

    def begin(self, ctx: Context) -> Tree:
        return {"params": {}, "buffers": {}}

    def end(self, work: Tree, ctx: Context) -> Report:
        half = ctx.size // 2
        return Report({"features": ctx.data.x[:half].flatten(1), "labels": ctx.data.y[:half]}, {}, ctx.weight)

    def absorb(self, server: Tree, combined: Combined) -> Tree:
        now = int(server["round"])
        young = {key: pool for key, pool in server["pools"].items() if int(key) > now - self.method.stay}
        rows = combined.values["features"]
        if self.method.shuffled:
            rows = rows.flip(0)[::2]
        new = {"rows": rows.mean(0, keepdim=True) if self.method.mean else rows, "labels": combined.values["labels"]}
        return {**server, "pools": {**young, str(now): new}, "round": server["round"] + 1}


class Train(Part[Pool]):
    def broadcast(self, server: Tree) -> Tree:
        pool = torch.cat([pool["rows"] for pool in server["pools"].values()])
        return {"model": server["model"], "pool": pool}


@pytest.mark.parametrize("stay", [1, 2, 5])
def test_rows_in_a_pool_are_sent_as_they_are_as_long_as_they_stay(stay: int) -> None:
    found = flow_of(Pool(stay=stay), "share", "features")
    assert found.reaches == (Reach("pool", "train", False, True, 0, stay - 1),)
    assert found.kept == stay
    # Labels lie in the pool and are never sent to anybody.
    labels = flow_of(Pool(stay=stay), "share", "labels")
    assert labels == Flow((), stay)


def test_a_mean_of_rows_is_not_the_rows() -> None:
    (reach,) = flow_of(Pool(mean=True), "share", "features").reaches
    assert not reach.as_it_is
    (reach,) = flow_of(Pool(shuffled=True), "share", "features").reaches
    assert reach.as_it_is, "some rows are enough, in whatever order"


def test_a_pool_that_never_forgets_has_no_end() -> None:
    found = flow_of(Pool(stay=100), "share", "features")
    assert found.kept is None
    assert found.reaches[0].last is None


def test_history_of_a_registered_method() -> None:
    job = job_for("flea", {"history": 4})
    sent = sent_of(job, "share", "features")
    assert sent.kept == 4
    assert sent.reaches == (Reach("features", "train", False, True, 1, 4),)


def test_labels_that_a_part_of_is_handed_on_are_handed_on_as_they_are() -> None:
    """Some of them, in another order: single numbers, which no row of many numbers gives away."""
    reaches = sent_of(job_for("rationed(flea)"), "share", "labels").reaches
    assert reaches is not None
    assert {(reach.entry, reach.as_it_is) for reach in reaches} == {("ration", True)}


@pytest.mark.parametrize(("spec", "rows"), [("grouped(flea)", 5), ("potluck", 5), ("quantised(flea)", 1)])
def test_rows_that_are_made_of_several_are_not_called_single(spec: str, rows: int) -> None:
    said = fewfed.explain(spec, {"clients": 40, "split": "qua:2", "rounds": 3})
    (share,) = (each for each in said.exchanges if each.name == "share")
    assert {sent.made_of for sent in share.sends} == {rows}
    told = plain(said).partition("- features: ")[2].partition("\n")[0]
    assert ("single rows" in told) is (rows == 1)
    assert ("at least 5 rows of the site" in told) is (rows == 5)
    assert " 0 numbers" not in plain(said)


def test_a_row_in_fewer_bits_is_still_that_row() -> None:
    reaches = sent_of(job_for("rationed(flea)"), "share", "features").reaches
    assert reaches is not None
    assert {(reach.entry, reach.alone, reach.as_it_is) for reach in reaches} == {("ration", True, True)}


@dataclass(frozen=True)
class Ranked(Method):
    """What is uploaded decides an order, is compared with a threshold, or is used by training inside the server."""

    name = "ranked"

    def phases(self, clock: Clock) -> tuple[Phase, ...]:
        uploads = {
            **MODEL,
            "rank": Upload(Combine.KEEP, Role.SCORE),
            "looked_at": Upload(Combine.SUM, Role.STATISTICS),
            "taught": Upload(Combine.MEAN, Role.PROTOTYPES),
        }
        made = {"teacher": Upload(Combine.MEAN, Role.GENERATOR)}
        return (
            Phase("train", self, clock.epochs, uploads),
            Phase("teach", Teach(self), 3, made, cohort=Cohort.SERVER, weight=EQUAL),
        )

    def server_init(self, setup: Setup) -> Tree:
        zeros = torch.zeros(3)
        return {**super().server_init(setup), "best": zeros[0], "taught": zeros, "teacher": zeros}

    def broadcast(self, server: Tree) -> Tree:
        return {name: server[name] for name in ("model", "best", "teacher")}

    def end(self, work: Tree, ctx: Context) -> Report:
        report = super().end(work, ctx)
        rank = torch.tensor(float(ctx.client + 1))
        more = {"rank": rank, "looked_at": torch.ones(2), "taught": torch.ones(3)}
        return report._replace(upload={**report.upload, **more}, metrics={"mine": 1.0})

    def absorb(self, server: Tree, combined: Combined) -> Tree:
        ranks = combined.values["rank"]
        best = max(ranks, key=lambda client: float(ranks[client]))
        new = {name: combined.values[name] for name in ("model", "taught")}
        return {**server, **new, "best": torch.tensor(float(best))}


class Teach(Part[Ranked]):
    def broadcast(self, server: Tree) -> Tree:
        return {"taught": server["taught"], "teacher": server["teacher"]}

    def data(self, ctx: Context) -> Examples:
        return Examples(ctx.shared["taught"].unsqueeze(0), torch.zeros(1, dtype=torch.long))

    def begin(self, ctx: Context) -> Tree:
        return {"params": {"teacher": ctx.shared["teacher"].clone()}, "buffers": {}}

    def loss(self, work: Tree, ctx: Context, batch: Any) -> dict[str, Tensor]:
        return {"teach": (work["params"]["teacher"] - batch.x[0]).square().sum()}

    def end(self, work: Tree, ctx: Context) -> Report:
        return Report({"teacher": work["params"]["teacher"]}, {}, 1.0)


def test_what_decides_an_order_is_noticed() -> None:
    (reach,) = flow_of(Ranked(), "train", "rank").reaches
    assert (reach.entry, reach.as_it_is) == ("best", False)


def test_what_is_only_looked_at_reaches_nobody() -> None:
    assert flow_of(Ranked(), "train", "looked_at") == Flow((), 0)


def test_what_the_server_trains_with_counts_as_in_what_comes_out() -> None:
    found = flow_of(Ranked(), "train", "taught")
    assert [reach.entry for reach in found.reaches] == ["teacher"]


def test_what_a_method_reports_is_announced_and_training_inside_the_server_sends_nothing() -> None:
    train, teach = exchanges_of(job_of(Ranked(), Training(epochs=2, batch=8)), 5)
    assert train.header is not None
    assert set(train.header.metrics) == {"steps", "loss.task", "mine"}
    assert (teach.members, teach.sends, teach.header, teach.receives) == ("server", (), None, ())


@dataclass(frozen=True)
class Mail(Method):
    """Each client's note goes to one other client, and in the last round alone all send their class counts."""

    name = "mail"

    def phases(self, clock: Clock) -> tuple[Phase, ...]:
        note = {"note": Upload(Combine.KEEP, Role.STATISTICS)}
        counts = {"counts": Upload(Combine.SUM, Role.COUNTS)}
        last = (Phase("count", Count(self), 0, counts, cohort=Cohort.ALL),) if clock.last else ()
        write = Phase("write", Write(self), 0, note, relayed=frozenset(["note"]), weight=EQUAL)
        return (write, Phase("read", Read(self), 0, NOTHING), *last)

    def server_init(self, setup: Setup) -> Tree:
        return {**super().server_init(setup), "notes": {}}


class Write(Part[Mail]):
    def end(self, work: Tree, ctx: Context) -> Report:
        return Report({"note": ctx.data.x.flatten(1).mean(0)}, {}, 1.0)

    def absorb(self, server: Tree, combined: Combined) -> Tree:
        notes, names = combined.values["note"], list(combined.values["note"])
        return {**server, "notes": {name: notes[names[k - 1]] for k, name in enumerate(names)}}


class Read(Part[Mail]):
    def personal(self, server: Tree, client: int) -> Tree:
        return {"mail": server["notes"][str(client)]}

    def end(self, work: Tree, ctx: Context) -> Report:
        return Report({}, {}, ctx.weight)

    def absorb(self, server: Tree, combined: Combined) -> Tree:
        return {**server, "notes": {}}


class Count(Part[Mail]):
    def end(self, work: Tree, ctx: Context) -> Report:
        return Report({"counts": ctx.counts}, {}, ctx.weight)

    def absorb(self, server: Tree, combined: Combined) -> Tree:
        return server


def test_what_is_handed_to_one_other_client() -> None:
    job = job_of(Mail(), Training(epochs=1))
    note = sent_of(job, "write", "note")
    assert note.relayed
    assert note.reaches == (Reach("mail", "read", True, True, 0, 0),)
    assert note.kept == 0
    counts = sent_of(job, "count", "counts")
    assert counts.rounds == ((ROUNDS, ROUNDS),)
    assert counts.reaches == ()


@dataclass(frozen=True)
class Fussy(Method):
    """It cannot do without real rows."""

    name = "fussy"

    def end(self, work: Tree, ctx: Context) -> Report:
        raise ValueError("rows of zeros, or random ones")


def test_what_cannot_be_tried_out_is_said_and_taken_for_the_worst() -> None:
    job = job_of(Fussy(), Training(epochs=1))
    statement = statement_of(job, about_of(job, 5, 4, **NAMED))
    (sent,) = statement.exchanges[0].sends
    assert sent.reaches is None
    assert "rows of zeros" in sent.unknown
    assert statement.exchanges[0].header is not None
    assert statement.exchanges[0].header.unknown
    text = plain(statement)
    assert "take it that they are sent it" in text
    assert "known from the first packet only" in text
    assert "could not be found out beforehand" in text


NAMED = {"method": "x", "preset": "paper", "network": "net", "data": "digits", "split": "iid", "fewfed": "0"}


def test_what_stand_ins_do_not_send_is_not_taken_for_harmless() -> None:
    sent = sent_of(job_for("fedmix", {"group": 1000}), "setup", "mean_x")
    assert sent.reaches is None
    assert "nothing in it that could be followed" in sent.unknown


def test_bytes_are_those_of_the_arrays_and_participations_those_to_be_expected() -> None:
    job = job_of(Pool(), Training(epochs=1), digits_federation(10, [4, 6, 8, 10, 12, 14, 16, 18, 20, 30]))
    statement = statement_of(job, about_of(job, ROUNDS, 4, **NAMED))
    model = tree.nbytes(digits_network().model())
    assert (statement.about.usual_rows, statement.about.largest_rows) == (13, 30)
    for rows, shared in ((13, 7), (30, 15)):
        once = model + shared * (64 * 4 + 8)
        assert statement.once(rows) == once
        assert statement.in_all(rows) == pytest.approx(ROUNDS * 0.4 * once)
    everybody = job_of(Mail(), Training(epochs=1), digits_federation(10, 12))
    found = statement_of(everybody, about_of(everybody, ROUNDS, 4, **NAMED))
    assert found.in_all(12) == pytest.approx(ROUNDS * 0.4 * 64 * 4 + 10 * 8), "all send their counts, once"


def test_two_sites_are_enough() -> None:
    for clients in (1, 2):
        for spec in ("fedavg", "flea", "fedbr"):
            job = job_for(spec, None, digits_federation(clients, 12))
            assert all(not each.receives_unknown for each in exchanges_of(job, 4))


@pytest.mark.parametrize(
    ("spec", "entries"),
    [("grouped(flea)", {"shared/features", "shared/labels"}), ("potluck", {"personal/ration"})],
)
def test_what_is_made_of_several_rows_of_a_class_is_announced_where_it_arrives(spec: str, entries: set[str]) -> None:
    """Ten classes in turn would be four of each among forty blank rows, of which no average of five can be made."""
    (train,) = (each for each in exchanges_of(job_for(spec), 4) if each.name == "train")
    paths = {"/".join(form.path.split("/")[:2]) for form in train.receives}
    assert paths == {"shared/model", *entries}


def test_rounds_as_stretches() -> None:
    assert spans([1, 2, 3, 7, 9, 10]) == ((1, 3), (7, 7), (9, 10))
    assert count(((1, 3), (7, 7), (9, 10))) == 6
    assert spans([]) == ()


def test_changed_uploads_are_still_such() -> None:
    y = torch.arange(20) % 5
    shares = torch.eye(5)[y]
    for strength in (0.01, 2.0):
        labels = varied(Upload(Combine.CONCAT, Role.LABELS, 1.0), {"y": y}, 5, 1, strength)["y"]
        assert bool((labels != y).all())
        assert set(labels.tolist()) <= set(range(5))
        soft = varied(Upload(Combine.CONCAT, Role.LABELS, 1.0), {"y": shares}, 5, 1, strength)["y"]
        assert torch.equal(soft.sum(1), torch.ones(20))
        assert not torch.equal(soft, shares)
        counts = varied(Upload(Combine.SUM, Role.COUNTS), {"n": torch.zeros(4)}, 5, 1, strength)["n"]
        assert bool((counts > 0).all())


def test_what_is_not_sent_does_not_hide_behind_another_name() -> None:
    def never(spec: str) -> set[str]:
        job = job_for(spec)
        return set(statement_of(job, about_of(job, 4, 4, **NAMED)).never)

    # A model tells its own change, its running statistics those of features, the loss how well rows are predicted.
    assert never("fedavg") == {"features", "inputs", "labels", "prototypes", "counts", "generator"}
    assert {"features", "labels"}.isdisjoint(never("flea"))
    assert {"model", "update", "control", "inputs", "features", "labels"} <= never("local")
    assert never("single") == set()


def explained(capsys: Any, monkeypatch: Any, *arguments: str) -> tuple[int, str, str]:
    return called(capsys, monkeypatch, "explain", *arguments)


def test_the_command_says_it_in_words_as_json_and_as_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    few = ("--clients", "6", "--cohort", "2", "--rounds", "5")
    code, out, _ = explained(capsys, monkeypatch, "flea", *few, "--json", "--out", "page.md")
    assert code == 0
    found = json.loads(out.splitlines()[-1])
    assert [each["name"] for each in found["exchanges"]] == ["train", "share"]
    assert found["exchanges"][1]["sends"][0]["reaches"][0]["as_it_is"] is True
    assert found["about"]["sites"] == 6
    assert not list(tmp_path.glob("runs*")), "nothing is run"
    text = (tmp_path / "page.md").read_text()
    assert "Signature: ____" in text
    assert "# What leaves a site: flea on digits" in text
    for said in ("features of single rows", "are sent it as it is in the next round", "No formal bound holds",
                 "receives the value of every single site", "the number of its rows"):  # fmt: skip
        assert said in out
        assert said in text
    code, _, err = explained(capsys, monkeypatch, "flea", *few, "--out", "page.md")
    assert code == 2
    assert "is there already" in err
    code, _, err = explained(capsys, monkeypatch)
    assert code == 2
    assert "which method" in err


def test_names_of_users_are_no_markup() -> None:
    job = job_for("fedavg")
    named = {**NAMED, "data": "a|b*<script>_x_`"}
    text = page(statement_of(job, about_of(job, 3, 2, **named)))
    assert "<script>" not in text.replace("\\<script\\>", "")
    assert "a\\|b\\*\\<script\\>\\_x\\_\\`" in text


def test_own_tables_tell_the_sums_that_are_sent_before_the_first_round(tmp_path: Path) -> None:
    random = torch.Generator().manual_seed(0)
    lines = ["age,weight,ward,ill"]
    for row in range(90):
        a, b = torch.rand(2, generator=random).tolist()
        lines.append(f"{a:.3f},{b:.3f},{'abc'[row % 3]},{['no', 'yes'][row % 2]}")
    (tmp_path / "table.csv").write_text("\n".join(lines) + "\n")
    statement = fewfed.explain(
        "flea", Experiment(rounds=4), options={"label": "ill", "site": "ward"}, data=tmp_path / "table.csv"
    )
    assert statement.scaling == "federated"
    assert [each.name for each in statement.before] == ["measure values", "measure squares", "receive scaling"]
    assert [sent.name for sent in statement.before[0].sends] == ["count", "sum", "size"]
    assert "statistics" not in statement.never
    assert all(sent.reaches for each in statement.before for sent in each.sends), "mean and deviation reach everybody"
    assert "measure together before the first round" in str(statement)


def test_python_takes_own_networks_and_data() -> None:
    x, y = torch.randn(60, 5), torch.arange(60) % 3
    data = Dataset("mine", Examples(x[:40], y[:40]), Examples(x[40:], y[40:]), 3)
    network = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))
    statement = fewfed.explain("fedavg", {"clients": 4, "cohort": 2, "rounds": 3}, data=data, network=network)
    (sent,) = statement.exchanges[0].sends
    assert sorted(form.shape for form in sent.forms) == [(3,), (3, 4), (4,), (4, 5)]
    assert sent.size(0) == 4 * (3 + 12 + 4 + 20)
    with pytest.raises(ConfigError):
        fewfed.explain("nothing")


def test_weights_that_tell_nothing(tmp_path: Path) -> None:
    job = job_for("fedavg")
    uniform = dataclasses.replace(job, training=dataclasses.replace(job.training, weighting="uniform"))
    text = plain(statement_of(uniform, about_of(uniform, 3, 4, **NAMED)))
    assert "which tells nothing about its rows" in text
    assert "can be read off its weight" not in text
    alone = plain(statement_of(job, about_of(job, 3, 1, **NAMED)))
    assert "With one site a round the mean is that site's value." in alone
    assert "are sent it, or what the server makes of it alone, in the next round" in alone


def test_one_place_for_all_rows_is_called_that() -> None:
    job = job_for("single")
    statement = statement_of(job, about_of(job, 3, 4, **NAMED))
    assert statement.as_json()["bytes_up"] is None
    text = plain(statement)
    assert "All rows of all sites, inputs and labels, are in one place." in text
    assert "How much is sent" not in text
    assert "Nothing is held back." in text


def test_attacks_are_named_where_there_are_any(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys
    import types

    job = job_for("flea")
    asked: list[tuple[Phase, ...]] = []

    def applicable(phases: tuple[Phase, ...]) -> dict[str, str]:
        asked.append(phases)
        return {"reconstruct": "rows of features are sent"}

    made: Any = types.ModuleType("fewfed.privacy.attacks.applicable")
    made.applicable = applicable
    monkeypatch.setitem(sys.modules, made.__name__, made)
    found: Statement = statement_of(job, about_of(job, 3, 4, **NAMED))
    assert found.attacks == {"reconstruct": "rows of features are sent"}
    assert [phase.name for phase in asked[0]] == ["train", "share"]
    assert "- reconstruct: rows of features are sent" in plain(found)
    bounded = plain(dataclasses.replace(found, bounds=("epsilon 3 at delta 1e-5 against the server",)))
    assert "These bounds hold: epsilon 3" in bounded
