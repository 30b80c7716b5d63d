"""What a method is, for `fewfed methods`: what leaves a client in each phase, how it is combined, what is kept."""

from __future__ import annotations

import dataclasses
from typing import Any

from fewfed.method import Method
from fewfed.methods.registry import presets_of, registered, wrapped_field
from fewfed.phase import Clock, Phase
from fewfed.settings import describe
from fewfed.training import Training

_ROUNDS = 1000
"""Long enough that every one-off phase of a method shows in its first, a middle or its last round."""


def entry(cls: type[Method]) -> dict[str, Any]:
    """Everything about one registered method, JSON-able."""
    method = cls()
    inner = wrapped_field(cls)
    return {
        "name": cls.name,
        "family": cls.family,
        "paper": cls.paper,
        "summary": (cls.__doc__ or "").strip().splitlines()[0],
        "presets": list(presets_of(cls.name)),
        "wraps": inner is not None,
        "personal_model": bool(method.personal_model),
        "parameters": [
            {
                "name": field.name,
                "type": field.type,
                "default": field.default,
                "range": field.range,
                "help": field.help,
            }
            for field in describe(cls)
            if field.name != inner
        ],
        "phases": [_phase(phase, when) for phase, when in phases(method)],
    }


def catalogue() -> list[dict[str, Any]]:
    return [entry(cls) for cls in registered().values()]


def phases(method: Method) -> list[tuple[Phase, str]]:
    """Every phase a method has, with the rounds it belongs to."""
    clocks = [Clock(number, _ROUNDS, Training().epochs) for number in (0, 1, _ROUNDS // 2, _ROUNDS - 1)]
    seen: dict[str, tuple[Phase, list[int]]] = {}
    for position, clock in enumerate(clocks):
        for phase in method.phases(clock):
            seen.setdefault(phase.name, (phase, []))[1].append(position)
    names = {
        (0,): "first round",
        (3,): "last round",
        (0, 1, 2, 3): "every round",
        (1, 2, 3): "from the second round on",
        (2, 3): "later rounds",
    }
    return [(phase, names.get(tuple(where), "some rounds")) for phase, where in seen.values()]


def _phase(phase: Phase, when: str) -> dict[str, Any]:
    return {
        "name": phase.name,
        "when": when,
        "cohort": phase.cohort.value,
        "trains": phase.epochs > 0,
        "uploads": {name: how.value for name, how in phase.uploads.items()},
        "seen_raw": sorted(name for name, how in phase.uploads.items() if how.seen_raw),
        "state": phase.keeps_state,
        "training": dict(phase.training),
    }


def fields_of(method: Method) -> dict[str, Any]:
    """The values of a method's hyper-parameters."""
    return {
        field.name: getattr(method, field.name)
        for field in dataclasses.fields(method)
        if not isinstance(getattr(method, field.name), Method)
    }
