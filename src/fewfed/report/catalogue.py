"""What a method is, for `fewfed methods`: what leaves a client in each phase, how it is combined, what is kept."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from fewfed.errors import ConfigError, FewfedError, told
from fewfed.method import Method
from fewfed.methods.registry import choose, class_of, label_of, presets_of, registered, wrapped_field
from fewfed.phase import Clock, Cohort, Phase, Upload
from fewfed.settings import describe
from fewfed.spelling import spelled
from fewfed.training import Training

_ROUNDS = 1000
"""Rounds of the run whose phases are listed; every one of them is asked for, so that no one-off exchange is missed."""


def entry(cls: type[Method]) -> dict[str, Any]:
    """Everything about one registered method, JSON-able."""
    return _entry(cls(), cls.name, presets_of(cls.name), [cls()])


def entry_of(spec: str) -> dict[str, Any]:
    """The same about any method that a user can name: a preset, a file, one around another."""
    written, method = spelled(spec), choose(spec).method
    presets = ("paper", *class_of(written.name).presets) if written.is_file else presets_of(written.name)
    layers = method.layers if written.inner else (method,)
    return _entry(method, label_of(spec), presets, layers)


def _entry(method: Method, name: str, presets: Sequence[str], layers: Sequence[Method]) -> dict[str, Any]:
    cls = type(method)
    return {
        "name": name,
        "family": cls.family,
        "paper": cls.paper,
        "summary": next(iter((cls.__doc__ or "").strip().splitlines()), ""),
        "presets": list(presets),
        "wraps": wrapped_field(cls) is not None and len(layers) == 1,
        "personal_model": bool(method.personal_model),
        "parameters": [
            parameter for depth, layer in enumerate(layers) for parameter in _parameters(layer, "inner." * depth)
        ],
        "phases": [_phase(phase, when) for phase, when in phases(method)],
    }


def _parameters(method: Method, prefix: str) -> list[dict[str, Any]]:
    """The fields of one method, with the values it has; `prefix` is what stands before them for what is wrapped."""
    inner = wrapped_field(type(method))
    return [
        {
            "name": prefix + field.name,
            "type": field.type,
            "default": getattr(method, field.name),
            "range": field.range,
            "help": field.help,
        }
        for field in describe(type(method))
        if field.name != inner
    ]


def catalogue() -> list[dict[str, Any]]:
    return [entry(cls) for cls in registered().values()]


def phases(method: Method) -> list[tuple[Phase, str]]:
    """Every phase a method has, with the rounds it belongs to."""
    seen: dict[str, tuple[Phase, list[int]]] = {}
    for number in range(_ROUNDS):
        for phase in _asked(method, Clock(number, _ROUNDS, Training().epochs)):
            seen.setdefault(phase.name, (phase, []))[1].append(number)
    return [(phase, _when(rounds)) for phase, rounds in seen.values()]


def _asked(method: Method, clock: Clock) -> tuple[Phase, ...]:
    try:
        return tuple(method.phases(clock))
    except FewfedError:
        raise
    except Exception as error:  # A class of the user's may do anything.
        raise ConfigError(f"method '{method.label}' cannot say its phases: {told(error)}", key="method") from error


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


def phase_texts(method: Method) -> list[str]:
    """What leaves a client, a line a phase."""
    return [phase_text(_phase(phase, when)) for phase, when in phases(method)]


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
