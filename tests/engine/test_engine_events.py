"""Events are data: what is written into a run's folder says all of it, and every kind has a sentence."""

from __future__ import annotations

import dataclasses
import importlib
import json
import pkgutil
import typing

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fewfed.engine
from fewfed.engine.events import Event

KERNELS = "fewfed.engine.executors.cuda.norm_kernels"
"""Needs Triton, which is not everywhere."""


def kinds(of: type[Event] = Event) -> list[type[Event]]:
    """Every event class of the package, wherever in the engine it is written: a new one is among them."""
    for module in pkgutil.walk_packages(fewfed.engine.__path__, "fewfed.engine."):
        if module.name != KERNELS:
            importlib.import_module(module.name)
    found = [kind for kind in of.__subclasses__() if kind.__module__.startswith("fewfed.")]
    return [*found, *(deeper for kind in found for deeper in kinds(kind))]


def any_of(kind: type[Event]) -> st.SearchStrategy[Event]:
    """Events of a kind with anything its fields may hold, those with a default included."""
    hints = typing.get_type_hints(kind)
    return st.builds(kind, **{field.name: st.from_type(hints[field.name]) for field in dataclasses.fields(kind)})


def test_there_are_several_kinds_and_each_has_a_name_of_its_own() -> None:
    names = [kind.kind for kind in kinds()]
    assert len(names) >= 4
    assert all(names)
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_every_kind_comes_back_from_json_as_it_was(kind: type[Event], data: st.DataObject) -> None:
    event = data.draw(any_of(kind))
    written = json.loads(json.dumps(event.as_json()))
    found = Event.from_json(written)
    assert type(found) is kind
    assert found == event
    assert hash(found) == hash(event), "executors remember what they have said"
    assert str(found) == str(event)
    assert written["kind"] == kind.kind
    assert written.keys() == {"kind", *(field.name for field in dataclasses.fields(kind))}


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.__name__)
def test_a_sentence_says_everything_an_event_holds(kind: type[Event]) -> None:
    hints = typing.get_type_hints(kind)
    texts = [field.name for field in dataclasses.fields(kind) if hints[field.name] is str]
    lists = [field.name for field in dataclasses.fields(kind) if hints[field.name] == tuple[str, ...]]
    counts = [field.name for field in dataclasses.fields(kind) if hints[field.name] is int]
    numbers = [field.name for field in dataclasses.fields(kind) if hints[field.name] == tuple[int, ...]]
    made: dict[str, typing.Any] = {name: f"<{name}>" for name in texts}
    made |= {name: (f"<{name} 1>", f"<{name} 2>") for name in lists}
    made |= dict.fromkeys(counts, 4711) | dict.fromkeys(numbers, (815, 816))
    sentence = str(kind(**made))
    said = [f"<{name}>" for name in texts] + [f"<{name} {number}>" for name in lists for number in (1, 2)]
    said += ["4711"] * len(counts) + ["815", "816"] * len(numbers)
    assert [part for part in said if part not in sentence] == []
