"""Where a method declares settings with which it is FedAvg, it is FedAvg, bit for bit."""

from __future__ import annotations

import pytest
from conformance_cases import SIZES, Played, job_for, job_of, play, training_for

from engine.exact import differences
from fewfed.method import Method
from fewfed.methods.fedavg import FedAvg
from fewfed.methods.registry import choose, presets_of, registered, wrapped_field
from fewfed.tree import Tree


def declared() -> list[str]:
    """Methods and released variants with neutral settings. Presets are left out: they change more than those undo."""
    found = []
    for name in registered():
        plain = choose(name).method
        specs = [name, *(f"{name}:{preset}" for preset in presets_of(name)[1:] if preset not in plain.presets)]
        found += [spec for spec in specs if choose(spec).method.neutral is not None]
    return found


@pytest.mark.parametrize("spec", declared())
def test_neutral_settings_leave_fedavg(spec: str) -> None:
    method = choose(spec).method
    neutral = play(job_for(spec, method.neutral))
    plain = play(job_of(without_wrapper(method), training_for(spec)))
    assert [differences(a, b) for a, b in zip(predictors(neutral), predictors(plain), strict=True)] == [[]] * len(SIZES)


def without_wrapper(method: Method) -> Method:
    """What a neutral wrapper leaves as it was; FedAvg for everything that wraps nothing."""
    inside = wrapped_field(type(method))
    wrapped: Method = getattr(method, inside) if inside else FedAvg()
    return wrapped


def predictors(played: Played) -> list[Tree]:
    """The model that predicts for each client."""
    method, last = played.job.method, played.last
    fresh = method.client_init(played.job.setup)
    return [method.predictor(last.server, last.states.get(client, fresh)) for client in range(len(SIZES))]
