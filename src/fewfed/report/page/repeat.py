"""How a row of a report can be had again: the command, derived from the configuration in its folder."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shlex
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from fewfed.data.readers.options import DataOptions
from fewfed.data.sources import names as data_names
from fewfed.errors import FewfedError
from fewfed.networks import names as network_names
from fewfed.report.page.setting import Labelled
from fewfed.report.rendering import printable
from fewfed.runs.experiment import RECORDS, Experiment, resolve
from fewfed.runs.folder import RunFolder
from fewfed.spelling import spelled
from fewfed.training import Training

_FLAGS = ("data", "split", "clients", "cohort", "rounds", "metric")
"""Settings that are always said, each by the flag of its name."""
_LONGEST = 4000
_UNSAID = ("seed", "executor", "checkpoint_seconds", *RECORDS)
_PARTS: tuple[tuple[str, type[Any]], ...] = (
    ("experiment", Experiment),
    ("training", Training),
    ("data_options", DataOptions),
)


def commands(rows: Sequence[Labelled]) -> list[str]:
    """One command for all rows that it can be one for, in their order."""
    together: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        if any(_is_of_sites(run.folder) for run in row.group.runs):
            continue  # Its rows are at the sites, and only a coordinator with its keys can ask them.
        if _handed_over(row):
            continue
        config = next((detail.config for detail in row.details if detail.config), None)
        seeds = [run.seed for run in row.group.runs if run.seed is not None]
        if config is not None and seeds:
            # A configuration of another shape than ours has no command.
            with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):
                for settings in _settings(config, seeds):
                    together.setdefault(settings, []).append(str(config["method"]))
    return [_command(methods, list(settings)) for settings, methods in together.items()]


def without_command(rows: Sequence[Labelled]) -> list[str]:
    """Rows that no command has again, since a program made what they were trained with."""
    return [
        f"{row.label}: no command has it again, since its {' and its '.join(what)} came from a Python program"
        for row in rows
        if (what := _handed_over(row))
    ]


def _handed_over(row: Labelled) -> list[str]:
    """What of a run is neither a name that the command line knows nor a file: an object with a name of its own."""
    detail = next((detail for detail in row.details if detail.config), None)
    experiment = detail.config.get("experiment") if detail else None
    if detail is None or not isinstance(experiment, dict):
        return []
    data, network = str(experiment.get("data", "")), str(experiment.get("network", ""))
    # Of files it is always kept how they were read.
    is_data = data not in data_names() and not detail.split.get("reading") and bool(detail.split)
    is_network = network not in ("", "auto", *network_names()) and ".py" not in network
    return [what for what, holds in (("data", is_data), ("network", is_network)) if holds]


def _is_of_sites(folder: Path) -> bool:
    try:
        return RunFolder(folder).is_of_sites
    except (FewfedError, OSError):
        return False


def _command(methods: Sequence[str], settings: list[str]) -> str:
    return printable(shlex.join(["fewfed", "compare", *dict.fromkeys(methods), *settings]), _LONGEST)


def _settings(config: Mapping[str, Any], seeds: Sequence[int]) -> list[tuple[str, ...]]:
    """Flags and --set for all that differs from what the method has by itself; several times where seeds between were
    left out, since a command counts on from its first."""
    usual = _usual(str(config["method"]))
    found: list[str] = []
    experiment = config["experiment"]
    for name in _FLAGS:
        if experiment.get(name) not in (None, usual["experiment"].get(name)) or name in ("data", "split", "rounds"):
            found += [f"--{name}", _text(experiment[name])]
    for part, _ in _PARTS:
        for name, value in config.get(part, {}).items():
            said = part == "experiment" and name in (*_FLAGS, *_UNSAID)
            if not said and name in usual[part] and usual[part][name] != value:
                found += ["--set", f"{part}.{name}={_text(value)}"]
    for name, value in config.get("method_fields", {}).items():
        found += ["--set", f"{_own(name)}={_text(value)}"]
    for executor, options in config.get("executors", {}).items():
        for name, value in options.items():
            found += ["--set", f"{executor}.{name}={_text(value)}"]
    return [
        (*found, *(["--seed", str(low)] if low else []), "--seeds", str(number)) for low, number in _stretches(seeds)
    ]


def _stretches(seeds: Sequence[int]) -> list[tuple[int, int]]:
    """The first of seeds that follow each other, and how many these are."""
    found: list[tuple[int, int]] = []
    for seed in sorted(set(seeds)):
        if found and sum(found[-1]) == seed:
            found[-1] = (found[-1][0], found[-1][1] + 1)
        else:
            found.append((seed, 1))
    return found


@lru_cache(maxsize=1000)
def _usual(spec: str) -> dict[str, dict[str, Any]]:
    """What a run of a method has where nothing is set. A method in a file is not run to ask it."""
    made: dict[str, Any] = {part: cls() for part, cls in _PARTS}
    if not spelled(spec).files:
        try:
            resolved = resolve(spec, {})
            made = {"experiment": resolved.experiment, "training": resolved.training, "data_options": resolved.options}
        except FewfedError:  # A method that this version does not know: everything is said.
            pass
    return {part: json.loads(json.dumps(dataclasses.asdict(values))) for part, values in made.items()}


def _own(name: str) -> str:
    """A field of the method itself, which could also be one of training, is named with it."""
    return f"method.{name}" if not name.startswith("inner.") else name


def _text(value: Any) -> str:
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    if isinstance(value, (list, tuple)):
        return ",".join(str(each) for each in value)
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
