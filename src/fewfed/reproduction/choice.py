"""Which runs of a study are wanted: `data=har,split=qua:2,method=fedavg,flea,seed=0..2`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from fewfed.errors import ConfigError, did_you_mean
from fewfed.reproduction.coordinates import Value, canonical, is_one_of
from fewfed.reproduction.study import Planned, Study


def chosen_runs(study: Study, text: str) -> tuple[Planned, ...]:
    """The runs that fit every `axis=value,value` of the text; all where it is empty."""
    wanted = _parsed(text, study)
    for axis, values in wanted.items():
        for value in values:
            if not is_one_of(value, study.values[axis]):
                known = ", ".join(str(option) for option in study.values[axis])
                raise ConfigError(f"no cell of {study.name} has {axis}={value}: expected one of {known}")
    found = tuple(run for run in study.runs if _fits(run, wanted))
    if not found:
        raise ConfigError(f"no cell of {study.name} fits all of '{text}': 'fewfed reproduce {study.name} --list'")
    return found


def _fits(run: Planned, wanted: Mapping[str, Sequence[Value]]) -> bool:
    return all(axis in run.at and is_one_of(run.at[axis], values) for axis, values in wanted.items())


def _parsed(text: str, study: Study) -> dict[str, list[Value]]:
    """A part without its own `axis=` is one more value of the axis before it."""
    wanted: dict[str, list[Value]] = {}
    axis = ""
    for part in _parts(text, study):
        name, equals, value = part.partition("=")
        if equals and name.strip() in study.values:
            axis = name.strip()
        elif (equals and not axis) or (equals and not is_one_of(part, study.values[axis])):
            raise ConfigError(f"--cells: {did_you_mean('axis', name.strip(), study.values)}")
        else:
            value = part
        if not axis:
            raise ConfigError(f"--cells {text}: expected axis=value, as in --cells data=har,seed=0..2")
        wanted.setdefault(axis, []).extend(_expanded(value.strip()))
    return wanted


def _parts(text: str, study: Study) -> list[str]:
    """The text cut at its commas, but not at those inside a value of the study."""
    inside = [str(v) for values in study.values.values() for v in values if "," in str(v)]
    pattern = "|".join([*(re.escape(value) for value in sorted(inside, key=len, reverse=True)), "[^,]"])
    parts = re.findall(rf"(?:{pattern})+", text)
    return [part.strip() for part in parts if part.strip()]


def _expanded(text: str) -> list[Value]:
    bounds = re.fullmatch(r"(\d+)\.\.(\d+)", text)
    if bounds:
        first, last = int(bounds[1]), int(bounds[2])
        if last < first:
            raise ConfigError(f"--cells: '{text}' is an empty range: expected FIRST..LAST")
        return list(range(first, last + 1))
    return [canonical(text)]
