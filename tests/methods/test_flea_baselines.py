"""Every baseline of the FLea papers runs on every network of theirs. What they promise is in the conformance suite."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from fewfed import networks
from fewfed.data.examples import Examples
from fewfed.data.federation import GeneratedFederation
from fewfed.engine.evaluation import Evaluate
from fewfed.methods.registry import choose
from fewfed.plan import Random
from fewfed.tasks.classification import Classification
from support import job_of, run

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


@pytest.mark.parametrize("spec", SETTINGS)
@pytest.mark.parametrize(
    ("network", "shape"),
    [
        ("harnet", (1, 64, 3)),
        pytest.param("audionet", (2, 16, 24), marks=pytest.mark.thorough),
        pytest.param("mobilenetv2", (3, 8, 8), marks=pytest.mark.thorough),
        pytest.param("lenet5", (1, 28, 28), marks=pytest.mark.thorough),
        ("mlp", (7,)),
    ],
)
def test_every_network_of_the_papers_is_served(network: str, shape: tuple[int, ...], spec: str) -> None:
    x, y = Random(0, network).normal(12, *shape), torch.arange(12) % 3
    federation = GeneratedFederation(2, lambda k: Examples(x[6 * k :][:6], y[6 * k :][:6]), Examples(x, y), 3)
    smaller = {"fedgen": {"batch": 4, "steps": 1}, "fedgen-latent": {"batch": 4, "steps": 1}, "fedbr": {"group": 3}}
    method = choose(spec, {**SETTINGS[spec], **smaller.get(spec, {})}).method
    net = networks.build(network, shape, 3, 0)
    job = job_of(method, federation, net=net, training={"epochs": 1}, task=Classification(3))
    ended = run(job, rounds=2, cohort=2, observers=[Evaluate(every=2)])
    assert ended.metrics[-1]["failed"] == []
    assert math.isfinite(ended.metrics[-1]["loss"])
