"""What clients weigh in means, their rows or the same as everybody: in every executor, and as a bound on packets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pytest

from fewfed import tree
from fewfed.engine.executor import Briefing, Executor, Invited
from fewfed.engine.executors.cuda.executor import Device
from fewfed.engine.executors.cuda.options import Options as DeviceOptions
from fewfed.engine.executors.sequential import Sequential
from fewfed.engine.executors.workers.executor import Workers
from fewfed.engine.executors.workers.options import Options as WorkersOptions
from fewfed.engine.job import Job
from fewfed.engine.outcomes import Done, Outcome
from fewfed.method import Context, Method, Report
from fewfed.methods.fedavg import FedAvg
from fewfed.methods.sem import Sem
from fewfed.training import Weighting
from fewfed.tree import Tree
from support import EXACT, digits_federation, in_double, job_of, run

SIZES = (5, 30, 12, 9, 20, 14)


def uneven(method: str | Method, weighting: Weighting) -> Job:
    return job_of(method, digits_federation(len(SIZES), SIZES), training={"weighting": weighting})


class Keeping(Sequential):
    """Keeps what every client uploaded."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.models: list[dict[str, np.ndarray]] = []

    def run(self, briefing: Briefing, members: Iterable[Invited]) -> Iterator[Outcome]:
        for outcome in super().run(briefing, members):
            assert isinstance(outcome, Done)
            leaves = tree.leaves(outcome.packet.arrays["model"])
            self.models.append({path: leaf.double().numpy().copy() for path, leaf in leaves})
            yield outcome


def executor(name: str, job: Job) -> Executor:
    if name == "workers":
        return Workers(job, options=WorkersOptions(processes=2, stack=1, layout="plain"))
    if name == "device":
        return Device(job, None, DeviceOptions(device="cpu", mode="stacked", streams=2, stack=4))
    return Sequential(job)


@pytest.mark.parametrize("name", ["sequential", "workers", "device"])
@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_the_model_is_numpys_average_of_the_clients(name: str, weighting: Literal["samples", "uniform"]) -> None:
    job = in_double(uneven("fedavg", weighting))
    keeping = Keeping(in_double(uneven("fedavg", "samples")))
    run(keeping._job, rounds=1, cohort=len(SIZES), executor=keeping)
    weights = SIZES if weighting == "samples" else None
    chosen = executor(name, job)
    try:
        found = dict(tree.leaves(run(job, rounds=1, cohort=len(SIZES), executor=chosen).server["model"]))
    finally:
        chosen.close()
    assert len(keeping.models) == len(SIZES)
    assert found.keys() == keeping.models[0].keys()
    for path, leaf in found.items():
        expected = np.average([model[path] for model in keeping.models], axis=0, weights=weights)
        np.testing.assert_allclose(leaf.numpy(), expected, rtol=0, atol=EXACT)


def test_the_two_weightings_differ() -> None:
    """Otherwise the test above could not tell them apart."""
    models = [run(uneven("fedavg", name), rounds=1, cohort=6).server["model"] for name in ("samples", "uniform")]
    assert float(tree.sq_distance(models[0]["params"], models[1]["params"])) > 1e-4


@dataclass(frozen=True)
class Boastful(FedAvg):
    """Client 1 says that it weighs as much as it has rows, whatever the training says."""

    name = "boastful"

    def end(self, work: Tree, ctx: Context) -> Report:
        report = super().end(work, ctx)
        return report._replace(weight=float(ctx.size)) if ctx.client == 1 else report


def refused(job: Job) -> dict[int, str]:
    done = run(job, rounds=1, cohort=len(SIZES))
    return {failure["client"]: failure["reason"] for failure in done.metrics[0]["failed"]}


def test_under_uniform_weighting_nobody_may_weigh_more_than_one() -> None:
    assert refused(uneven(Boastful(), "samples")) == {}
    reasons = refused(uneven(Boastful(), "uniform"))
    assert list(reasons) == [1]
    assert "its weight is 30.0: expected a number above 0 and at most 1" in reasons[1]
    assert "weighting = uniform" in reasons[1]


def test_a_relayed_model_weighs_as_its_two_clients_do() -> None:
    """SEM's second leg: n_i + n_j, or 2 for everybody, and no more than that."""
    for weighting, expected in (("samples", 2.0 * sum(SIZES)), ("uniform", 2.0 * len(SIZES))):
        job = uneven("sem(fedavg)", weighting)  # type: ignore[arg-type]
        legs = run(job, rounds=1, cohort=len(SIZES)).views[0].phases
        assert sum(legs[1].combined.weights) == expected
        assert (len(set(legs[1].combined.weights)) == 1) == (weighting == "uniform")
    assert list(refused(uneven(Sem(Boastful()), "uniform"))) == [1, 1][:1]
