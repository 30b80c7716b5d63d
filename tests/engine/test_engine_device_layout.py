"""How kernels of convolutions lie on a device in strict float32: by timing, in long runs."""

from __future__ import annotations

from functools import partialmethod
from typing import Any

import pytest
import torch

from fewfed.engine.executors.cuda import executor as module
from fewfed.engine.executors.cuda.executor import Device
from fewfed.engine.executors.cuda.options import Options
from fewfed.errors import ConfigError
from fewfed.runs.executors import refuse_unused
from fewfed.runs.experiment import resolve
from support import EXACT, digits_federation, gap, in_double, job_of, run

PLAIN_SECONDS = 0.002


def timed(device: Device, wrapped: Any, channels_last: float, mode: str, *rest: Any) -> float:
    """What a trial is told: graphs win, and channels last take as long as the test says; below 0, they fail."""
    wrapped(device, mode, *rest)
    if mode == "stacked":
        return 1.0
    if not device._lanes.precision.channels_last:
        return PLAIN_SECONDS
    if channels_last < 0:
        raise RuntimeError("no algorithm for this order")
    return channels_last


def distance_and_events(
    monkeypatch: pytest.MonkeyPatch, channels_last: float, *, worth: float = 0.0, **options: Any
) -> tuple[float, list[str]]:
    monkeypatch.setattr(module, "_WORTH_TRYING", worth)
    monkeypatch.setattr(Device, "_timed", partialmethod(timed, Device._timed, channels_last))
    training = {"optimizer": "sgd", "lr": 0.02, "epochs": 1, "batch": 8}
    job = in_double(job_of("fedavg", digits_federation(6, 12), training=training))
    expected = run(job, rounds=2, cohort=4).server
    executor = Device(job, options=Options(device="cpu", stack=4, **options))
    recorder = run(job, rounds=2, cohort=4, executor=executor)
    return gap(recorder.server, expected), [event for event in recorder.events if not event.startswith("mode: ")]


@pytest.mark.parametrize(
    ("channels_last", "said"),
    [
        (0.001, "layout: channels_last, 1.000 ms a client step channels last, 2.000 ms plain"),
        (0.003, "layout: plain, 3.000 ms a client step channels last, 2.000 ms plain"),
        (-1.0, "layout: plain, no algorithm for this order"),
    ],
    ids=["faster", "slower", "failing"],
)
def test_a_long_run_keeps_the_faster_order(monkeypatch: pytest.MonkeyPatch, channels_last: float, said: str) -> None:
    distance, events = distance_and_events(monkeypatch, channels_last)
    assert distance < EXACT
    assert events == [said]


def test_a_short_run_is_not_kept_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    (said,) = distance_and_events(monkeypatch, 0.001, worth=1e9)[1]
    assert said.startswith("layout: plain, without a trial")


@pytest.mark.parametrize("layout", ["plain", "channels_last"])
def test_the_order_can_be_chosen_by_hand(monkeypatch: pytest.MonkeyPatch, layout: str) -> None:
    distance, events = distance_and_events(monkeypatch, 0.001, layout=layout)
    assert distance < EXACT
    assert events == []


def test_a_network_without_kernels_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.layout, "has_kernels", lambda params: False)
    assert distance_and_events(monkeypatch, 0.001)[1] == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("precision", "tf32"),
        ("mode", "graphs"),
        ("streams", 4),
        ("compiled", "parts"),
        ("layout", "plain"),
        ("kernels", False),
        ("stack", 8),
    ],
)
def test_options_of_a_device_are_refused_by_other_executors(name: str, value: object) -> None:
    resolved = resolve("fedavg", {"executor": "workers", f"cuda.{name}": value})
    with pytest.raises(ConfigError, match=f"cuda.{name} = {value} needs executor 'cuda', not 'workers'"):
        refuse_unused(resolved, cohort=4)


def test_arithmetic_of_a_device_is_not_quietly_dropped_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**given: object) -> None:
        refuse_unused(resolve("fedavg", {name.replace("_", "."): value for name, value in given.items()}), cohort=4)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"cuda\.precision = bf16 needs executor 'cuda', which found no CUDA device"):
        refuse(cuda_precision="bf16")
    refuse(cuda_streams=4)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    refuse(cuda_precision="bf16")
    with pytest.raises(ConfigError, match=r"cuda\.precision = bf16 needs .* which this run would not use"):
        refuse(cuda_precision="bf16", workers_stack=4)
