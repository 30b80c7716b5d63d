"""Robust combination in runs: every method under every rule, all executors alike, and what is said of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from fewfed import tree
from fewfed.adversaries.attack import Attackers
from fewfed.adversaries.boost import Boost
from fewfed.adversaries.shared_rows import RowFeatures
from fewfed.adversaries.sign_flip import SignFlip
from fewfed.conformance.clients import plain_network
from fewfed.conformance.double import in_double
from fewfed.engine.evaluation import Evaluate
from fewfed.engine.events import NotCovered, RuleFellBack
from fewfed.engine.executors.cuda.executor import Device
from fewfed.engine.executors.cuda.options import Options as DeviceOptions
from fewfed.engine.executors.sequential import Sequential
from fewfed.engine.executors.workers.executor import Workers
from fewfed.engine.executors.workers.options import Options
from fewfed.engine.homes import SimulatedHomes
from fewfed.engine.job import Job, is_inside
from fewfed.engine.robust.bound import Bound
from fewfed.engine.robust.clipped import Clipped
from fewfed.engine.robust.defence import Defence
from fewfed.engine.robust.fitting import refuse_unfit
from fewfed.engine.robust.krum import Krum
from fewfed.engine.robust.median import Median
from fewfed.engine.robust.norm_bound import NormBound
from fewfed.engine.robust.rows import RowFilter
from fewfed.engine.robust.rule import Rule
from fewfed.engine.robust.trimmed import Trimmed
from fewfed.errors import ConfigError, RunError
from fewfed.methods.registry import choose, registered
from fewfed.tree import Tree
from support import EXACT, digits_federation, digits_network, gap, job_of, run, same

SHORT: Mapping[str, Mapping[str, Any]] = {
    "central-dp": {"sigma": 0.01},
    "ccvr": {"epochs": 1},
    "fedbr": {"group": 3},
    "fedmix": {"group": 3},
    "fedgen": {"start": 1, "steps": 2, "batch": 8},
    "fedgen-latent": {"steps": 2, "batch": 8},
    "flair": {"init_epochs": 1},
    "grouped": {"k": 2},
}
RULES: Mapping[str, Rule] = {
    rule.name: rule for rule in (Clipped(), Median(), Trimmed(1.0), Krum(1.0), Krum(1.0, many=True))
}
NOTHING_SENT = {"local": "send nothing", "single": "send nothing"}
NOISE_AFTER = {"central-dp": "adds noise to what the server has combined in phase 'train'"}
READ_ONE_BY_ONE = dict.fromkeys(
    ("fedfa-fair", "fedfv"), r"send model \(keep\) and score \(keep\), of which it combines none"
)


def small(name: str, defence: Defence | None = None) -> Job:
    chosen = choose(name, SHORT.get(name, {}))
    net = plain_network() if chosen.method.no_batchnorm else digits_network()
    training = {"batch": 4, **chosen.training}
    job = job_of(chosen.method, digits_federation(6, (6, 9, 7, 8, 6, 7)), net=net, training=training, rows_public=True)
    return dataclasses.replace(job, defence=defence)


def refuse(job: Job, defence: Defence, cohort: int = 6) -> None:
    refuse_unfit(defence, job, 4, cohort)


CASES = [
    pytest.param(name, rule, marks=[pytest.mark.thorough] if rule in ("trimmed", "multi-krum") else [])
    for name in registered()
    for rule in RULES
]


@pytest.mark.parametrize(("name", "rule"), CASES)
def test_every_method_runs_under_every_rule_or_is_refused_with_the_reason(name: str, rule: str) -> None:
    defence = Defence(RULES[rule])
    job = small(name, defence)
    why = NOTHING_SENT | NOISE_AFTER | (READ_ONE_BY_ONE if rule != "clipped" else {})
    if name in why:
        with pytest.raises(ConfigError, match=why[name]):
            refuse(job, defence)
        return
    refuse(job, defence)
    done = run(job, rounds=2, cohort=6)
    assert [metrics["failed"] for metrics in done.metrics] == [[], []]
    assert all(bool(torch.isfinite(leaf).all()) for _, leaf in tree.leaves(done.server) if leaf.is_floating_point())
    touched = [result for view in done.views for result in view.phases if result.record.defended is not None]
    assert touched
    assert not any(is_inside(result.phase) for result in touched)
    for result in touched:
        covered = any(defence.rule and defence.rule.covers(upload) for upload in result.phase.uploads.values())
        left = len(result.record.defended.not_chosen) if result.record.defended else 0
        assert left == ({"krum": 5, "multi-krum": 1}.get(rule, 0) if covered else 0)
        assert len(result.combined.clients) == 6 - left


FILTERED = (
    "blurred",
    "bottlenecked",
    "ccvr",
    "decorrelated",
    "fedfed",
    "feddata",
    "fedmix",
    "flea",
    "grouped",
    "noised",
    "potluck",
    "quantised",
    "rationed",
    "recalibrated",
    "slimmed",
    "veiled",
)


@pytest.mark.parametrize("name", registered())
def test_every_method_that_shares_rows_runs_under_the_filter_and_every_other_is_refused(name: str) -> None:
    defence = Defence(rows=RowFilter(0.9, 1.0))
    job = small(name, defence)
    if name not in FILTERED:
        with pytest.raises(ConfigError, match="send no rows with class labels that the server puts together"):
            refuse(job, defence)
        return
    refuse(job, defence)
    done = run(job, rounds=2, cohort=6)
    assert [metrics["failed"] for metrics in done.metrics] == [[], []]
    assert any("defended" in phase for metrics in done.metrics for phase in metrics["phases"].values())


def attacked(spec: str, defence: Defence, attack: Any = None) -> Job:
    job = job_of(spec, digits_federation(8, 16))
    return dataclasses.replace(job, defence=defence, adversary=Attackers(frozenset({2}), attack or SignFlip(5.0)))


DEFENCES: Mapping[str, Defence] = {
    **{name: Defence(rule) for name, rule in RULES.items()},
    "bound": Defence(bound=NormBound(Bound(3.0))),
    "rows": Defence(Median(), NormBound(Bound(9.0)), RowFilter(1.5, 1.1)),
}


@pytest.mark.parametrize(
    ("spec", "defence"),
    [*(("scaffold", name) for name in DEFENCES if name != "rows"), ("flea", "rows"), ("sem(fedavg)", "multi-krum")],
)
def test_worker_processes_give_the_same_bits(spec: str, defence: str) -> None:
    job = attacked(spec, DEFENCES[defence])
    workers = Workers(job, options=Options(processes=2, stack=1, layout="plain"))
    try:
        one, other = (run(job, rounds=2, cohort=7, executor=executor) for executor in (Sequential(job), workers))
    finally:
        workers.close()
    assert same(one.server, other.server)
    assert [metrics["failed"] for metrics in one.metrics] == [metrics["failed"] for metrics in other.metrics]
    phases = [[dict(phase) for phase in metrics["phases"].values()] for metrics in one.metrics]
    assert phases == [[dict(phase) for phase in metrics["phases"].values()] for metrics in other.metrics]


@pytest.mark.parametrize("defence", ["median", "multi-krum", "bound"])
@pytest.mark.parametrize("mode", ["stacked", "eager"])
def test_an_executor_that_combines_before_hands_packets_over_one_by_one(mode: Any, defence: str) -> None:
    job = in_double(attacked("scaffold", DEFENCES[defence]))
    device = Device(job, options=DeviceOptions(device="cpu", mode=mode))
    try:
        one, other = (run(job, rounds=2, cohort=7, executor=executor) for executor in (Sequential(job), device))
    finally:
        device.close()
    assert gap(one.server, other.server) < EXACT
    refused = [[(failure.client, failure.cause) for failure in view.record.failed] for view in one.views]
    assert [[(failure.client, failure.cause) for failure in view.record.failed] for view in other.views] == refused
    assert any(refused) == (defence == "bound")


def test_an_executor_that_combines_all_the_same_is_refused() -> None:
    class Headstrong(Device):
        def run(self, briefing: Any, members: Any) -> Any:
            return super().run(dataclasses.replace(briefing, apart=False), members)

    job = attacked("fedavg", DEFENCES["median"])
    device = Headstrong(job, options=DeviceOptions(device="cpu", mode="stacked"))
    try:
        with pytest.raises(RunError, match="packets that are combined already, but robust combination must see each"):
            run(job, rounds=1, cohort=7, executor=device)
    finally:
        device.close()


def test_without_a_defence_nothing_is_held_and_nothing_said() -> None:
    job = job_of("fedavg", digits_federation(8, 16))
    plain = run(job, rounds=2, cohort=7)
    wide = run(dataclasses.replace(job, defence=Defence(Clipped(Bound(1e9)))), rounds=2, cohort=7)
    assert same(plain.server, wide.server)
    assert all("defended" not in phase for metrics in plain.metrics for phase in metrics["phases"].values())
    assert plain.events == []


def test_uploads_that_nothing_covers_are_named_once() -> None:
    done = run(small("fedproto", Defence(Median())), rounds=2, cohort=6)
    events = [event for view in done.views for event in view.record.events if isinstance(event, NotCovered)]
    assert events == [NotCovered("train", ("means", "present"))]


def test_a_round_with_too_few_packets_falls_back_and_says_so() -> None:
    """Two of seven clients are refused for their length, and Krum needs seven."""
    job = attacked("fedavg", Defence(Krum(2.0), NormBound(Bound(3.0))), Boost(50.0))
    job = dataclasses.replace(job, adversary=Attackers(frozenset({2, 5}), Boost(50.0)))
    done = run(job, rounds=1, cohort=8)
    (event,) = (event for event in done.views[0].record.events if isinstance(event, RuleFellBack))
    assert (event.rule, event.packets, event.needed, event.instead) == ("krum", 6, 7, "median")
    assert [(failure.client, failure.cause) for failure in done.views[0].record.failed] == [
        (2, "defence"),
        (5, "defence"),
    ]


def test_a_bound_that_nobody_keeps_ends_the_run_at_its_first_round_alone() -> None:
    tiny = Defence(bound=NormBound(Bound(1e-12, is_relative=False)))
    with pytest.raises(
        RunError, match=r"all 4 members failed; the first, client \d: its packet was refused: it changes"
    ):
        run(small("fedavg", tiny), rounds=2, cohort=4)


@pytest.mark.parametrize("spec", ["flea", "scaffold"])
def test_a_run_that_goes_on_later_ends_with_the_same_bits(spec: str) -> None:
    defence = DEFENCES["rows"] if spec == "flea" else DEFENCES["trimmed"]
    job = attacked(spec, defence, RowFeatures() if spec == "flea" else None)
    whole = run(job, rounds=4, cohort=7)
    homes = SimulatedHomes(job)
    half = _rounds(job, homes, 2)
    done = run(job, rounds=4, cohort=7, homes=homes, server=half, start=2)
    assert same(done.server, whole.server)


def _rounds(job: Job, homes: SimulatedHomes, stop: int) -> Tree:
    """The server after the first of four rounds."""

    class Enough(Exception):
        pass

    class Keep:
        def __init__(self) -> None:
            self.server: Tree = {}

        def after_round(self, view: Any) -> None:
            if view.clock.round + 1 == stop:
                self.server = view.server
                raise Enough

    keep = Keep()
    with pytest.raises(Enough):
        run(job, rounds=4, cohort=7, homes=homes, observers=[keep])
    return keep.server


def test_defences_help_where_one_of_eight_attacks() -> None:
    def accuracy(defence: Defence | None) -> float:
        job = job_of("fedavg", digits_federation(8, 24), training={"lr": 0.005})
        bad = Attackers(frozenset({3}), Boost(-30.0))
        job = dataclasses.replace(job, defence=defence, adversary=bad)
        return float(run(job, rounds=8, cohort=8, observers=[Evaluate()]).metrics[-1]["accuracy"])

    alone = accuracy(None)
    for rule in (Trimmed(1.0), Krum(1.0, many=True)):
        assert accuracy(Defence(rule)) > alone + 0.1


@pytest.mark.parametrize(
    ("rule", "cohort", "least"),
    [
        *((Krum(1.0), 4, 5), (Krum(0.2), 4, 5), (Krum(0.4), 6, 15), (Trimmed(0.4), 4, 5), (Trimmed(3.0), 6, 7)),
        *((Median(), 2, 3), (Clipped(), 2, 3)),
    ],
)
def test_too_small_a_cohort_is_refused_before_the_run(rule: Rule, cohort: int, least: int) -> None:
    job = small("fedavg")
    with pytest.raises(ConfigError, match=f"{cohort} clients in phase 'train', which is not .* at least {least};"):
        refuse(job, Defence(rule), cohort)
    refuse(job, Defence(rule), least)


def test_a_half_of_attackers_is_too_many_for_any_cohort() -> None:
    with pytest.raises(ConfigError, match=r"no cohort is: expect fewer attackers"):
        refuse(small("fedavg"), Defence(Trimmed(0.5)))


def test_a_method_that_only_shares_rows_beside_is_pointed_to_the_filter() -> None:
    with pytest.raises(ConfigError, match="leave robust out, or use another method"):
        refuse(small("local"), Defence(Median()))
    with pytest.raises(ConfigError, match="leave robust out, or use robust = clipped or norm_bound"):
        refuse(small("fedfv"), Defence(Median()))
