"""FedFed: its schedule, what is shared, the distillation loss, and steps on local and shared rows."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy

from fewfed.errors import ConfigError
from fewfed.method import Combined
from fewfed.methods.fedfed import FedFed
from fewfed.networks.cvae import vae
from fewfed.phase import Clock, Combine
from support import batch_of, context, digits_federation, digits_network, job_of, run, same, trainable


@pytest.mark.parametrize(("distil", "rounds", "expected"), [(2, 10, 2), (15, 6, 3), (0, 6, 0), (15, 1, 0)])
def test_distillation_takes_the_first_rounds_and_rows_are_shared_once(distil: int, rounds: int, expected: int) -> None:
    names = [[p.name for p in FedFed(distil_rounds=distil).phases(Clock(r, rounds, 1))] for r in range(rounds)]
    assert sum("distil" in each for each in names) == expected
    assert sum("share" in each for each in names) == min(expected, 1)
    assert all(each[-1] == "train" for each in names)
    if expected:
        assert names[expected - 1] == ["distil", "share", "train"]


def test_the_distillation_loss_is_the_four_terms() -> None:
    net, data = digits_network(), digits_federation().examples(0)
    method = FedFed(noises=(0.5,), hidden=12, latent=4)
    job = job_of(method)
    phase = method.phases(Clock(0, 8, 1))[0]
    server = method.server_init(job.setup)
    ctx = context(net, data, phase.does.broadcast(server), phase=phase, plan=job.plan)
    draw = phase.does.draw(ctx.plan.random(0, "distil", 0), ctx, len(data))
    terms = phase.does.loss(trainable(phase.does.begin(ctx)), ctx, batch_of(data, draw))

    coder = vae((1, 8, 8), 12, 4, job.plan.seed)
    mean, log_variance = coder.apply(coder.model(), data.x, stop=2).chunk(2, dim=1)
    robust = coder.apply(coder.model(), mean + (log_variance / 2).exp() * draw["code"], start=2)
    noisy = data.x - robust + 0.5 * draw["noise"][0]
    torch.testing.assert_close(terms["reconstruct"], 5 * (data.x - robust).square().mean())
    # As released: summed over rows and code, then divided by rows times 3 times the code's length.
    kl = -0.5 * (1 + log_variance - mean.pow(2) - log_variance.exp()).sum() / (len(data) * 3 * 4)
    torch.testing.assert_close(terms["kl"], 0.005 * kl)
    model = net.model()
    torch.testing.assert_close(terms["sensitive"], 2 * cross_entropy(net.apply(model, noisy), data.y))
    torch.testing.assert_close(terms["plain"], 0.4 * cross_entropy(net.apply(net.model(), data.x), data.y))


def test_every_client_shares_a_noisy_copy_of_each_row_for_each_noise() -> None:
    federation = digits_federation(4, [3, 5, 4, 6])
    ran = run(job_of(FedFed(noises=(0.1, 0.2, 0.3)), federation), rounds=4, cohort=2)
    assert len(ran.server["labels"]) == 3 * 18
    assert ran.server["parts"].shape == (3 * 18, 1, 8, 8)
    labels = torch.cat([federation.examples(client).y for client in range(4)])
    assert torch.equal(ran.server["labels"], labels.repeat_interleave(3)), "the copies of a row lie side by side"
    assert torch.equal(ran.server["counts"], torch.bincount(labels, minlength=10))
    share = next(phase for phase in FedFed().phases(Clock(1, 4, 1)) if phase.name == "share")
    assert {upload.combine for upload in share.uploads.values()} == {Combine.CONCAT}


def test_the_noise_on_shared_parts_has_the_size_it_says() -> None:
    federation = digits_federation(2, 40)
    quiet, noisy = (
        run(job_of(FedFed(noises=(size,)), federation), rounds=2, cohort=2).server["parts"] for size in (0.0, 0.25)
    )
    assert float((noisy - quiet).std()) == pytest.approx(0.25, rel=0.03)


def test_the_loss_is_that_of_local_and_shared_rows_together() -> None:
    net, data, others = digits_network(), digits_federation().examples(0), digits_federation().examples(1)
    shared = {"model": net.model(), "parts": others.x, "labels": others.y}
    ctx, row = context(net, data, shared), torch.arange(len(data)).flip(0)
    ours = FedFed().loss(trainable(net.model()), ctx, batch_of(data, {"row": row}))["task"]
    output = net.apply(net.model(), torch.cat([data.x, others.x[row]]))
    torch.testing.assert_close(ours, cross_entropy(output, torch.cat([data.y, others.y[row]])))


def test_a_step_draws_a_row_of_each_noise_for_each_local_row_and_every_class_alike() -> None:
    """Two noises, classes of 40, 3 and 1 rows: each noise gives as many of each class, counted one by one."""
    method = FedFed(noises=(0.1, 0.2))
    job = job_of(method)
    labels = torch.tensor([7] * 25 + [2] * 3 + [7] * 15 + [4])
    values = {"parts": torch.arange(88.0).reshape(88, 1), "labels": labels.repeat_interleave(2)}
    share = next(phase for phase in method.phases(Clock(3, 8, 1)) if phase.name == "share")
    server = share.does.absorb(method.server_init(job.setup), Combined(values, (0, 1), (1.0, 1.0)))
    ctx = context(digits_network(), digits_federation().examples(0), method.broadcast(server))
    random, seen = ctx.plan.random(0, "train", 0), []
    for _ in range(200):
        row = method.draw(random, ctx, 9)["row"]
        assert row.shape == (18,)
        assert (row % 2).tolist() == [0] * 9 + [1] * 9, "one of each noise"
        for part in row.split(9):
            assert torch.bincount(values["labels"][part], minlength=10)[[2, 4, 7]].tolist() == [3, 3, 3]
        seen.append(row)
    drawn = torch.bincount(torch.cat(seen), minlength=88)
    assert int(drawn.min()) > 0, "every shared row is used"
    of_seven = drawn[values["labels"] == 7]
    assert float(of_seven.float().mean()) == pytest.approx(200 * 3 / 40)
    assert int(of_seven.max()) < 40


def test_the_distillation_has_the_authors_optimiser_whatever_the_run_has() -> None:
    job = job_of(FedFed(), training={"optimizer": "sgd", "lr": 0.5, "lr_decay": 0.3, "weight_decay": 0.1})
    distil, *_, train = job.method.phases(Clock(1, 8, 1))
    chosen = job.training_of(distil)
    assert (chosen.optimizer, chosen.lr_at(5), chosen.weight_decay) == ("adamw", 1e-3, 1e-6)
    assert (chosen.beta1, chosen.beta2) == (0.9, 0.999)
    assert job.training_of(train).optimizer == "sgd"


def test_without_distillation_it_is_fedavg_bit_for_bit() -> None:
    plain, quiet = (run(job_of(m), rounds=3).server["model"] for m in ("fedavg", FedFed(distil_rounds=0)))
    assert same(plain, quiet)


@pytest.mark.parametrize("noises", [(), (0.1, -0.1)])
def test_noises_that_mean_nothing_are_refused(noises: tuple[float, ...]) -> None:
    method = FedFed(noises=noises)
    with pytest.raises(ConfigError, match="noises"):
        method.check(job_of(method).setup)
