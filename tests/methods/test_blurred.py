"""Noise as wide as a part of each row's own deviation: on the packets, in closed form, staying or new each time."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import pytest
import torch
from packets import sent

from fewfed.engine.job import Job
from fewfed.errors import ConfigError
from fewfed.method import Context
from fewfed.methods.blurred import Blurred, deviation
from fewfed.methods.feddata import FedData
from fewfed.methods.fedfed import FedFed
from fewfed.methods.flea import FLea
from fewfed.methods.grouped import Grouped
from fewfed.methods.parts.protection import staying_noise
from fewfed.plan import Plan
from fewfed.tree import Tree
from support import context, digits_federation, job_of


def rows_of(method: object) -> torch.Tensor:
    """All rows on the packets of four clients."""
    packets, _ = sent(job_of(method, digits_federation(4, 40)), cohort=4)  # type: ignore[arg-type]
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


FLEA = FLea(share=0.5, decorrelate=0.0)


def clean(method: Blurred) -> Blurred:
    return dataclasses.replace(method, noise=0.0)


def standing(method: object, plan: Plan | None = None) -> Job:
    """Four clients whose network stays as it is, so that what they send of a row is the same in every round."""
    job = job_of(method, digits_federation(4, 40), training={"lr": 0.0})  # type: ignore[arg-type]
    return job if plan is None else dataclasses.replace(job, plan=plan)


def noise_on_packets(method: Blurred, rounds: int, plan: Plan | None = None) -> torch.Tensor:
    """What was added to each row, in deviations of the row: (rounds, rows, numbers)."""
    noisy, plain = (sent_rows(standing(each, plan), rounds) for each in (method, clean(method)))
    spread = plain.std(2, correction=0, keepdim=True)
    return (noisy - plain) / (method.noise * spread)


def sent_rows(job: Job, rounds: int) -> torch.Tensor:
    packets, _ = sent(job, rounds=rounds, cohort=4)
    packets.sort(key=lambda one: (one[2].round, one[2].sender))
    every = [packet.arrays[phase.row_upload].flatten(1).double() for phase, _, packet in packets]
    return torch.stack(torch.cat(every).chunk(rounds))


def test_the_mean_over_rounds_comes_near_the_row_with_fresh_noise_and_never_with_noise_that_stays() -> None:
    """Rounds as measurements: the mean over r of them has noise of deviation 1/sqrt(r), or 1 however many there are."""
    rounds = 16
    stays, fresh = (
        noise_on_packets(Blurred(Grouped(FLEA, k=5), noise=2.0, fresh=fresh), rounds) for fresh in (False, True)
    )
    count = stays[0].numel()
    assert count > 10_000
    torch.testing.assert_close(stays, stays[:1].expand_as(stays), atol=1e-4, rtol=0)
    assert float(stays.mean(0).std()) == pytest.approx(1.0, abs=5 / math.sqrt(2 * count))
    assert float(fresh.mean(0).std()) == pytest.approx(rounds**-0.5, rel=5 / math.sqrt(2 * count))
    assert abs(float((fresh[0] * fresh[1]).mean())) < 5 / math.sqrt(count)


def test_a_part_of_the_noise_stays_and_a_part_is_new_each_time() -> None:
    """Of the mean over r rounds the deviation is sqrt(1 - f + f/r), of half the difference of two sqrt(f/2): a half of
    each leaves something of both."""
    rounds = 8
    for part in (0.0, 0.25, 0.5, 1.0):
        noise = noise_on_packets(Blurred(Grouped(FLEA, k=5), noise=2.0, fresh=part), rounds)
        near = {"abs": 1e-4, "rel": 6 / math.sqrt(2 * noise[0].numel())}
        assert float(noise[0].std()) == pytest.approx(1.0, **near), "always as wide as said"
        assert float(noise.mean(0).std()) == pytest.approx(math.sqrt(1 - part + part / rounds), **near)
        assert float(((noise[0] - noise[1]) / 2).std()) == pytest.approx(math.sqrt(part / 2), **near)


def test_rows_groups_clients_and_uploads_have_noise_of_their_own() -> None:
    noise = noise_on_packets(Blurred(Grouped(FLEA, k=5), noise=2.0), 1)[0]
    among = torch.corrcoef(noise) - torch.eye(len(noise))
    assert float(among.abs().max()) < 6 / math.sqrt(noise.shape[1]), "no two of all clients' groups are alike"
    job = job_of(FLEA, digits_federation(2, 10))
    ctx = context(job.net, job.federation.examples(0), {})
    rows = {"features": torch.zeros(3, 400), "inputs": torch.zeros(3, 400)}
    drawn = staying_noise(rows, ctx, "a test", torch.tensor([[0, 1], [1, 2], [2, -1]]))
    every = torch.cat([drawn["features"], drawn["inputs"], *other_contexts(ctx, rows)])
    assert float((torch.corrcoef(every) - torch.eye(len(every))).abs().max()) < 6 / math.sqrt(400)


def other_contexts(ctx: Context, rows: Tree) -> Iterator[torch.Tensor]:
    origins = torch.tensor([[0, 1], [1, 2], [2, -1]])
    phase = dataclasses.replace(ctx.phase, name="another")
    plan = dataclasses.replace(ctx.plan, seed=ctx.plan.seed + 1)
    for other in (
        dataclasses.replace(ctx, client=1),
        dataclasses.replace(ctx, phase=phase),
        dataclasses.replace(ctx, plan=plan),
    ):
        yield staying_noise(rows, other, "a test", origins)["features"]
    yield staying_noise(rows, ctx, "another purpose", origins)["features"]


def test_a_group_keeps_its_noise_whatever_else_is_sent_and_in_which_order() -> None:
    job = job_of(FLEA, digits_federation(2, 10))
    ctx = context(job.net, job.federation.examples(0), {})

    def drawn(*groups: list[int], round: int = 0) -> torch.Tensor:
        later = dataclasses.replace(ctx, clock=dataclasses.replace(ctx.clock, round=round))
        found: torch.Tensor = staying_noise({"z": torch.zeros(len(groups), 2, 3)}, later, "", torch.tensor(groups))["z"]
        return found

    both = drawn([4, 1, 7], [2, 3, 5])
    assert torch.equal(drawn([2, 3, 5], round=6)[0], both[1])
    assert torch.equal(drawn([2, 3, 5], [7, 4, 1])[1], both[0]), "the same rows in another order"
    assert not torch.equal(drawn([4, 1, 8])[0], both[0])
    empty = staying_noise({"z": torch.zeros(0, 2, 3)}, ctx, "", torch.zeros(0, 1, dtype=torch.long))
    assert empty["z"].shape == (0, 2, 3)
    with pytest.raises(ConfigError, match="has 2 rows, and 'origins' says of 1 which rows are behind them"):
        staying_noise({"z": torch.zeros(2, 3)}, ctx, "", torch.tensor([[0]]))


def test_noise_inside_an_average_stays_too() -> None:
    """grouped(blurred(M)): of rows that each keep their noise, the mean keeps its own."""
    plain = Grouped(clean(Blurred(FLEA)), k=4)
    stays, fresh = (
        noise_of_averages(Grouped(Blurred(FLEA, noise=2.0, fresh=fresh), k=4), plain) for fresh in (False, True)
    )
    assert float(torch.corrcoef(stays.flatten(1))[0, 1]) > 0.99, "but for the rows' deviations, which moved a little"
    assert abs(float(torch.corrcoef(fresh.flatten(1))[0, 1])) < 0.05
    assert float(stays[0].std()) == pytest.approx(float(fresh[0].std()), rel=0.05)


def noise_of_averages(noisy: Grouped, plain: Grouped) -> torch.Tensor:
    return sent_rows(standing(noisy), 2) - sent_rows(standing(plain), 2)


def test_copies_of_a_row_have_the_same_noise() -> None:
    """Otherwise their mean would have less of it."""
    fedfed = FedFed(noises=(0.0, 0.0), distil_rounds=1, hidden=8, latent=4)
    for fresh in (False, True):
        packets, _ = sent(job_of(Blurred(fedfed, noise=1.0, fresh=fresh), digits_federation(2, 12)), rounds=2, cohort=2)
        first, second = packets[0][2].arrays["parts"].flatten(1).unflatten(0, (12, 2)).unbind(1)
        assert torch.equal(first, second) is not fresh
        assert not torch.equal(first[0] - first[0].mean(), first[1] - first[1].mean())


@pytest.mark.parametrize("fresh", [False, True])
def test_in_a_simulation_it_is_of_the_seed_and_at_a_real_site_nobodys(fresh: bool) -> None:
    blurred = Blurred(FLEA, noise=2.0, fresh=fresh)
    assert torch.equal(sent_rows(standing(blurred), 1), sent_rows(standing(blurred), 1))
    seeded = standing(blurred).plan
    site, other = (Plan(seeded.seed, seeded.batch, protection="system") for _ in range(2))
    at_site = noise_on_packets(blurred, 2, site)
    count = at_site[0].numel()
    assert float(at_site[0].std()) == pytest.approx(1.0, abs=5 / math.sqrt(2 * count))
    for elsewhere in (noise_on_packets(blurred, 1, other), noise_on_packets(blurred, 1)):
        assert abs(float((at_site[:1] * elsewhere).mean())) < 5 / math.sqrt(count)
    again = noise_on_packets(blurred, 2, dataclasses.replace(other, secret=site.secret))
    assert torch.allclose(at_site[0], at_site[1], atol=1e-4) is not fresh
    assert torch.allclose(at_site, again, atol=1e-4) is not fresh, "who keeps the secret has the noise again"


def test_a_sites_secret_is_not_shown_and_of_no_use_in_a_simulation() -> None:
    site = Plan(0, 8, protection="system")
    assert len(site.secret) == 32
    assert str(site.secret) not in repr(site)
    assert dataclasses.replace(site, batch=4).secret == site.secret, "plans of single phases are made so"
    assert Plan(0, 8).secret == b""
    ours, theirs = (Plan(0, 8, secret=secret).staying("p", 1, "u", [1, 2]).normal(5) for secret in (b"a", b"b"))
    assert torch.equal(ours, theirs)


def test_noise_from_a_secret_is_normal_and_goes_on() -> None:
    plan = Plan(0, 8, protection="system", secret=b"known")
    random = plan.staying("share", 3, "a test", [5, 2])
    drawn = torch.cat([random.normal(100, 1000).flatten(), random.normal(100_000)]).double()
    count = len(drawn)
    assert abs(float(drawn.mean())) < 5 / math.sqrt(count)
    assert float(drawn.std()) == pytest.approx(1.0, abs=5 / math.sqrt(2 * count))
    assert float((drawn.abs() > 2).double().mean()) == pytest.approx(0.0455, abs=0.003)
    assert abs(float((drawn[: count // 2] * drawn[count // 2 :]).mean())) < 10 / math.sqrt(count)
    assert torch.equal(plan.staying("share", 3, "a test", [2, 5]).normal(10), drawn[:10].float())
