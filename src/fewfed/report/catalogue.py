"""What a method is, for `fewfed methods`: what leaves a client in each phase, how it is combined, what is kept."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from fewfed.method import Method
from fewfed.methods.registry import presets_of, registered, wrapped_field
from fewfed.phase import Clock, Cohort, Phase, Upload
from fewfed.settings import describe
from fewfed.training import Training

_ROUNDS = 1000
"""Rounds of the run whose phases are listed; every one of them is asked for, so that no one-off exchange is missed."""


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
    seen: dict[str, tuple[Phase, list[int]]] = {}
    for number in range(_ROUNDS):
        for phase in method.phases(Clock(number, _ROUNDS, Training().epochs)):
            seen.setdefault(phase.name, (phase, []))[1].append(number)
    return [(phase, _when(rounds)) for phase, rounds in seen.values()]


def _when(rounds: list[int]) -> str:
    first, last = rounds[0], rounds[-1]
    if rounds != list(range(first, last + 1)):
        return "some rounds"
    if first == last:
        return {0: "first round", _ROUNDS - 1: "last round"}.get(first, f"round {first + 1}")
    if first == 0:
        return "every round" if last == _ROUNDS - 1 else f"first {last + 1} rounds"
    return f"from round {first + 1} on" if last == _ROUNDS - 1 else f"rounds {first + 1} to {last + 1}"


def _phase(phase: Phase, when: str) -> dict[str, Any]:
    return {
        "name": phase.name,
        "when": when,
        "cohort": phase.cohort.value,
        "trains": phase.epochs > 0,
        "uploads": {name: _upload(upload) for name, upload in phase.uploads.items()},
        "seen_raw": sorted(name for name, upload in phase.uploads.items() if upload.combine.seen_raw),
        "state": phase.keeps_state,
        "training": dict(phase.training),
    }


def _upload(upload: Upload) -> dict[str, Any]:
    return {"combine": upload.combine.value, "role": upload.role.value, "rows_per_row": upload.rows}


def phase_text(phase: Mapping[str, Any]) -> str:
    """What leaves a client in a phase, in a line."""
    if phase["cohort"] == Cohort.UNION.value:
        return f"{phase['name']}: all raw data, in one place"
    if phase["cohort"] == Cohort.SERVER.value:
        return f"{phase['name']}: nothing (runs on the server)"
    sent = ", ".join(upload_text(name, upload) for name, upload in phase["uploads"].items()) or "nothing"
    return f"{phase['name']}: {sent}" + ("" if phase["when"] == "every round" else f", {phase['when']}")


def upload_text(name: str, upload: Mapping[str, Any]) -> str:
    """An upload in a table: its name, what it is if that is something else, and how it is combined."""
    role = "" if upload["role"] == name else f"{upload['role']}, "
    rows = f", {upload['rows_per_row']:g} a row" if upload["rows_per_row"] else ""
    return f"{name} ({role}{upload['combine']}{rows})"


def fields_of(method: Method) -> dict[str, Any]:
    """The values of a method's hyper-parameters."""
    return {
        field.name: getattr(method, field.name)
        for field in dataclasses.fields(method)
        if not isinstance(getattr(method, field.name), Method)
    }
