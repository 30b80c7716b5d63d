"""Methods around methods run by composition alone, or say why not; what they send is counted, what is private stays."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from watching import Turn, watched

from fewfed import tree
from fewfed.conformance.clients import plain_network
from fewfed.engine.executors.sequential import Sequential
from fewfed.engine.executors.workers.executor import Workers
from fewfed.engine.executors.workers.options import Options
from fewfed.engine.job import Job
from fewfed.errors import ConfigError
from fewfed.method import Batch, Context, Report
from fewfed.methods.fedfa_anchor import FedFAAnchor
from fewfed.methods.fedrobust import FedRobust
from fewfed.methods.registry import choose, registered, wrapped_field
from fewfed.methods.sem import FirstLeg, Sem
from fewfed.phase import Clock, Phase
from fewfed.tree import Tree
from support import context, digits, digits_federation, digits_network, job_of, run, same


@pytest.mark.parametrize(
    "spec",
    [
        *("sem(flea)", "fedfa(flea)", "sem(scaffold)", "ccvr(fedntd)", "mixstyle(fedfa(fedprox))"),
        *("noised(grouped(flea))", "quantised(noised(fedfed))", "sem(decorrelated(quantised(flea)))"),
        *("averaged(sem(flea))", "averaged(scaffold)", "sem(averaged(fedavg))", "ccvr(averaged(fedavg))"),
        *("recalibrated(grouped(flea))", "quantised(recalibrated(grouped(flea)))", "recalibrated(averaged(sem(flea)))"),
        *(
            "averaged(recalibrated(rationed(quantised(blurred(grouped(flea))))))",
            "rationed(sem(recalibrated(quantised(flea))))",
        ),
        *("sem(potluck)", "fedfa(potluck)"),
        *("sem(fedrobust)", "sem(fedbr)", "sem(fedgen-latent)", "mixup(ccvr(sem(fedavg)))"),
    ],
)
def test_a_composition_runs_and_agrees_on_all_executors(spec: str) -> None:
    job = job_of(spec, digits_federation(8, 16))
    workers = Workers(job, options=Options(processes=2, stack=1, layout="plain"))
    try:
        runs = [run(job, rounds=3, cohort=4, executor=executor) for executor in (Sequential(job), workers)]
    finally:
        workers.close()
    assert not any(view.metrics["failed"] for view in runs[0].views)
    assert same(runs[0].server, runs[1].server)


def test_a_relayed_model_is_counted_as_if_clients_sent_it_directly() -> None:
    view = run(job_of("sem(fedavg)", digits_federation(8, 16)), rounds=1, cohort=4).views[0]
    traffic = view.metrics["bytes"]
    model = sum(leaf.numel() * 4 for part in view.server["inner"]["model"].values() for leaf in part.values())
    weight = 8  # The sample count travels with the model.
    assert traffic["up"] == 4 * (2 * model + weight)
    assert traffic["down"] == 4 * (2 * model + weight)
    assert traffic["peer_to_peer"] == {"up": 4 * model, "down": 4 * model, "between_clients": 4 * (model + weight)}


def test_nothing_is_relayed_without_a_relay() -> None:
    view = run(job_of("fedavg", digits_federation(8, 16)), rounds=1, cohort=4).views[0]
    assert set(view.metrics["bytes"]) == {"up", "down", "down_if_sent_every_time"}


SHORT: Mapping[str, Mapping[str, Any]] = {
    "central-dp": {"sigma": 0.01},
    "ccvr": {"epochs": 1},
    "fedbr": {"group": 3},
    "fedgen": {"start": 1, "steps": 2, "batch": 8},
    "fedgen-latent": {"steps": 2, "batch": 8},
    "flair": {"init_epochs": 1},
    "grouped": {"k": 2},
    "potluck": {"k": 2},
    "veiled": {"k": 2},
}
"""What a method does often, only a few times, and from the second round on what it begins with later; few rows; noise
that three clients do not drown in."""

WRAPPERS = [name for name, cls in registered().items() if wrapped_field(cls)]
PERSONAL = ("fedbn", "flair", "flute", "local")
LABELS = (
    *("fedbr", "fedfa-anchor", "fedfed", "fedgen", "fedgen-latent", "fedlc", "fedntd", "fedproto", "fedrs"),
    *("flair", "flea", "flute"),
    *("blurred", "bottlenecked", "decorrelated", "grouped", "noised", "quantised", "rationed", "recalibrated"),
    *("potluck", "slimmed", "veiled"),
)
"""Methods that compare, count, generate or share class labels beside the task's loss."""
MIXES_LABELS = ("mixup", "manifold-mixup", "moex")
APART = ("fedfa", "fedfa-anchor", "fedfed", "fedgen-latent", "fedrobust", *MIXES_LABELS)
"""Methods whose loss or steps make no sense for one row of a batch at a time, or that upload what dp hides."""
CENTRAL = (("central-dp", "mixstyle"), ("mixstyle", "central-dp"))
AT_CUT = ("bottlenecked", "decorrelated")
DEFENCES = (*AT_CUT, "blurred", "grouped", "noised", "quantised", "veiled")
"""Alone they are around a method that shares features."""
AROUND_FLEA = ("rationed", "recalibrated", "slimmed")
AVERAGES = ("fedbr", "fedmix")
SENDS_INPUTS = (*AVERAGES, "feddata", "fedfed")
SENDS_FEATURES = (*DEFENCES, *AROUND_FLEA, "ccvr", "flea", "potluck")
SENDS_ROWS = (*SENDS_FEATURES, *SENDS_INPUTS)

REFUSED: Mapping[tuple[str, str], str] = {
    **{("sem", name): "keeps models at its clients" for name in PERSONAL},
    ("sem", "single"): "clients of 'single' train in train \\(union\\)",
    ("sem", "fedfed"): "clients of 'fedfed' train in distil \\(round\\), train \\(round\\)",
    ("sem", "sem"): "clients of 'sem\\(fedavg\\)' train in train-leg1 \\(round\\), train-leg2 \\(round\\)",
    **{("averaged", name): "keeps models at its clients" for name in PERSONAL},
    **{("rationed", name): "send none" for name in registered() if name not in SENDS_ROWS},
    **{("slimmed", name): "only compute features" for name in registered() if name not in SENDS_FEATURES},
    **{("recalibrated", name): "send none" for name in registered() if name not in SENDS_FEATURES},
    **{("rationed", name): "hands on fewer rows already" for name in ("potluck", "rationed")},
    **{("recalibrated", name): "retrained at the server already" for name in ("potluck", "recalibrated")},
    **{("ccvr", name): "retrains one common model, which .* does not have" for name in PERSONAL},
    ("ccvr", "ccvr"): "calibrates already",
    ("fedfa", "fedfa"): "has FedFA's noise and statistics already",
    **{(mixing, name): "uses class labels beside that loss" for mixing in MIXES_LABELS for name in LABELS},
    **{(outer, inner): "mixes labels, and .* does already" for outer in MIXES_LABELS for inner in MIXES_LABELS},
    **{("dp", name): "looks at class counts of the client" for name in ("fedlc", "fedrs", "flute")},
    **{("dp", name): "looks at rows of the client" for name in ("elastic", "fedbr", "fedfa-fair", "fedfv", "fedproto")},
    **{("dp", name): "rows of a batch against each other" for name in ("feddecorr", "flair", "flea")},
    **{("dp", name): "takes several gradients a step" for name in ("fedharmo", "fedsam")},
    **{("dp", name): "cannot be trained on rows one by one" for name in (*APART, *DEFENCES, *AROUND_FLEA)},
    **{(name, "dp"): "cannot be trained on rows one by one" for name in ("fedfa", *MIXES_LABELS)},
    ("dp", "dp"): "clips gradients of rows already",
    ("dp", "feddata"): "trains on other rows than the client's own",
    **{(outer, "fedbn"): "keeps BatchNorm layers .* but network 'mlp' has none" for outer in ("dp", "central-dp")},
    **dict.fromkeys((("dp", "mixstyle"), ("mixstyle", "dp"), *CENTRAL), "which network 'mlp' has none of"),
    **{(outer, inner): "send none" for outer in DEFENCES for inner in registered() if inner not in SENDS_ROWS},
    **{(outer, inner): "send inputs, which no training changes" for outer in AT_CUT for inner in SENDS_INPUTS},
    **{(outer, outer): "does what .* does already" for outer in AT_CUT},
    **{
        (outer, inner): "does not send rows one by one"
        for outer in ("grouped", "veiled")
        for inner in (*AVERAGES, "grouped", "veiled")
    },
    **{
        (outer, inner): "these are codes"
        for outer in DEFENCES
        for inner in ("quantised", "potluck")
        if outer != "decorrelated"
    },
}
"""Every pair that cannot be, and a part of the reason."""
PAIRS = [(outer, inner) for outer in WRAPPERS for inner in registered() if (outer, inner) not in REFUSED]
"""All others run."""


def small_job(spec: str, *names: str) -> Job:
    """A method, or one around another, on three clients with few rows; `names` are its layers."""
    layers = enumerate(names or (spec,))
    values = {"inner." * depth + key: value for depth, name in layers for key, value in SHORT.get(name, {}).items()}
    chosen = choose(spec, values)
    net = plain_network() if chosen.method.no_batchnorm else digits_network()
    return job_of(chosen.method, digits_federation(3, (6, 9, 7)), net=net, training={"batch": 4, **chosen.training})


@pytest.mark.parametrize(("outer", "inner"), sorted(REFUSED))
def test_a_pair_that_cannot_be_is_refused_with_the_reason(outer: str, inner: str) -> None:
    with pytest.raises(ConfigError, match=REFUSED[outer, inner]):
        small_job(f"{outer}({inner})").check()


def bare(path: str) -> str:
    """A leaf's name within what it belongs to: a client's work, its state or a model."""
    around = ("before", "after", "work", "inner", "own", "model", "params", "buffers", "shared", "personal", "sem")
    parts = path.split("/")
    while len(parts) > 1 and parts[0] in around:
        parts = parts[1:]
    return "/".join(parts)


def tells(leaf: Tensor) -> bool:
    """Whether a leaf's numbers can be told from others': whole numbers, such as counts and zeros, cannot."""
    return leaf.is_floating_point() and not torch.equal(leaf, leaf.round())


def equal(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.equal(a.double(), b.double())


@cache
def private_names(method: str) -> frozenset[str]:
    """What clients of a method, run by itself, hold, and neither its broadcasts nor its packets name or contain."""
    job, turns = watched(small_job(method))
    run(job, rounds=2, cohort=3)
    named = {bare(path) for turn in turns for path in (*turn.sent, *turn.given)}
    held = {bare(path) for turn in turns for path in turn.held} - named
    sent = [leaf for turn in turns for leaf in turn.sent.values()]
    shown = {
        bare(path)
        for turn in turns
        for path, leaf in turn.held.items()
        if bare(path) in held and tells(leaf) and any(equal(leaf, other) for other in sent)
    }
    return frozenset(held - shown)


def leaks(turns: Iterable[Turn], private: frozenset[str]) -> list[str]:
    """Where something private was sent, or given to another client than its own: by name, or number by number."""
    turns = list(turns)
    found = [
        f"{turn.phase}: client {turn.client} {verb} {path}"
        for turn in turns
        for verb, leaves in (("sent", turn.sent), ("was given", turn.given))
        for path in leaves
        if any(f"/{path}".endswith(f"/{name}") for name in private)
    ]
    secrets = {
        (turn.client, path, leaf)
        for turn in turns
        for path, leaf in turn.held.items()
        if bare(path) in private and tells(leaf) and not any(equal(leaf, given) for given in turn.given.values())
    }
    for turn in turns:
        for owner, path, secret in secrets:
            for verb, leaves in (("sent", turn.sent), ("was given", turn.given if turn.client != owner else {})):
                same = [other for other, leaf in leaves.items() if equal(secret, leaf)]
                found += [f"{turn.phase}: client {turn.client} {verb} {other}, {path} of {owner}" for other in same]
    return found


SHARING = ("sem",)
"""Hands on what clients hold; the other wrappers give away no more than features and statistics of their own."""


@pytest.mark.parametrize(
    ("outer", "inner"),
    [pytest.param(*pair, marks=[] if pair[0] in SHARING else pytest.mark.thorough) for pair in PAIRS],
)
def test_every_other_pair_runs_and_gives_nothing_private_away(outer: str, inner: str) -> None:
    job, turns = watched(small_job(f"{outer}({inner})", outer, inner))
    done = run(job, rounds=2, cohort=3)
    assert [metrics["failed"] for metrics in done.metrics] == [[], []]
    assert all(bool(torch.isfinite(leaf).all()) for _, leaf in tree.leaves(done.server) if leaf.is_floating_point())
    assert leaks(turns, private_names(inner)) == []


def test_what_is_private_is_found() -> None:
    assert private_names("fedavg") == frozenset()
    assert private_names("fedrobust") == {"stretch", "shift"}
    assert {name.split(".")[0] for name in private_names("fedbr")} == {"fedbr-projector"}


class WholeFirstLeg(FirstLeg):
    """Hands everything that the client works on to the partner."""

    def end(self, work: Tree, ctx: Context) -> Report:
        report = super().end(work, ctx)
        everything = {**work["params"], **{name: leaf for name, leaf in work.items() if isinstance(leaf, Tensor)}}
        return report._replace(upload={**report.upload, "model": {**report.upload["model"], "params": everything}})


@dataclass(frozen=True)
class RenamingFirstLeg(FirstLeg):
    """Hands a client's stretch on under the name of something else."""

    def end(self, work: Tree, ctx: Context) -> Report:
        report = super().end(work, ctx)
        params = {**report.upload["model"]["params"], "gain": work["stretch"]}
        return report._replace(upload={**report.upload, "model": {**report.upload["model"], "params": params}})


@dataclass(frozen=True)
class Leaky(Sem):
    name = "leaky"
    leg: type[FirstLeg] = WholeFirstLeg

    def phases(self, clock: Clock) -> tuple[Phase, ...]:
        first, second = super().phases(clock)
        assert isinstance(first.does, FirstLeg)
        return (dataclasses.replace(first, does=self.leg(self, first.does.phase)), second)


@pytest.mark.parametrize("leg", [WholeFirstLeg, RenamingFirstLeg])
def test_a_wrapper_that_gives_something_private_away_is_found(leg: type[FirstLeg]) -> None:
    """Whether it is sent under its own name or another."""
    job = dataclasses.replace(small_job("sem(fedrobust)"), method=Leaky(FedRobust(), leg=leg))
    job, turns = watched(job)
    run(job, rounds=2, cohort=3)
    found = leaks(turns, private_names("fedrobust"))
    assert any("sent" in text for text in found)
    assert any("was given" in text for text in found)


def test_a_clients_distortion_goes_on_where_it_was_in_the_first_leg() -> None:
    job, turns = watched(small_job("sem(fedrobust)"))
    run(job, rounds=1, cohort=3)
    first = {turn.client: turn for turn in turns if turn.phase == "train-leg1"}
    for turn in (turn for turn in turns if turn.phase == "train-leg2"):
        kept = "work/stretch"
        assert torch.equal(turn.held[f"before/own/{kept}"], first[turn.client].held[kept])
        assert not torch.equal(turn.held["work/stretch"], first[turn.client].held["work/stretch"])
        assert torch.equal(turn.held["after/inner/stretch"], turn.held["work/stretch"])


@dataclass(frozen=True)
class Stepping(FedFAAnchor):
    """Notes of every step whether the anchors moved."""

    moved: Any = None

    def loss(self, work: Tree, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        before = work["anchors"].clone()
        terms = super().loss(work, ctx, batch)
        self.moved.append(not torch.equal(before, work["anchors"]))
        return terms


@pytest.mark.parametrize(("epochs", "legs"), [(2, 2), (5, 5)])
def test_anchors_move_once_an_epoch_in_either_leg(epochs: int, legs: int) -> None:
    """Nine rows in batches of four: three steps an epoch, and the third one moves the anchors."""
    moved: list[bool] = []
    training = {"batch": 4, "epochs": epochs}
    run(job_of(Sem(Stepping(moved=moved)), digits_federation(1, 9), training=training), rounds=1, cohort=1)
    assert moved == [False, False, True] * legs


@pytest.mark.parametrize("outer", ["mixup", "manifold-mixup", "mixstyle", "moex", "fedfa"])
def test_the_servers_retraining_is_not_augmented(outer: str) -> None:
    """Its loss is plain cross-entropy of the plain network, whatever is drawn, also where spatial stages retrain."""
    phase = choose(f"{outer}(ccvr)", {"inner.cut": "conv1"}).method.phases(Clock(1, 2, 2))[-1]
    assert phase.name == "calibrate"
    assert phase.uploads.keys() == {"retrained"}
    net, rows = digits_network(), digits()[0].rows(torch.arange(12))
    features = net.apply(net.model(), rows.x, stop=net.position("conv1"), train=False)
    shared = {"model": net.model(), "features": features, "labels": rows.y}
    ctx = context(net, rows, shared, phase=phase, state={"inner": {"inner": {}, "own": {}}})
    expected = cross_entropy(net.apply(net.model(), features, start=net.position("conv1")), rows.y)
    random = ctx.plan.random(0, "calibrate", -1)
    for _ in range(8):
        batch = Batch(features, rows.y, phase.does.draw(random, ctx, len(rows)))
        (loss,) = phase.does.loss(phase.does.begin(ctx), ctx, batch).values()
        torch.testing.assert_close(loss, expected)


def test_an_autoencoder_beside_the_model_has_no_noise_and_no_say_in_its_statistics() -> None:
    """FedFed's distiller contains a network like the model's, of which FedFA's statistics are not."""
    plain, noisy = (choose(spec).method.phases(Clock(0, 4, 2))[0] for spec in ("fedfed", "fedfa(fedfed)"))
    assert plain.name == noisy.name == "distil"
    assert plain.uploads == noisy.uploads
    job = job_of("fedfed")
    shared = {"distiller": job.method.server_init(job.setup)["distiller"]}
    data = job.federation.examples(0)
    losses = []
    for phase, state in ((plain, {}), (noisy, {"inner": {}, "own": {}})):
        ctx = context(job.net, data, shared, phase=phase, state=state)
        drawn = phase.does.draw(ctx.plan.random(0, "distil", 0), ctx, len(data))
        losses.append(phase.does.loss(phase.does.begin(ctx), ctx, Batch(data.x, data.y, drawn)))
    assert same(*losses)


def test_calibration_follows_both_legs_whichever_is_outside() -> None:
    """The rounds are SEM's own, bit for bit, and the head retrained after them is the same either way."""
    alone, outside, inside = (
        run(small_job(spec, *layers), rounds=2, cohort=3).server
        for spec, layers in (
            ("sem(fedavg)", ("sem", "fedavg")),
            ("ccvr(sem(fedavg))", ("ccvr", "sem", "fedavg")),
            ("sem(ccvr(fedavg))", ("sem", "ccvr", "fedavg")),
        )
    )
    assert same(alone["inner"]["model"], outside["inner"]["inner"]["model"])
    assert same(alone["inner"]["model"], inside["inner"]["inner"]["model"])
    calibrated = outside["own"]["calibrated"]
    assert same(calibrated, inside["inner"]["own"]["calibrated"])
    changed = [
        name for name, leaf in calibrated["params"].items() if not same(leaf, alone["inner"]["model"]["params"][name])
    ]
    assert {name.split(".")[0] for name in changed} == {digits_network().stages[-1]}


def test_around_sem_the_epochs_that_were_asked_for_count() -> None:
    with pytest.raises(ConfigError, match="epochs of at least 2"):
        run(job_of("ccvr(sem(fedavg))", training={"epochs": 1}), rounds=1)


@pytest.mark.parametrize("values", [{"optimizer": "adam"}, {"optimizer": "adamw"}, {"momentum": 0.9}, {"clip": 1.0}])
@pytest.mark.parametrize("spec", ["scaffold", "sem(scaffold)", "fedfa(scaffold)"])
def test_scaffold_is_refused_where_its_formula_does_not_hold(spec: str, values: Mapping[str, Any]) -> None:
    job_of(spec).check()
    with pytest.raises(ConfigError, match="plain SGD only: expected optimizer = sgd, momentum = 0 and clip = 0"):
        job_of(spec, training=values).check()
