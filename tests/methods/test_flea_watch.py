"""The correlation that FLea's Fig. 9(b) shows: over the last local epoch, plain and unbiased, by plain Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fewfed import tree
from fewfed.engine.executors.cuda.executor import Device
from fewfed.engine.executors.cuda.options import Options
from fewfed.losses import unbiased_distance_correlation
from fewfed.method import Batch, Context
from fewfed.methods.parts import cuts
from fewfed.methods.registry import choose
from fewfed.network import Network
from fewfed.phase import Clock, Role
from fewfed.tree import Tree
from losses.distance_correlation import correlation, unbiased_squared_correlation
from support import digits_federation, in_double, job_of, run, same

SIZES = [12, 20, 14]  # No batch of eight leaves a rest of fewer than four rows.
LAST, UNBIASED = "correlation_last_epoch", "unbiased_last_epoch"


# The floors of the released code change R by a thousandth at most here.
@pytest.mark.parametrize(
    ("spec", "within"), [("flea", 1e-8), pytest.param("flea:official", 2e-3, marks=pytest.mark.thorough)]
)
def test_means_over_the_batches_of_the_last_epoch_are_logged(
    spec: str, within: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = choose(spec, {"watch": True})
    seen: dict[tuple[int, int], list[tuple[Any, Any]]] = {}
    usual = type(chosen.method).loss

    def noting(self: Any, work: Tree, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        twin = tree.map(lambda leaf: leaf.detach().clone(), work)
        features = ctx.net.apply(twin, batch.x, stop=1)
        pair = batch.x.flatten(1).tolist(), features.flatten(1).tolist()
        seen.setdefault((ctx.clock.round, ctx.client), []).append(pair)
        return usual(self, work, ctx, batch)

    job = in_double(
        job_of(chosen.method, digits_federation(3, SIZES), training={**chosen.training, "epochs": 3, "lr": 1e-2})
    )
    with monkeypatch.context() as patched:
        patched.setattr(type(chosen.method), "loss", noting)
        ended = run(job, rounds=2, cohort=2)
    for round, epochs in enumerate((9 if spec == "flea:official" else 3, 3)):  # Only the second has a buffer.
        turns = [steps for (at, _), steps in seen.items() if at == round]
        last = [pair for steps in turns for pair in steps[-(len(steps) // epochs) :]]
        assert (len(turns), len(last) * epochs) == (2, sum(map(len, turns)))
        terms = ended.views[round].phases[0].record.terms
        assert terms[LAST] == pytest.approx(np.mean([correlation(*pair) for pair in last]), abs=within)
        assert terms[UNBIASED] == pytest.approx(np.mean([unbiased_squared_correlation(*p) for p in last]), abs=1e-6)
        every = np.mean([correlation(*pair) for steps in turns for pair in steps])
        assert terms["correlation"] == pytest.approx(every, abs=within)
        everywhere = np.mean([unbiased_squared_correlation(*pair) for steps in turns for pair in steps])
        assert abs(everywhere - terms[UNBIASED]) > 1e-4, "the last epoch is another number than all"


def test_watching_changes_nothing_and_is_the_same_in_a_stack() -> None:
    job = in_double(job_of(choose("flea", {"watch": True}).method, digits_federation(6, 12)))
    plain = run(in_double(job_of("flea", digits_federation(6, 12))), rounds=2, cohort=4)
    one_by_one = run(job, rounds=2, cohort=4)
    executor = Device(job, options=Options(device="cpu", mode="stacked", stack=4))
    stacked = run(job, rounds=2, cohort=4, executor=executor)
    executor.close()
    assert same(plain.server, one_by_one.server)
    assert stacked.events == []
    for view, other, without in zip(one_by_one.views, stacked.views, plain.views, strict=True):
        terms, theirs = view.phases[0].record.terms, other.phases[0].record.terms
        assert terms.keys() == theirs.keys() == {*without.phases[0].record.terms, LAST, UNBIASED}
        assert all(terms[name] == pytest.approx(theirs[name], abs=1e-6) for name in terms), (
            "a device adds terms up in single precision"
        )


def test_the_unbiased_value_is_a_number_wherever_the_plain_one_is() -> None:
    """Of independent rows in many dimensions the plain value is near 1, the unbiased one near 0."""
    draw = np.random.default_rng(0)
    x, f = (torch.tensor(draw.normal(size=(32, size))) for size in (384, 1000))
    assert correlation(x.tolist(), f.tolist()) > 0.95
    found = float(unbiased_distance_correlation(x, f))
    assert found == pytest.approx(unbiased_squared_correlation(x.tolist(), f.tolist()), abs=1e-9)
    assert abs(found) < 0.1
    assert float(unbiased_distance_correlation(x, torch.ones(32, 5))) == 0
    assert float(unbiased_distance_correlation(x[:3], f[:3])) == 0
    few = job_of(choose("flea", {"watch": True}).method, digits_federation(4, [1, 2, 3, 4]))
    ended = run(few, rounds=2, cohort=4)
    assert all(view.metrics["failed"] == [] for view in ended.views)


def test_raw_rows_are_shared_only_where_the_cut_says_so_and_are_declared_as_inputs() -> None:
    federation = digits_federation(4, 20)
    job = job_of(choose("flea", {"cut": "input", "share": 0.2}).method, federation, rows_public=True)
    ended = run(job, rounds=2, cohort=2)
    share = ended.views[0].phases[1]
    assert share.phase.uploads["features"].role is Role.INPUTS
    rows = torch.cat([federation.examples(client).x for client in ended.views[0].cohort])
    assert len(share.combined.values["features"]) == 2 * 4
    assert all(any(torch.equal(sent, own) for own in rows) for sent in share.combined.values["features"])
    assert choose("flea").method.phases(Clock(0, 2, 1))[1].uploads["features"].role is Role.FEATURES
    named = Network("own", {"input": nn.Linear(64, 8), "head": nn.Linear(8, 10)}, cut="input")
    assert cuts.position(job_of("fedavg", federation, net=named).setup, "") == 1, (
        "a stage of that name is the network's own choice"
    )
