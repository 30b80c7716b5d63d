"""Every method runs on a network in one piece, or refuses it because it really looks inside networks."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from conformance_cases import EARLY, every_method
from torch import Tensor, nn

from fewfed.engine.asking import check_fit
from fewfed.engine.job import Job
from fewfed.errors import ConfigError
from fewfed.methods.registry import choose
from fewfed.network import Network
from support import digits_federation, job_of, run

READS_THE_LAST_STAGE = {"fedrs", "flute"}
"""Methods that need to know which weights are the classifier's, wherever they cut."""


class Own(nn.Module):
    """Children that are not applied one after another."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.last = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Any:
        features = torch.relu(self.norm(self.conv(x)) + x)
        return self.last(nn.functional.max_pool2d(features, 2).flatten(1))


class Watched(Network):
    """Notices who looks between stages."""

    seen: bool = False

    def apply(self, *given: Any, start: int = 0, stop: int | None = None, **named: Any) -> Any:
        type(self).seen |= bool(start) or stop is not None
        return super().apply(*given, start=start, stop=stop, **named)

    def tapped(self, tap: Any) -> Any:
        type(self).seen = True
        return super().tapped(tap)


def job_with(spec: str, net: Network) -> Job:
    job = job_of(spec, digits_federation(4, 20), net=net)
    return dataclasses.replace(job, method=choose(spec, EARLY.get(spec, {})).method)


def refusal(job: Job) -> str:
    try:
        check_fit(job)
    except ConfigError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("spec", every_method())
def test_a_method_runs_on_one_piece_or_refuses_it_for_a_reason_that_is_true(spec: str) -> None:
    torch.manual_seed(0)
    whole = Network.of(Own(), example=torch.rand(4, 1, 8, 8))
    assert whole.one_piece
    job = job_with(spec, whole)
    refused = refusal(job)
    if job.method.no_batchnorm:
        assert "BatchNorm" in refused
    elif refused:
        assert "is in one piece" in refused
        assert "'stages'" in refused
        stages = {
            "conv": nn.Conv2d(1, 4, 3),
            "norm": nn.Sequential(nn.BatchNorm2d(4), nn.ReLU()),
            "flat": nn.Flatten(),
            "last": nn.Linear(144, 10),
        }
        job = job_with(spec, Watched("watched", stages))
        check_fit(job)  # Where it may be cut is found out by looking between stages, once: that does not count.
        Watched.seen = False
        run(job, rounds=2, cohort=3)
        assert Watched.seen or spec in READS_THE_LAST_STAGE
    else:
        ended = run(job, rounds=2, cohort=3)
        assert not any(view.metrics["failed"] for view in ended.views)


def test_sharing_inputs_needs_no_stages() -> None:
    whole = Network.of(Own(), example=torch.rand(4, 1, 8, 8))
    job = dataclasses.replace(job_with("flea", whole), method=choose("flea", {"cut": "input"}).method)
    assert "rows_public = true" in refusal(job)
    job = dataclasses.replace(job, rows_public=True)
    assert not refusal(job)
    assert not any(view.metrics["failed"] for view in run(job, rounds=2, cohort=3).views)
