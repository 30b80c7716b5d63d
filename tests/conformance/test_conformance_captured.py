"""Which methods' steps an accelerator can replay, and why the others cannot. See README.md in this folder."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from conformance_cases import every_method, every_spec, job_for
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fewfed import tree
from fewfed.conformance.playing import play
from fewfed.conformance.reference import job_of, training_for
from fewfed.engine.events import Event
from fewfed.engine.executors.cuda.executor import Device
from fewfed.engine.executors.cuda.feed import Feed
from fewfed.engine.executors.cuda.lane import Lane
from fewfed.engine.executors.cuda.options import Options
from fewfed.engine.job import Job
from fewfed.method import Batch, Context
from fewfed.methods.fedavg import FedAvg
from fewfed.tree import Tree

pytestmark = pytest.mark.timeout(120)

STEP_BY_STEP: Mapping[str, str] = {
    "fedfa-anchor": "its loss uses ctx.steps",
    "fedfa-anchor:released": "its loss uses ctx.steps",
    "fedharmo:released": "moments of its optimiser stay from round to round",
}
"""Methods that cannot be captured, with the reason the run gives."""

ONE_BY_ONE: Mapping[str, str] = {**STEP_BY_STEP, "flea:official": "its batches differ in size"}
"""Methods that cannot be stacked."""

_WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "_unique2", "repeat_interleave")


@dataclass(frozen=True)
class Looking(FedAvg):
    """A loss that looks at its own value."""

    def loss(self, work: Tree, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        terms = super().loss(work, ctx, batch)
        return {"task": terms["task"] * (2 if float(terms["task"].detach()) > 1e9 else 1)}


class NoLookingAtValues(TorchDispatchMode):
    """Refuses operations for which a host has to wait for its device: a captured graph cannot have them."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        by_mask = name in ("index", "index_put", "index_put_") and any(
            isinstance(index, torch.Tensor) and index.dtype == torch.bool for index in args[1] if index is not None
        )
        if name in _WAITS or by_mask:
            raise RuntimeError(f"the step looks at values: {name}")
        return func(*args, **(kwargs or {}))


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> None:
    step = Lane._step

    def watching(lane: Lane, feed: Feed) -> None:
        with contextlib.nullcontext() if lane.width > 1 else NoLookingAtValues():  # A stack refuses that by itself.
            step(lane, feed)

    monkeypatch.setattr(Lane, "_step", watching)


def events(job: Job, mode: str) -> list[str]:
    device = Device(job, options=Options(device="cpu", mode=mode, stack=4, streams=1))  # type: ignore[arg-type]
    played = play(job, device, rounds=2, evaluate_every=9)
    assert all(metrics["failed"] == [] for metrics in played.metrics)
    assert all(bool(torch.isfinite(leaf).all()) for _, leaf in tree.leaves(played.last.server))
    return [str(Event.from_json(event)) for metrics in played.metrics for event in metrics["events"]]


@pytest.mark.thorough  # That every method's recorded steps agree with the reference is in test_engine_device.py.
@pytest.mark.usefixtures("watched")
@pytest.mark.parametrize("spec", every_spec())
def test_a_step_can_be_replayed_or_the_reason_is_known(spec: str) -> None:
    _check_replay(spec, "graphs", STEP_BY_STEP)


@pytest.mark.thorough
@pytest.mark.usefixtures("watched")
@pytest.mark.parametrize("spec", every_method())
def test_a_stack_of_steps_can_be_replayed_or_the_reason_is_known(spec: str) -> None:
    """Presets that only change numbers make the same step: for a stack, which takes longer to try, one is enough."""
    _check_replay(spec, "stacked", ONE_BY_ONE)


def _check_replay(spec: str, mode: str, known: Mapping[str, str]) -> None:
    said = events(job_for(spec), mode)
    reason = known.get(spec)
    if reason is None:
        assert said == []
    else:
        assert said
        assert all("runs without recorded steps" in event and reason in event for event in said)


@pytest.mark.usefixtures("watched")
@pytest.mark.parametrize("mode", ["graphs", "stacked"])
def test_a_step_that_looks_at_values_would_be_noticed(mode: str) -> None:
    (said,) = events(job_of(Looking(), training_for("fedavg")), mode)
    assert said.startswith("phase 'train' runs without recorded steps: ")
