"""Noise as wide as a part of each row's own deviation: on the packets, in closed form, new each time."""

from __future__ import annotations

import math

import pytest
import torch
from packets import sent

from fewfed.engine.job import Job
from fewfed.methods.blurred import Blurred, deviation
from fewfed.methods.feddata import FedData
from fewfed.methods.flea import FLea
from fewfed.methods.grouped import Grouped
from fewfed.plan import Plan
from support import digits_federation, job_of


def rows_of(method: object, rounds: int = 1, plan: Plan | None = None) -> torch.Tensor:
    """All rows on the packets of four clients, round by round."""
    job = job_of(method, digits_federation(4, 40))  # type: ignore[arg-type]
    if plan is not None:
        job = Job(job.method, job.net, job.task, job.federation, job.training, plan)
    packets, _ = sent(job, rounds=rounds, cohort=4)
    return torch.cat([packet.arrays[phase.row_upload] for phase, _, packet in packets]).flatten(1).double()


def test_the_noise_on_a_row_is_as_wide_as_said_of_that_row() -> None:
    raw, noisy = rows_of(FedData(share=1.0)), rows_of(Blurred(FedData(share=1.0), noise=0.7))
    spread = ((raw - raw.mean(1, keepdim=True)) ** 2).mean(1, keepdim=True).sqrt()
    assert float(spread.max()) > 1.2 * float(spread.min()), "rows differ, so that one width for all would show"
    noise = (noisy - raw) / (0.7 * spread)
    count = noise.numel()
    assert count == 160 * 64
    assert abs(float(noise.mean())) < 4 / math.sqrt(count)
    assert float(noise.std()) == pytest.approx(1.0, abs=4 / math.sqrt(2 * count))
    assert abs(float((noise[:, 1:] * noise[:, :-1]).mean())) < 4 / math.sqrt(count), "numbers are independent"
    assert abs(float((noise[1:] * noise[:-1]).mean())) < 4 / math.sqrt(count), "so are rows"
    by_row = noise.std(1)
    assert float(by_row.std()) < 0.2, "no row has much more than its share"


def test_a_row_without_deviation_stays_and_averages_have_less_of_it() -> None:
    rows = torch.stack([torch.full((3, 4), 2.5), torch.arange(12.0).view(3, 4)])
    assert deviation(rows).flatten().tolist() == [0.0, pytest.approx(math.sqrt(143 / 12))]
    assert deviation(rows).shape == (2, 1, 1)
    assert deviation(rows[:0]).shape == (0, 1, 1)
    single = rows_of(Blurred(FLea(share=0.5), noise=0.0))
    averages = rows_of(Blurred(Grouped(FLea(share=0.5), k=5), noise=0.0))
    assert float(averages.std(1).mean()) < float(single.std(1).mean())


def test_it_is_new_in_every_round_and_at_a_real_site_nobodys_seed() -> None:
    blurred = Blurred(FLea(share=0.5), noise=2.0)
    twice, again = rows_of(blurred, rounds=2), rows_of(blurred, rounds=2)
    assert torch.equal(twice, again), "in a simulation it is of the seed"
    plain = rows_of(FLea(share=0.5), rounds=2)
    added = (twice - plain).chunk(2)
    assert abs(float(torch.corrcoef(torch.stack([added[0].flatten(), added[1].flatten()]))[0, 1])) < 0.05
    job = job_of(blurred)
    system = Plan(job.plan.seed, job.plan.batch, protection="system")
    assert not torch.equal(rows_of(blurred, plan=system), rows_of(blurred, plan=system))
