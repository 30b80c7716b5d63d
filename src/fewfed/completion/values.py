"""Names that can be completed: of methods, data sets, networks, executors, and of settings that have few values."""

from __future__ import annotations

import typing
from collections.abc import Mapping

from fewfed import networks
from fewfed.data import sources
from fewfed.data.readers.options import DataOptions
from fewfed.engine.executors.registry import plugins
from fewfed.methods.registry import presets_of, registered
from fewfed.metric import METRICS
from fewfed.privacy.sharing import Share
from fewfed.runs.experiment import Experiment
from fewfed.runs.question import JUDGES
from fewfed.tracking.registry import TRACKERS
from fewfed.training import Training

KINDS: Mapping[str, str] = {
    "method": "methods",
    "methods": "methods",
    "methods.name": "methods",
    "diagnose.method": "methods",
    "data": "data",
    "data get.name": "sets",
    "network": "networks",
    "executor": "executors",
    "metric": "metrics",
    "split": "splits",
    "shell": "shells",
    "track": "trackers",
    "share": "levels",
    "judge": "judges",
    "start_from": "files",
    "policy": "files",
    "test_data": "files",
}
"""The kind of a parameter's value by the parameter's name (or `command.name`), where its type does not tell."""

WITH_FILES = frozenset({"methods", "data", "networks"})
"""Kinds whose values may also be files of the user's own."""

SHELLS = ("bash", "fish", "zsh")
_SPLITS = ("iid", "qua:", "dir:", "dirm:", "exact:", "size:", "site", "subject", "file:")


def values() -> dict[str, tuple[str, ...]]:
    """All names by their kind."""
    methods = [
        name if preset == "paper" else f"{name}:{preset}" for name in registered() for preset in presets_of(name)
    ]
    return {
        "methods": tuple(methods),
        "data": tuple(sources.names()),
        "sets": tuple(sources.names()),
        "networks": ("auto", *networks.names()),
        "executors": ("auto", *plugins()),
        "metrics": tuple(METRICS),
        "splits": _SPLITS,
        "shells": SHELLS,
        "trackers": tuple(TRACKERS),
        "levels": tuple(share.word for share in Share if share),
        "judges": JUDGES,
        **_few(),
    }


def kinds() -> dict[str, str]:
    """The kind of every parameter that has one, also of settings with few values."""
    return {**{name: name for name in _few()}, **KINDS}


def _few() -> dict[str, tuple[str, ...]]:
    """Settings whose declarations list their values, by name."""
    found = {}
    for owner in (Experiment, Training, DataOptions):
        for name, hint in typing.get_type_hints(owner).items():
            if typing.get_origin(hint) is typing.Literal:
                found[name] = tuple(str(value) for value in typing.get_args(hint))
    return found
