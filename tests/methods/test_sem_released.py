"""Preset `released` of SEM against its authors' round, written anew with torch's own modules and optimisers."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fewfed.data.examples import Examples
from fewfed.data.federation import GeneratedFederation
from fewfed.engine.job import Job
from fewfed.methods.parts.pairing import pair
from fewfed.methods.registry import choose
from fewfed.methods.sem import Sem
from fewfed.network import Network
from fewfed.phase import Clock
from fewfed.plan import Random
from support import digits_federation, in_double, job_of, run, states

SIZES = [9, 14, 20, 5, 17, 11, 8]
LR, MU, EPOCHS = 0.05, 0.1, 5  # An odd number: both legs train two epochs.


def perceptron() -> nn.Sequential:
    torch.manual_seed(4)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 10)).double()


def job_for(inner: str) -> Job:
    values = {"inner.mu": MU} if inner == "fedprox" else {}
    method = choose(f"sem:released({inner})", values).method
    training = {"optimizer": "sgd", "lr": LR, "lr_decay": 0.0, "epochs": EPOCHS, "batch": 4}
    job = in_double(job_of(method, digits_federation(len(SIZES), SIZES), training=training))
    return dataclasses.replace(job, net=Network.of(perceptron()))


Extra = Callable[[nn.Module], Any]
"""What a method does to the gradients of a model before it steps."""


class Authors:
    """Their round: sorted cohort, leg 1 on the global model, models swapped, leg 2, aggregation."""

    def __init__(self, job: Job) -> None:
        self.job, self.model = job, perceptron()
        self.control = [torch.zeros_like(p) for p in self.model.parameters()]
        self.controls = {client: [c.clone() for c in self.control] for client in range(len(SIZES))}

    def trained(self, start: nn.Module, client: int, leg: str, number: int, adjust: Extra) -> tuple[nn.Module, int]:
        model, data = copy.deepcopy(start), self.job.federation.examples(client)
        optimizer = torch.optim.SGD(model.parameters(), LR)
        batches = self.job.plan.batches(number, f"train-{leg}", client, len(data), EPOCHS // 2)
        for rows in batches:
            optimizer.zero_grad()
            cross_entropy(model(data.x[rows]), data.y[rows]).backward()
            adjust(model)
            optimizer.step()
        return model, len(batches)

    def legs(self, cohort: list[int], partner: dict[int, int], number: int, adjust: Callable[[int], Extra]) -> Any:
        """For every uploader: its model, and the steps of both clients that trained it."""
        first = {client: self.trained(self.model, client, "leg1", number, adjust(client)) for client in cohort}
        done = {}
        for client in cohort:
            start, before = first[partner[client]]  # A swap: who receives mine is whose I receive.
            model, steps = self.trained(start, client, "leg2", number, adjust(client))
            done[client] = model, before + steps
        return done

    def round(self, inner: str, cohort: list[int], partner: dict[int, int], number: int) -> None:
        if inner == "scaffold":
            return self.scaffold(cohort, partner, number)
        there = [p.detach().clone() for p in self.model.parameters()]

        def proximal(model: nn.Module) -> None:
            for p, anchor in zip(model.parameters(), there, strict=True):
                assert p.grad is not None
                p.grad += MU * (p.detach() - anchor) if inner == "fedprox" else 0

        done = self.legs(cohort, partner, number, lambda _: proximal)
        volumes = [SIZES[client] + SIZES[partner[client]] for client in cohort]
        shares = [volume / sum(volumes) for volume in volumes]
        return self.load({k: mixed([done[c][0].state_dict()[k] for c in cohort], shares) for k in self.state()})

    def scaffold(self, cohort: list[int], partner: dict[int, int], number: int) -> None:
        def corrected(client: int) -> Extra:
            def adjust(model: nn.Module) -> None:
                for p, common, own in zip(model.parameters(), self.control, self.controls[client], strict=True):
                    assert p.grad is not None
                    p.grad += common - own

            return adjust

        done = self.legs(cohort, partner, number, corrected)
        there = [p.detach().clone() for p in self.model.parameters()]
        changes = {}
        for client, (model, steps) in done.items():
            moved = [p.detach() - start for p, start in zip(model.parameters(), there, strict=True)]
            changes[client] = [-dy / (steps * LR) - c for dy, c in zip(moved, self.control, strict=True)]
            self.controls[client] = [c + dc for c, dc in zip(self.controls[client], changes[client], strict=True)]
        even = [1 / len(cohort)] * len(cohort)
        part = len(cohort) / len(SIZES)
        means = [mixed(list(one), even) for one in zip(*changes.values(), strict=True)]
        self.control = [c + part * mean for c, mean in zip(self.control, means, strict=True)]
        # Their server adds eta = 1 times the mean displacement, which is the mean model.
        self.load({k: mixed([done[c][0].state_dict()[k] for c in cohort], even) for k in self.state()})

    def state(self) -> list[str]:
        return [key for key in self.model.state_dict() if "num_batches" not in key]

    def load(self, values: dict[str, Tensor]) -> None:
        self.model.load_state_dict(values, strict=False)


def mixed(values: list[Tensor], shares: list[float]) -> Tensor:
    return torch.stack([share * value for share, value in zip(shares, values, strict=True)]).sum(0)


@pytest.mark.parametrize("inner", ["fedavg", "fedprox", "scaffold"])
@pytest.mark.parametrize("cohort", [4, 5])
def test_three_rounds_are_the_authors(inner: str, cohort: int) -> None:
    job = job_for(inner)
    done = run(job, rounds=3, cohort=cohort)
    theirs = Authors(job)
    for number, view in enumerate(done.views):
        members = sorted(view.cohort)
        partner = pair("pairs", members, Random(job.plan.seed, "sem", number))
        assert all(partner[partner[client]] == client for client in members)
        assert sum(partner[client] == client for client in members) == cohort % 2
        theirs.round(inner, members, partner, number)
        ours = view.server["inner"]["model"]
        flat = {**ours["params"], **ours["buffers"]}
        for key in theirs.state():
            place, rest = key.split(".", 1)
            found = flat[f"layer{int(place) + 1}.{rest}"]
            assert torch.allclose(found, theirs.model.state_dict()[key], rtol=0, atol=1e-9), (number, key)
    if inner == "scaffold":
        kept = states(done.views[-1].executor, len(SIZES))
        names = [name for name, _ in job.net.model()["params"].items()]
        for client, state in kept.items():
            for name, control in zip(names, theirs.controls[client], strict=True):
                assert torch.allclose(state["inner"]["control"][name], control, rtol=0, atol=1e-9)
        common = done.server["inner"]["control"]
        for name, control in zip(names, theirs.control, strict=True):
            assert torch.allclose(common[name], control, rtol=0, atol=1e-9)


def test_the_default_credits_a_client_with_its_own_movement_alone() -> None:
    """The two differ in SCAFFOLD's variates after a single round, and in nothing else of it but them."""
    job = job_for("scaffold")
    own = dataclasses.replace(job, method=dataclasses.replace(job.method, credit="own"))
    whole, mine = (run(one, rounds=1, cohort=4) for one in (job, own))
    assert all(
        torch.allclose(leaf, mine.server["inner"]["model"]["params"][name], atol=1e-12)
        for name, leaf in whole.server["inner"]["model"]["params"].items()
    )
    kept = [states(done.views[-1].executor, len(SIZES)) for done in (whole, mine)]
    client = next(iter(kept[0]))
    one, other = (state[client]["inner"]["control"]["layer5.weight"] for state in kept)
    assert not torch.allclose(one, other, atol=1e-3)


def test_what_the_preset_sets() -> None:
    method = choose("sem:released(fedavg)").method
    assert isinstance(method, Sem)
    assert (method.pairing, method.anchor, method.credit, method.odd_epoch) == ("pairs", "global", "whole", "none")
    for epochs, legs in ((2, (1, 1)), (3, (1, 1)), (8, (4, 4)), (9, (4, 4))):
        assert tuple(phase.epochs for phase in method.phases(Clock(0, 1, epochs))) == legs


def test_clients_of_one_class_are_examples_too() -> None:
    """Blank clients and clients without a partner end the phases of the preset like any other."""
    rows = digits_federation(1, 12).union()
    federation = GeneratedFederation(3, lambda k: rows.rows(torch.arange(4) + 4 * k), Examples(rows.x, rows.y), 10)
    done = run(job_of("sem:released(scaffold)", federation), rounds=2, cohort=3)
    assert not any(metrics["failed"] for metrics in done.metrics)
