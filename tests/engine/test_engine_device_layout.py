"""How kernels of convolutions lie on a device in strict float32: by timing, in long runs."""

from __future__ import annotations

from functools import partialmethod
from typing import Any

import pytest
import torch

from fewfed.engine.device import executor as module
from fewfed.engine.device.executor import Device
from fewfed.engine.device.options import DeviceOptions
from fewfed.errors import ConfigError
from fewfed.executors import refuse_unused
from fewfed.experiment import Experiment
from support import EXACT, digits_federation, gap, in_double, job_of, run

PLAIN_SECONDS = 0.002


def timed(device: Device, wrapped: Any, channels_last: float, plan: str, *rest: Any) -> float:
    """What a trial is told: graphs win, and channels last take as long as the test says; below 0, they fail."""
    wrapped(device, plan, *rest)
    if plan == "stacked":
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
    executor = Device(job, DeviceOptions(device="cpu", width=4, **options))
    recorder = run(job, rounds=2, cohort=4, executor=executor)
    return gap(recorder.server, expected), [event for event in recorder.events if not event.startswith("plan ")]


@pytest.mark.parametrize(
    ("channels_last", "said"),
    [
        (0.001, "layout 'channels_last': 1.000 ms a client step channels last, 2.000 ms plain"),
        (0.003, "layout 'plain': 3.000 ms a client step channels last, 2.000 ms plain"),
        (-1.0, "layout 'plain': no algorithm for this order"),
    ],
    ids=["faster", "slower", "failing"],
)
def test_a_long_run_keeps_the_faster_order(monkeypatch: pytest.MonkeyPatch, channels_last: float, said: str) -> None:
    distance, events = distance_and_events(monkeypatch, channels_last)
    assert distance < EXACT
    assert events == [said]


def test_a_short_run_is_not_kept_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    (said,) = distance_and_events(monkeypatch, 0.001, worth=1e9)[1]
    assert said.startswith("layout 'plain': without a trial")


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
        ("device_plan", "graphs"),
        ("streams", 4),
        ("compiled", "parts"),
        ("device_layout", "plain"),
        ("kernels", False),
        ("stack", 8),
    ],
)
def test_settings_of_a_device_are_refused_by_other_executors(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"{name} = {value} needs executor 'cuda', not 'workers'"):
        refuse_unused(Experiment(executor="workers", **{name: value}))  # type: ignore[arg-type]


def test_arithmetic_of_a_device_is_not_quietly_dropped_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="precision = bf16 needs a GPU, which this run would not use"):
        refuse_unused(Experiment(precision="bf16"))
    refuse_unused(Experiment(streams=4))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    refuse_unused(Experiment(precision="bf16"))
    with pytest.raises(ConfigError, match="precision = bf16 needs a GPU"):
        refuse_unused(Experiment(precision="bf16", cpu_stack=4))
