"""What every baseline of the FLea papers must do: learn from few skewed rows, and bear the smallest clients."""

from __future__ import annotations

import dataclasses
import math
from functools import cache
from typing import Any

import pytest
import torch
from torch.func import grad, vmap

from fewfed import networks, tree
from fewfed.data.examples import Dataset, Examples
from fewfed.data.federation import GeneratedFederation, SplitFederation
from fewfed.data.splits import make_split
from fewfed.engine.client import evaluate, sum_terms
from fewfed.engine.evaluation import Evaluate
from fewfed.engine.workers import Workers
from fewfed.method import Batch, Method
from fewfed.methods.registry import choose
from fewfed.networks.generator import input_generator, latent_generator
from fewfed.plan import Draws
from fewfed.task import Classification
from support import batch_of, context, digits, digits_federation, digits_network, job_of, run

SETTINGS: dict[str, dict[str, Any]] = {
    "feddecorr": {},
    "fedlc": {},
    "fedntd": {},
    "fedrs": {},
    "fedbr": {},
    "ccvr": {},
    "ccvr:gaussian": {"samples": 100},
    "fedgen": {"start": 1, "steps": 10},
    "fedgen-latent": {},
    "moon": {},
    "fedproto": {},
}
"""Every method, with a generator that starts within a short run and fewer of what only takes time."""


def method_of(spec: str) -> Method:
    return choose(spec, SETTINGS[spec]).method


@cache
def skewed(rule: str) -> SplitFederation:
    train, test = digits()
    return SplitFederation(Dataset("digits", train, test, 10), make_split(rule, train.y.numpy(), 10, 28, 0))


@pytest.mark.parametrize("rule", ["qua:3", "dir:0.1"])
@pytest.mark.parametrize("spec", SETTINGS)
def test_five_rounds_improve_on_the_initial_model(spec: str, rule: str) -> None:
    job = job_of(method_of(spec), skewed(rule), training={"epochs": 2, "batch": 32, "lr": 3e-3})
    before = evaluate(job, job.net.model())
    last = run(job, rounds=5, cohort=14, observers=[Evaluate(every=5)]).metrics[-1]
    assert last["failed"] == []
    assert last["accuracy"] > before.accuracy + 0.05
    assert last["loss"] < before.mean_loss


@pytest.mark.parametrize("spec", SETTINGS)
def test_clients_with_one_row_or_one_class_take_part(spec: str) -> None:
    train, test = digits()

    def make(client: int) -> Examples:
        same = (train.y == client % 10).nonzero().flatten()
        return train.rows(same[: (1, 2, 3, 1, 12)[client]])

    federation = GeneratedFederation(5, make, test, classes=10)
    ended = run(job_of(method_of(spec), federation), rounds=3, cohort=5, observers=[Evaluate()])
    assert all(metrics["failed"] == [] for metrics in ended.metrics)
    assert all(math.isfinite(metrics["loss"]) for metrics in ended.metrics)
    assert all(torch.isfinite(leaf).all() for _, leaf in tree.leaves(ended.server))


@pytest.mark.parametrize("spec", SETTINGS)
def test_neutral_settings_are_fedavg_bit_for_bit(spec: str) -> None:
    neutral = type(method_of(spec)).neutral
    assert neutral
    method = choose(spec.split(":")[0], neutral).method
    federation = digits_federation(5, 11)
    ended, plain = (run(job_of(m, federation), rounds=2, cohort=3) for m in (method, "fedavg"))
    ours, theirs = (
        dict(tree.leaves(m.predictor(e.server, {}))) for m, e in ((method, ended), (method_of("fedlc"), plain))
    )
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], value) for name, value in theirs.items())


@pytest.mark.parametrize("spec", SETTINGS)
def test_clients_take_as_many_steps_as_under_fedavg(spec: str) -> None:
    federation = digits_federation(5, [3, 8, 9, 17, 30])
    steps = [
        [
            phase.steps
            for view in run(job_of(m, federation), rounds=2, cohort=5).views
            for phase in view.phases
            if phase.phase.name == "train"
        ]
        for m in (method_of(spec), "fedavg")
    ]
    assert steps[0] == steps[1]


@pytest.mark.parametrize("spec", ["fedbr", "ccvr:gaussian", "fedgen", "fedgen-latent", "moon"])
def test_workers_agree_bit_for_bit(spec: str) -> None:
    federation = digits_federation(6, [1, 12, 12, 20, 9, 14])
    ended = []
    for workers in (False, True):
        job = job_of(method_of(spec), federation)
        executor = Workers(job, 2) if workers else None
        ended.append(run(job, rounds=2, cohort=4, executor=executor))
        if executor:
            executor.close()
    alone, shared = (dict(tree.leaves(e.server)) for e in ended)
    assert alone.keys() == shared.keys()
    assert all(torch.equal(alone[name], shared[name]) for name in alone)


@pytest.mark.parametrize("spec", SETTINGS)
@pytest.mark.parametrize(
    ("network", "shape"),
    [
        ("harnet", (1, 64, 3)),
        ("audionet", (2, 16, 24)),
        ("mobilenetv2", (3, 8, 8)),
        ("lenet5", (1, 28, 28)),
        ("mlp", (7,)),
    ],
)
def test_every_network_of_the_papers_is_served(network: str, shape: tuple[int, ...], spec: str) -> None:
    x, y = Draws(0, network).normal(12, *shape), torch.arange(12) % 3
    federation = GeneratedFederation(2, lambda k: Examples(x[6 * k :][:6], y[6 * k :][:6]), Examples(x, y), 3)
    smaller = {"fedgen": {"batch": 4, "steps": 1}, "fedgen-latent": {"batch": 4, "steps": 1}, "fedbr": {"group": 3}}
    method = choose(spec, {**SETTINGS[spec], **smaller.get(spec, {})}).method
    net = networks.build(network, shape, 3, 0)
    job = job_of(method, federation, net=net, training={"epochs": 1}, task=Classification(3))
    ended = run(job, rounds=2, cohort=2, observers=[Evaluate(every=2)])
    assert ended.metrics[-1]["failed"] == []
    assert math.isfinite(ended.metrics[-1]["loss"])


@pytest.mark.parametrize("spec", [s for s in SETTINGS if not s.startswith("ccvr")])
def test_steps_of_several_clients_can_be_stacked(spec: str) -> None:
    method, net = method_of(spec), digits_network()
    train, _ = digits()
    shared = {
        "model": net.model(),
        "pseudo": train.x[200:220],
        "prototypes": torch.randn(10, 64, generator=torch.Generator().manual_seed(0)),
        "known": torch.ones(10),
        "seen": torch.ones(10, dtype=torch.long),
        "generator": (
            input_generator((1, 8, 8), 10, 0) if spec == "fedgen" else latent_generator((64,), 10, 0)
        ).model(),
    }
    contexts = [
        context(
            net,
            train.rows(torch.arange(8) + 8 * k),
            shared,
            client=k,
            round=1,
            state={"model": digits_network(k).model()},
        )
        for k in range(3)
    ]
    works = [method.begin(ctx) for ctx in contexts]
    batches = [batch_of(ctx.data, method.draw(Draws(k), ctx, 8)) for k, ctx in enumerate(contexts)]

    def step(params: Any, rest: Any, counts: Any, state: Any, x: Any, y: Any, draw: Any) -> Any:
        def total(point: Any) -> Any:
            ctx = dataclasses.replace(contexts[0], counts=counts, state=state)
            return sum_terms(method.loss({"params": point, **rest}, ctx, Batch(x, y, draw)), method.observed)

        return grad(total)(params)

    def parts(k: int) -> tuple[Any, ...]:
        rest = tree.clone({name: value for name, value in works[k].items() if name != "params"})
        ctx, batch = contexts[k], batches[k]
        return works[k]["params"], rest, {"n": ctx.counts}, ctx.state, {"x": batch.x, "y": batch.y}, batch.draw

    stacked = [tree.stack([parts(k)[i] for k in range(3)]) for i in range(6)]
    together = vmap(lambda p, r, c, s, b, d: step(p, r, c["n"], s, b["x"], b["y"], d))(*stacked)
    for k in range(3):
        params, rest, counts, state, batch, draw = parts(k)
        alone = step(params, rest, counts["n"], state, batch["x"], batch["y"], draw)
        for name, value in alone.items():
            assert torch.allclose(together[name][k], value, atol=2e-5), name
