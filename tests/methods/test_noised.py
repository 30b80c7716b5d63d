"""Noise on shared rows: what is on the packets is the clipped row plus noise of the stated size, new each time."""

from __future__ import annotations

import math

import pytest
import torch
from packets import sent

from fewfed.engine.job import Job
from fewfed.errors import ConfigError
from fewfed.methods.feddata import FedData
from fewfed.methods.flea import FLea
from fewfed.methods.noised import Noised
from fewfed.methods.parts.clipping import clipped
from fewfed.plan import Plan
from support import digits_federation, job_of


def rows_of(method: object, rounds: int = 1, **more: object) -> tuple[Job, list[torch.Tensor]]:
    job = job_of(method, digits_federation(4, 40), **more)  # type: ignore[arg-type]
    packets, _ = sent(job, rounds=rounds, cohort=4)
    return job, [packet.arrays[phase.row_upload] for phase, _, packet in packets]


def test_the_noise_on_the_packets_has_deviation_sigma_times_clip() -> None:
    _, plain = rows_of(Noised(FedData(share=1.0), clip=3.0, sigma=0.0))
    _, noisy = rows_of(Noised(FedData(share=1.0), clip=3.0, sigma=0.5))
    noise = torch.cat([b - a for a, b in zip(plain, noisy, strict=True)]).double()
    count = noise.numel()  # 160 rows of 64 numbers.
    assert count == 160 * 64
    assert abs(float(noise.mean())) < 4 * 1.5 / math.sqrt(count)
    assert float(noise.std()) == pytest.approx(1.5, abs=4 * 1.5 / math.sqrt(2 * count))
    flat = noise.flatten(1)
    assert abs(float((flat[:, 1:] * flat[:, :-1]).mean())) < 4 * 1.5**2 / math.sqrt(count), "numbers are independent"
    assert abs(float((flat[1:] * flat[:-1]).mean())) < 4 * 1.5**2 / math.sqrt(count), "so are rows"
    tail = (noise.abs() > 2 * 1.5).double().mean()
    assert float(tail) == pytest.approx(0.0455, abs=4 * math.sqrt(0.0455 / count)), "it is normal, not only as wide"


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_a_row_that_is_not_finite_leaves_as_an_empty_one(odd: float, dtype: torch.dtype) -> None:
    """The rest of its numbers would leave with the length they have, and noise does not hide what is not finite."""
    rows = 50 * torch.randn(3, 4, 2, generator=torch.Generator().manual_seed(0)).to(dtype)
    expected = clipped(rows, 2.0)
    rows[1, 2, 1] = odd
    found = clipped(rows, 2.0)
    assert not found[1].any()
    assert torch.equal(found[[0, 2]], expected[[0, 2]])
    assert found.dtype == dtype


def test_rows_that_are_too_long_have_the_norm_clip_and_others_are_not_touched() -> None:
    _, raw = rows_of(FedData(share=1.0))
    norms = torch.cat(raw).flatten(1).norm(dim=1)
    limit = float(norms.median())
    _, short = rows_of(Noised(FedData(share=1.0), clip=limit, sigma=0.0))
    before, after = torch.cat(raw).flatten(1), torch.cat(short).flatten(1)
    long = norms > limit
    assert 0 < int(long.sum()) < len(long)
    assert torch.equal(after[~long], before[~long])
    torch.testing.assert_close(after[long].norm(dim=1), torch.full((int(long.sum()),), limit))
    torch.testing.assert_close(after[long] / limit, before[long] / norms[long].unsqueeze(1))


def test_every_round_client_and_layer_has_noise_of_its_own() -> None:
    _, once = rows_of(Noised(FLea(share=0.5), clip=5.0, sigma=1.0), rounds=2)
    _, plain = rows_of(Noised(FLea(share=0.5), clip=5.0, sigma=0.0), rounds=1)
    noise = [b - a for a, b in zip(plain, once, strict=False)]
    assert not any(torch.equal(noise[0], other) for other in noise[1:]), "clients differ"
    _, again = rows_of(Noised(FLea(share=0.5), clip=5.0, sigma=1.0), rounds=2)
    assert all(torch.equal(a, b) for a, b in zip(once, again, strict=True)), "in a simulation it is of the seed"
    first, second = torch.cat(once[:4]).flatten().double(), torch.cat(once[4:]).flatten().double()
    together = torch.corrcoef(torch.stack([first, second]))[0, 1]
    assert abs(float(together)) < 0.15, "what is alike in two rounds are the rows, which are small beside the noise"
    _, twice = rows_of(Noised(Noised(FedData(share=1.0), clip=1e3, sigma=1e-3), clip=1e3, sigma=1e-3))
    _, inner = rows_of(Noised(FedData(share=1.0), clip=1e3, sigma=1e-3))
    _, raw = rows_of(FedData(share=1.0))
    outer = torch.cat([a - b for a, b in zip(twice, inner, strict=True)]).flatten()
    added = torch.cat([a - b for a, b in zip(inner, raw, strict=True)]).flatten()
    assert abs(float(torch.corrcoef(torch.stack([outer, added]))[0, 1])) < 0.05, "two layers add up"


def test_at_a_real_site_the_noise_is_nobodys_seed() -> None:
    job = job_of(Noised(FedData(share=1.0), clip=3.0, sigma=0.5), digits_federation(2, 10))
    plan = Plan(job.plan.seed, job.plan.batch, protection="system")
    found = []
    for _ in range(2):
        packets, _ = sent(Job(job.method, job.net, job.task, job.federation, job.training, plan), cohort=2)
        found.append(torch.cat([packet.arrays["x"] for _, _, packet in packets]))
    assert not torch.equal(*found)
    assert float((found[0] - found[1]).std()) == pytest.approx(1.5 * math.sqrt(2), rel=0.15)


@pytest.mark.parametrize("norm", [0.5, math.inf])
def test_clipping_keeps_zeros_and_without_a_clip_what_is_no_number_is_shown(norm: float) -> None:
    rows = torch.tensor([[0.0, 0.0], [3.0, 4.0], [math.nan, 1.0], [math.inf, 1.0]])
    found = clipped(rows, norm)
    assert torch.equal(found[0], rows[0])
    assert float(found[1].norm()) == pytest.approx(min(norm, 5.0))
    assert torch.isfinite(found[2:]).all(1).tolist() == [math.isfinite(norm)] * 2


def test_noise_without_a_limit_is_refused() -> None:
    with pytest.raises(ConfigError, match="noise is sigma times clip; expected a finite clip"):
        job_of(Noised(FLea(), clip=math.inf, sigma=0.1)).check()
    job_of(Noised(FLea(), clip=math.inf, sigma=0.0)).check()


def test_labels_and_the_model_are_sent_as_they_are() -> None:
    packets, _ = sent(job_of(Noised(FLea(share=0.5), clip=1.0, sigma=2.0)))
    for _, _, packet in packets:
        assert not packet.arrays["labels"].is_floating_point()
    plain, noisy = (sent(job_of(method))[1] for method in (FLea(share=0.5), Noised(FLea(share=0.5))))
    model, inner = plain.server["model"], noisy.server["inner"]["model"]
    assert all(torch.equal(model["params"][name], inner["params"][name]) for name in model["params"])


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_no_row_is_longer_than_the_bound_says_in_any_precision(kind: torch.dtype) -> None:
    random = torch.Generator().manual_seed(4)
    rows = (torch.randn(3000, 50, generator=random) * torch.rand(3000, 1, generator=random)).to(kind)
    found = clipped(rows, 1.0)
    length, before = (each.double().norm(dim=1) for each in (found, rows))
    assert found.dtype is kind
    assert float(length.max()) <= 1 + 1e-6
    assert float(length[before > 1].min()) >= 1 - 3 * torch.finfo(kind).eps
    assert torch.equal(found[before <= 1], rows[before <= 1])
