"""Clipped uploads and the server's noise, on packets and on what is combined."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fewfed
from fewfed import Training, networks, tree
from fewfed.data.examples import Examples
from fewfed.data.federation import GeneratedFederation
from fewfed.engine.executors.sequential import Sequential
from fewfed.engine.job import Job
from fewfed.errors import ConfigError
from fewfed.methods.central_dp import CentralDP
from fewfed.methods.fedavg import FedAvg
from fewfed.methods.scaffold import Scaffold
from fewfed.phase import Clock
from fewfed.plan import Plan
from fewfed.privacy.accounting import Sampled, Spent
from fewfed.privacy.gaussian import epsilon_of
from fewfed.privacy.ledger import gaps
from fewfed.runs.budget import BudgetSpent
from run_support import records, small
from support import digits_federation, digits_network, gap, job_of, run, same

NET = networks.build("mlp", (1, 8, 8), 10, 3)


def job_with(method: Any, federation: Any = None, **training: Any) -> Job:
    return job_of(method, federation or digits_federation(4, (12, 6, 20, 9)), net=NET, training=training)


class Packets(Sequential):
    """Keeps how far each packet's arrays are from what was broadcast under their names."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.changes: list[Tensor] = []
        self.weights: set[float] = set()

    def run(self, briefing: Any, members: Any) -> Any:
        base = dict(tree.leaves(briefing.shared))
        for outcome in super().run(briefing, members):
            arrays = dict(tree.leaves(outcome.packet.arrays))
            parts = [leaf - base[path] if path.startswith("model/") else leaf for path, leaf in arrays.items()]
            self.changes.append(torch.cat([part.flatten() for part in parts]).clone())
            self.weights.add(outcome.packet.weight)
            yield outcome


@pytest.mark.parametrize("inner", [FedAvg(), Scaffold()])
@pytest.mark.parametrize("clip", [0.01, 0.1])
def test_no_packet_is_longer_than_the_clip_and_all_weigh_the_same(inner: Any, clip: float) -> None:
    training = {"optimizer": "sgd", "lr": 0.1}
    executor = Packets(job := job_with(CentralDP(inner, clip=clip, sigma=0.0), **training))
    run(job, rounds=2, cohort=4, executor=executor)
    lengths = [float(change.norm()) for change in executor.changes]
    assert max(lengths) <= clip * (1 + 1e-5)
    assert max(lengths) == pytest.approx(clip, rel=1e-4)
    assert executor.weights == {1.0}


def test_a_wide_clip_changes_nothing_but_the_weights() -> None:
    plain = run(job_with(FedAvg(), weighting="uniform"), rounds=2, cohort=4).server
    clipped = run(job_with(CentralDP(FedAvg(), clip=1e6, sigma=0.0)), rounds=2, cohort=4).server
    assert gap(plain, clipped["inner"]) < 1e-6


def with_another_row(original: GeneratedFederation) -> GeneratedFederation:
    """The same but for one row of client 1."""

    def rows(client: int) -> Examples:
        found = original.examples(client)
        if client != 1:
            return found
        x = found.x.clone()
        x[0] = 1e3
        return Examples(x, (found.y + (torch.arange(len(found)) == 0).long()) % 10)

    return GeneratedFederation(len(original), rows, original.test, original.classes)


def test_one_row_moves_the_mean_by_no_more_than_the_ledger_says_and_noise_is_as_wide() -> None:
    clip, sigma, clients = 0.05, 4.0, 4
    federation = digits_federation(clients, (12, 6, 20, 9))
    training = {"optimizer": "sgd", "lr": 0.5}

    def mean(noise: float, rows: GeneratedFederation = federation) -> Tensor:
        job = job_with(CentralDP(FedAvg(), clip=clip, sigma=noise), rows, **training)
        model = run(job, rounds=1, cohort=clients).server["inner"]["model"]
        return torch.cat([leaf.flatten() for _, leaf in tree.leaves(model["params"])])

    quiet = mean(0.0)
    moved = float((mean(0.0, with_another_row(federation)) - quiet).norm())
    assert 0 < moved <= 2 * clip / clients + 1e-6
    noise = mean(sigma) - quiet
    assert float(noise.std()) == pytest.approx(sigma * clip / clients, rel=5 / math.sqrt(2 * len(noise)))
    (mechanism,) = CentralDP(FedAvg(), clip=clip, sigma=sigma).mechanisms(Clock(0, 1, 1))
    assert mechanism.noise == pytest.approx(float(noise.std()) / (2 * clip / clients), rel=0.05)


def test_noise_is_new_in_every_round_and_a_resumed_run_draws_the_same() -> None:
    job = job_with(CentralDP(FedAvg(), clip=1e-6, sigma=1e6))
    first = run(job, rounds=1)
    whole = run(job, rounds=2)
    resumed = run(job, rounds=2, server=first.server, start=1)
    assert same(whole.server, resumed.server)
    models = [job.method.server_init(job.setup), first.server, whole.server]
    flat = [torch.cat([leaf.flatten() for _, leaf in tree.leaves(each["inner"]["model"]["params"])]) for each in models]
    steps = torch.stack([flat[1] - flat[0], flat[2] - flat[1]])
    assert abs(float(torch.corrcoef(steps)[0, 1])) < 5 / math.sqrt(steps.shape[1])
    real = dataclasses.replace(job, plan=dataclasses.replace(job.plan, protection="system"))
    assert not same(run(real, rounds=1).server["inner"], run(real, rounds=1).server["inner"])


def test_it_protects_from_sites_only_and_counts_as_sampled(tmp_path: Path) -> None:
    method = CentralDP(FedAvg(), sigma=4.0)
    assert gaps(method, Clock(0, 1, 1), "server")
    assert not gaps(method, Clock(0, 1, 1), "sites")
    result = fewfed.run("central-dp(fedavg)", small(rounds=2), Training(epochs=1), values={"sigma": 4.0},
                        out=tmp_path / "part")  # fmt: skip
    assert result.privacy is not None
    assert result.privacy["epsilon_server"] is None
    # Three of six: of the five others, for a site that was not drawn.
    assert result.privacy["epsilon_sites"] == Spent(0.0, (Sampled(0.6, 2.0, 2),)).epsilon(1e-5)
    everybody = fewfed.run("central-dp(fedavg)", small(rounds=2, cohort=6.0), Training(epochs=1),
                           values={"sigma": 4.0}, out=tmp_path / "all")  # fmt: skip
    assert everybody.privacy is not None
    assert everybody.privacy["epsilon_sites"] == pytest.approx(epsilon_of(2 / 2.0**2, 1e-5))


def test_cohorts_that_everybody_can_compute_hide_nobody(tmp_path: Path) -> None:
    """Those of sampling = released follow from the number of the round, whatever the seed."""
    training, experiment = Training(epochs=1, sampling="released"), small(rounds=3)
    found = fewfed.run("central-dp(fedavg)", experiment, training, values={"sigma": 4.0}, out=tmp_path / "open")
    drawn = [Plan(seed, 8, sampling="released").cohort(round, 6, 3) for seed in (0, 7) for round in range(3)]
    assert drawn[:3] == drawn[3:]
    turns = max(Counter(client for cohort in drawn[:3] for client in cohort).values())
    assert found.privacy is not None
    assert found.privacy["epsilon_sites"] == pytest.approx(epsilon_of(turns / 2.0**2, 1e-5))


def test_a_budget_against_sites_ends_the_run_for_everybody_at_once(tmp_path: Path) -> None:
    """Also those who never took part: the server's noise is spent for all."""
    for cohort, sigma in ((6.0, 4.0), (2.0, 2.5)):
        folder = tmp_path / f"of {cohort:g}"
        with pytest.raises(BudgetSpent, match="epsilon = 3"):
            fewfed.run("central-dp(fedavg)", small(rounds=9, cohort=cohort, epsilon=3.0), Training(epochs=1),
                       values={"sigma": sigma}, out=folder)  # fmt: skip
        done = records(folder)
        assert 0 < len(done) < 9
        assert not any(record["failed"] for record in done)
        assert max(record["epsilon_sites"] for record in done) <= 3.0


def test_batchnorm_and_noise_without_a_clip_are_refused() -> None:
    with pytest.raises(ConfigError, match="cannot use BatchNorm"):
        job_of(CentralDP(FedAvg()), net=digits_network()).check()
    with pytest.raises(ConfigError, match="clip = inf"):
        job_with(CentralDP(FedAvg(), clip=math.inf)).check()
