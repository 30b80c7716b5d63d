"""Scores that sites send: checked before they are believed, and put together."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fewfed.deploy.messages import BadMessage
from fewfed.task import Score, Task

_MOST = 1 << 53


def blank_score(task: Task, shape: tuple[int, ...]) -> Score:
    """A score of one row: it has the form of every other."""
    y = task.blank_labels(1, shape)
    return task.score(torch.zeros(1, task.outputs, *y.shape[1:]), y)


def checked_score(recorded: Mapping[str, Any], like: Score, most_rows: int) -> Score:
    """The score that a site sent, or `BadMessage`. Sums must have the form of `like`, which is of one row, and be such
    as so many rows can give: a site that claimed more would decide alone what all sites' score is."""
    expected = {**like.as_json(), "groups": {}}
    if recorded.keys() != expected.keys() or recorded["groups"] != {}:
        raise BadMessage(f"its score has other entries than {', '.join(expected)}")
    for name, value in expected.items():
        if name != "groups" and not _is_like(recorded[name], value):
            raise BadMessage(f"its score's '{name}' is not as expected: numbers from 0 on, in the same form")
    made = type(like).from_json(recorded)
    total = int(made.total.sum())
    if total < 1 or bool((made.correct > made.total).any()) or made.correct.shape != like.correct.shape:
        raise BadMessage("its score counts more that is right than there is, or nothing at all")
    if total > most_rows * int(like.total.sum()):
        raise BadMessage(f"its score is of more rows than the {most_rows} that it can have")
    return made


def of_sites(scores: Mapping[str, Score]) -> Score:
    """The score of all sites' rows, with that of each site as a group."""
    named = [dataclasses.replace(score, groups={name: score}) for name, score in sorted(scores.items())]
    return sum(named[1:], start=named[0])


def _is_like(value: Any, expected: Any) -> bool:
    if isinstance(expected, list):
        return (
            isinstance(value, list)
            and len(value) == len(expected)
            and all(_is_like(each, like) for each, like in zip(value, expected, strict=True))
        )
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    if isinstance(expected, int) and not isinstance(value, int):
        return False
    return 0 <= value < _MOST  # Also false of NaN; a whole number may be too large for other questions.


def parts_of_predictor(made: Mapping[str, Any], server: Mapping[str, Any]) -> dict[str, Any]:
    """Of the server's tree, only what the model that predicts is made of: a site's own model needs no more.

    `made`: what the method's `predictor` makes of the whole tree and a new client's state.
    """
    used = {id(leaf) for leaf in _leaves(made)}
    return _only(server, used)


def _leaves(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [leaf for part in value.values() for leaf in _leaves(part)]


def _only(value: Mapping[str, Any], used: set[int]) -> dict[str, Any]:
    """The same branches, without other leaves: a method looks for what it uses along these."""
    return {
        name: part if isinstance(part, Tensor) else _only(part, used)
        for name, part in value.items()
        if not isinstance(part, Tensor) or id(part) in used
    }
