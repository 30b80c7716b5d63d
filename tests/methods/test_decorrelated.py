"""Distance correlation at the cut as a term of any method that shares features there."""

from __future__ import annotations

import pytest
import torch
from packets import sent

from fewfed import tree
from fewfed.errors import ConfigError
from fewfed.losses import distance_correlation
from fewfed.method import Batch, Context
from fewfed.methods.decorrelated import Decorrelated
from fewfed.methods.flea import FLea
from fewfed.methods.registry import choose
from fewfed.phase import Clock
from support import context, digits, digits_federation, digits_network, job_of


def training(method: Decorrelated) -> tuple[Context, Batch]:
    phase = method.phases(Clock(0, 2, 1))[0]
    rows = digits()[0].rows(torch.arange(16))
    ctx = context(digits_network(), rows, phase=phase, state={"inner": {}, "own": {}})
    return ctx, Batch(rows.x, rows.y, phase.does.draw(ctx.plan.random(0, "train", 0), ctx, 16))


@pytest.mark.parametrize(("cut", "stop"), [("", 1), ("conv2", 2), ("1", 1)])
def test_the_term_is_the_distance_correlation_at_the_cut(cut: str, stop: int) -> None:
    method = Decorrelated(FLea(decorrelate=0.0), cut=cut, weight=2.0)
    ctx, batch = training(method)
    work = ctx.phase.does.begin(ctx)
    terms = ctx.phase.does.loss(work, ctx, batch)
    features = ctx.net.apply(ctx.net.model(), batch.x, stop=stop)
    assert terms["decorrelated"].item() == pytest.approx(2 * distance_correlation(batch.x, features).item(), rel=1e-6)
    assert terms.keys() == {*FLea(decorrelate=0.0).loss(ctx.net.model(), ctx, batch), "decorrelated"}


def test_around_a_method_without_its_own_term_it_is_that_term() -> None:
    """FLea has it built in: both ways give the same gradients, and the running statistics are touched once."""
    results = []
    for method in (Decorrelated(FLea(decorrelate=0.0), weight=3.0), FLea(decorrelate=3.0)):
        job = job_of(method, digits_federation(3, 16))
        done = sent(job, rounds=2)[1]
        results.append(method.predictor(done.server, {}))
    for part in ("params", "buffers"):
        for name, value in results[0][part].items():
            torch.testing.assert_close(value, results[1][part][name], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("spec", "values", "stop"),
    [
        ("decorrelated(flea)", {"inner.cut": "conv2"}, 2),
        ("decorrelated(flea)", {}, 1),
        ("decorrelated(ccvr(fedavg))", {}, digits_network().penultimate),
        ("decorrelated(ccvr(fedavg))", {"inner.cut": "conv1"}, 1),
        ("decorrelated(noised(grouped(flea)))", {"inner.inner.inner.cut": "conv2"}, 2),
    ],
)
def test_the_cut_is_where_the_inner_method_shares(spec: str, values: dict[str, str], stop: int) -> None:
    method = choose(spec, values).method
    assert isinstance(method, Decorrelated)
    assert method.position(job_of(method).setup) == stop


def test_it_lowers_what_features_tell_of_inputs() -> None:
    found = {}
    for weight in (0.0, 10.0):
        method = Decorrelated(FLea(decorrelate=0.0), weight=weight)
        job = job_of(method, digits_federation(3, 40), training={"epochs": 5, "lr": 0.01})
        model = method.predictor(sent(job, rounds=3)[1].server, {})
        x = digits()[1].x[:64]
        found[weight] = float(distance_correlation(x, job.net.apply(model, x, stop=1, train=False)))
    assert found[10.0] < found[0.0] - 0.03


def test_a_pass_of_its_own_leaves_running_statistics_alone() -> None:
    ctx, batch = training(Decorrelated(FLea(), weight=1.0))
    work = ctx.phase.does.begin(ctx)
    plain = tree.clone(work)
    ctx.phase.does.loss(work, ctx, batch)
    FLea().loss(plain, ctx, batch)
    assert all(torch.equal(work["buffers"][name], plain["buffers"][name]) for name in work["buffers"])


@pytest.mark.parametrize(
    ("spec", "values", "reason"),
    [
        ("decorrelated(fedavg)", {}, "clients of 'fedavg' send none"),
        ("decorrelated(flea)", {"inner.share": 0.0}, "clients of 'flea' send none"),
        ("decorrelated(flea)", {"inner.cut": "input"}, "send inputs, which no training changes"),
        ("decorrelated(ccvr:gaussian(fedavg))", {}, "send none"),
        ("decorrelated(flea)", {"cut": "input"}, "before the first stage"),
        ("decorrelated(flea)", {"cut": "conv7"}, "did you mean"),
    ],
)
def test_what_it_can_do_nothing_for_is_refused(spec: str, values: dict[str, object], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        job_of(choose(spec, values).method, rows_public=True).check()
