"""Rationed: who receives which rows, with how many bits, and what of it is counted."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch

from fewfed import tree
from fewfed.diagnostics.exposure import Exposure
from fewfed.engine.job import Job
from fewfed.engine.loop import RoundView
from fewfed.engine.rehearsal import rehearse
from fewfed.errors import ConfigError
from fewfed.method import Combined
from fewfed.methods.parts.codes import decode
from fewfed.methods.registry import choose
from fewfed.phase import Clock
from fewfed.tree import Tree
from support import digits_federation, job_of, run, same

CLOCK = Clock(5, 10, 2)


def job_with(spec: str, values: dict[str, Any]) -> Job:
    return job_of(choose(spec, values).method, digits_federation(8, 40))


def received(job: Job, server: Tree, client: int) -> Tree:
    found: Tree = job.method.phases(CLOCK)[0].does.personal(server, client)["ration"]
    return found


@pytest.mark.parametrize(("part", "expected"), [(0.5, 6), (1.0, 12), (2.0, 24), (math.inf, 36)])
def test_a_client_receives_so_many_rows_of_every_class_as_many(part: float, expected: int) -> None:
    """Three clients send four rows each in each of three rounds."""
    job = job_with("rationed(flea)", {"part": part, "bits": 0, "inner.history": 3})
    assert job.method.inner.share == 0.1  # type: ignore[attr-defined]
    server = run(job, rounds=3).server
    if math.isinf(part):
        assert job.method.phases(CLOCK)[0].does.personal(server, 0) == {}
        assert len(job.method.phases(CLOCK)[0].does.broadcast(server)["labels"]) == expected
        return
    buffer = {row.numpy().tobytes(): int(y) for row, y in zip(server["inner"]["features"], server["inner"]["labels"],
                                                              strict=True)}  # fmt: skip
    for client in range(3):
        got = received(job, server, client)
        assert len(got["labels"]) == expected
        assert [buffer[row.numpy().tobytes()] for row in got["features"]] == got["labels"].tolist()
        held, taken = Counter(server["inner"]["labels"].tolist()), Counter(got["labels"].tolist())
        most = max(taken.values())
        assert all(taken[label] >= min(most - 1, held[label]) for label in held)
    rations = [received(job, server, client)["features"] for client in range(3)]
    assert part >= 3 or not torch.equal(rations[0], rations[1]), "each has its own"


def test_bytes_down_are_those_of_the_model_and_of_codes() -> None:
    """Of round 2: the model twice, and for each row a byte a number, two numbers for its steps and its label."""
    job = job_with("rationed(flea)", {"part": 0.5})
    done = run(job, rounds=2)
    numbers = done.server["inner"]["features"][0].numel()
    row = numbers + 4 + 4 + 8
    model = tree.nbytes(done.server["inner"]["model"])
    assert done.metrics[1]["bytes"]["down_if_sent_every_time"] == 3 * (2 * model + 6 * row)
    whole = run(job_with("flea", {}), rounds=2).metrics[1]["bytes"]["down_if_sent_every_time"]
    assert whole == 3 * (2 * model + 12 * (4 * numbers + 8))


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_what_training_sees_is_what_was_sent_to_half_a_step(bits: int) -> None:
    job = job_with("rationed(flea)", {"bits": bits})
    server = run(job, rounds=1).server
    got, features = received(job, server, 0), server["inner"]["features"]
    rows = decode(got["features"], bits)
    nearest = torch.stack([(features - row).abs().flatten(1).amax(1).min() for row in rows])
    assert bool((nearest <= 0.51 * got["features"]["step"]).all())


@pytest.mark.parametrize("spec", ["flea", "grouped(flea)", "feddata", "fedmix"])
def test_all_rows_as_they_are_is_what_is_inside_bit_for_bit(spec: str) -> None:
    plain, ours = (
        run(job_with(each, values), rounds=3)
        for each, values in ((spec, {}), (f"rationed({spec})", {"part": math.inf, "bits": 0}))
    )
    assert same(plain.server, ours.server["inner"])
    assert [one["bytes"] for one in plain.metrics] == [one["bytes"] for one in ours.metrics]


@pytest.mark.parametrize("spec", ["rationed(flea)", "rationed(feddata)", "rationed(fedmix)", "rationed(fedbr)"])
def test_rows_of_any_kind_can_be_rationed(spec: str) -> None:
    values = {"part": 0.3, **({"inner.group": 3} if "fedbr" in spec or "fedmix" in spec else {})}
    done = run(job_with(spec, values), rounds=2)
    assert not any(metrics["failed"] for metrics in done.metrics)
    assert done.metrics[1]["bytes"]["down"] > 0


def test_where_nothing_came_the_ration_is_that_of_the_last_time() -> None:
    method = choose("rationed(flea)", {"inner.history": 3}).method
    job = job_of(method, digits_federation(8, 40))
    server = run(job, rounds=1).server
    share = method.phases(CLOCK)[1]
    nothing = {name: server["inner"][name][:0] for name in ("features", "labels")}
    after = share.does.absorb(server, Combined(nothing, (0,), (1.0,)))
    assert len(after["own"]["came"]) == len(server["own"]["came"]) == 12
    assert len(received(job, after, 0)["labels"]) == 12


def test_a_site_knows_beforehand_what_it_may_receive() -> None:
    forms = rehearse(job_with("rationed(flea)", {}), rounds=3).forms["train"]
    assert any("personal/ration/features/codes" in form for form in forms)
    assert not any("shared/features" in form for form in forms)


def test_exposure_says_that_it_cannot_follow_rows_to_single_clients() -> None:
    job = job_with("rationed(flea)", {})
    with pytest.raises(ConfigError, match="hands rows to single clients"):
        run(job, rounds=2, observers=[Exposure()])
    views: list[RoundView] = run(job_with("flea", {}), rounds=2, observers=[Exposure()]).views
    assert views[-1].metrics["exposure"] > 0
