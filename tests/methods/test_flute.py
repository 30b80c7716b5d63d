"""FLUTE: the collapse term at its known points, frozen parts, personal heads, and the optional server step."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch

from fewfed import networks, tree
from fewfed.engine.outcomes import Finished
from fewfed.engine.turn import Member, run_turn
from fewfed.errors import ConfigError
from fewfed.methods.flute import FLUTE, distance_to_simplex
from fewfed.phase import Clock, Combine
from fewfed.tasks.classification import Classification
from support import digits_federation, job_of, run, states

CLOCK = Clock(0, 5, 2)


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_a_simplex_head_has_no_distance_at_any_scale(classes: int) -> None:
    simplex = torch.eye(classes, dtype=torch.float64) - 1 / classes
    for scale in (0.1, 7.0):
        assert float(distance_to_simplex(scale * simplex, torch.ones(classes).double())) == pytest.approx(0, abs=1e-7)


def test_distance_is_numpys_with_absent_classes_masked() -> None:
    weight, present = np.random.default_rng(0).normal(size=(4, 6)), np.array([1.0, 0.0, 1.0, 1.0])
    gram = weight @ weight.T
    target = (np.eye(4) - 0.25) / math.sqrt(3) * np.outer(present, present)
    expected = np.linalg.norm(gram / np.linalg.norm(gram) - target)
    assert float(distance_to_simplex(torch.tensor(weight), torch.tensor(present))) == pytest.approx(expected)


def test_the_gradient_is_finite_for_a_zero_head() -> None:
    weight = torch.zeros(3, 4, requires_grad=True)
    slope = torch.autograd.grad(distance_to_simplex(weight, torch.ones(3)), weight)[0]
    assert bool(torch.isfinite(slope).all())


def test_phase_head_trains_the_head_and_phase_joint_everything() -> None:
    method = FLUTE()
    job = job_of(method, training={"epochs": 2})
    head, joint = method.phases(CLOCK)
    assert (head.epochs, joint.epochs) == (1, 1)
    server, state = method.server_init(job.setup), method.client_init(job.setup)
    first = run_turn(job, head, CLOCK, head.does.broadcast(server), Member(0, {}, state))
    assert isinstance(first, Finished)
    assert first.packet.arrays == {}
    assert set(first.state) == {"head"}
    assert not torch.equal(first.state["head"]["head.weight"], state["head"]["head.weight"])
    second = run_turn(job, joint, CLOCK, joint.does.broadcast(server), Member(0, {}, first.state))
    assert isinstance(second, Finished)
    assert set(second.state) == {"head"}
    before, after = server["representation"]["params"], second.packet.arrays["representation"]["params"]
    assert set(before) == set(after)
    assert all(not torch.equal(before[name], after[name]) for name in before if name.endswith("conv.weight"))


def test_no_head_leaves_a_client_unless_the_server_works_on_heads() -> None:
    for phase in FLUTE().phases(CLOCK):
        assert not any(upload.combine.seen_raw for upload in phase.uploads.values())
    uploads = FLUTE(server_lr=0.5).phases(CLOCK)[1].uploads
    assert {name for name, upload in uploads.items() if upload.combine is Combine.KEEP} == {"head", "present"}
    server = run(job_of("flute"), rounds=1).server
    assert not any("head." in name for name, _ in tree.leaves(server))


def test_the_server_step_brings_heads_closer_to_their_simplex() -> None:
    method = FLUTE(server_lr=0.5)
    job = job_of(method, digits_federation(3))
    ran = run(job, rounds=1, cohort=3)
    kept = states(ran.views[-1].executor, 3)
    for client in range(3):
        present = (job.federation.counts(client) > 0).float()
        own, moved = kept[client]["head"]["head.weight"], ran.server["heads"][str(client)]["head.weight"]
        assert float(distance_to_simplex(moved, present)) < float(distance_to_simplex(own, present))
    sent = method.phases(CLOCK)[0].does.personal(ran.server, 1)["head"]["head.weight"]
    assert torch.equal(sent, ran.server["heads"]["1"]["head.weight"])


def test_the_server_step_is_plain_sgd_on_the_mean_distance_of_the_cohort() -> None:
    """The release's server: SGD of rate 0.5 on all members' heads at once, their mean norm and no other factor."""
    method = FLUTE(server_lr=0.5, collapse=0.25)
    job = job_of(method, digits_federation(3))
    ran = run(job, rounds=1, cohort=3)
    kept = states(ran.views[-1].executor, 3)
    heads = [kept[client]["head"]["head.weight"].clone().requires_grad_() for client in range(3)]
    distances = []
    for client, weight in enumerate(heads):
        gram, held = weight @ weight.T, (job.federation.counts(client) > 0).float()
        simplex = (torch.eye(10) - torch.ones(10, 10) / 10) / math.sqrt(9) * held.outer(held)
        distances.append((gram / gram.square().sum().sqrt() - simplex).square().sum().sqrt())
    (sum(distances) / 3).backward()
    torch.optim.SGD(heads, lr=0.5).step()
    for client, weight in enumerate(heads):
        found = ran.server["heads"][str(client)]["head.weight"]
        torch.testing.assert_close(found, weight.detach(), rtol=1e-5, atol=1e-6)
        assert not torch.allclose(found, kept[client]["head"]["head.weight"], rtol=1e-5, atol=1e-6)


def test_with_one_epoch_everything_is_joint() -> None:
    assert [phase.epochs for phase in FLUTE().phases(Clock(0, 5, 1))] == [0, 1]
    assert run(job_of("flute", training={"epochs": 1}), rounds=2).metrics[-1]["failed"] == []


def test_a_network_without_a_linear_classifier_is_refused() -> None:
    job = job_of("flute")
    net = networks.build("unet", (1, 16, 16), 2, 0)
    with pytest.raises(ConfigError, match="unet"):
        job.method.check(dataclasses.replace(job.setup, net=net, task=Classification(2), shape=(1, 16, 16)))
