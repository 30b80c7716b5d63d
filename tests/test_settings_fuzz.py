"""Whatever a user gives for any setting, by name or in a file: it is taken, or refused with a sentence, at once.

`make fuzz` tries many more values than the tests do.
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fewfed.data.readers.options import DataOptions
from fewfed.engine.executors.registry import plugins
from fewfed.errors import ConfigError
from fewfed.methods.registry import presets_of, registered
from fewfed.runs import config_file
from fewfed.runs.experiment import Experiment, Resolved, resolve
from fewfed.training import Training

FEW = 200
EXAMPLES = int(os.environ.get("FEWFED_FUZZ", str(FEW)))
thorough = settings(
    max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), derandomize=EXAMPLES == FEW
)
AT_MOST = 1.0
"""Seconds until a setting is taken or refused."""


def fields_of(cls: type[Any], owner: str) -> list[str]:
    return [f"{owner}.{field.name}" for field in dataclasses.fields(cls) if field.init]


COMMON = [
    *fields_of(Experiment, "experiment"),
    *fields_of(Training, "training"),
    *fields_of(DataOptions, "data_options"),
    *(name for each in plugins().values() for name in fields_of(each.options, each.name)),
]
METHODS = {name: fields_of(cls, "method") for name, cls in registered().items()}
PLAIN = [name.partition(".")[2] for name in COMMON]

WORDS = (
    "",
    " ",
    "none",
    "null",
    "nan",
    "inf",
    "-inf",
    "1e999",
    "true",
    "No",
    "1,2",
    ",",
    "0x1f",
    "1_0",
    "٣",
    "\0",
    "..",
)
HUGE = (2**31, 2**32, 2**63, 2**64, 10**30, 10**400)
TEXTS = st.one_of(
    st.sampled_from(WORDS),
    st.text(st.characters(), max_size=20),
    st.integers().map(str),
    st.floats().map(str),
    st.sampled_from(HUGE).map(str),
    st.sampled_from(["9" * 5000, "x" * 100_000, "a," * 5000, "(" * 3000]),
)
NUMBERS = st.one_of(
    st.booleans(),
    st.integers(-5, 200),
    st.integers(),
    st.sampled_from(HUGE),
    st.sampled_from(HUGE).map(lambda value: -value),
    st.floats(),
    st.sampled_from([1e308, -1e308, 5e-324, -0.0]),
)
STRANGE = st.sampled_from(
    [
        None,
        b"bytes",
        1j,
        object(),
        int,
        np.zeros(3),
        np.float32(1),
        np.int64(2),
        np.float64(0.5),
        {},
        {"a": 1},
        {1},
        ...,
    ]
)
VALUES = st.one_of(TEXTS, NUMBERS, STRANGE, st.lists(st.one_of(TEXTS, NUMBERS, STRANGE), max_size=4))


@st.composite
def specs(draw: st.DrawFn) -> str:
    """A method, mostly one there is, perhaps with a preset or in a wrapper, perhaps spoilt."""
    name = draw(st.sampled_from(sorted(METHODS)))
    kind = draw(st.sampled_from(["plain", "plain", "plain", "preset", "wrapped", "odd"]))
    if kind == "preset":
        return f"{name}:{draw(st.sampled_from(presets_of(name)) | TEXTS)}"
    if kind == "wrapped":
        return f"{draw(st.sampled_from(['sem', 'ccvr', 'fedfa']))}({name})"
    if kind == "odd":
        odd = st.sampled_from([f"{name}.py", "sem(" * 400 + name + ")" * 400, "a" * 5000 + ".py", "\0.py", name * 9000])
        return draw(TEXTS | odd)
    return name


@st.composite
def given_values(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """A method, and values for some of its settings and some of everybody's, sometimes under wrong names."""
    spec = draw(specs())
    own = METHODS.get(spec, [])
    names = st.one_of(
        st.sampled_from(COMMON),
        st.sampled_from([*own, *PLAIN]),
        st.sampled_from([*own, *COMMON]).map(lambda n: n[:-1]),
        TEXTS,
    )
    return spec, draw(st.dictionaries(names, VALUES, max_size=4))


@contextmanager
def in_time() -> Iterator[None]:
    """Nothing of what is inside takes long, apart from what the machine did meanwhile."""
    began = time.process_time()
    yield
    assert time.process_time() - began < AT_MOST


def settled(make: Callable[[], Resolved]) -> Resolved | None:
    """What became of settings: taken, or refused with one short sentence. Any other error is the test's."""
    with in_time():
        try:
            return make()
        except ConfigError as error:
            said = str(error)
    assert 0 < len(said) < 5000
    return None


def assert_repeatable(found: Resolved) -> None:
    """What was taken can be written into a run folder and read again."""
    written = json.dumps(found.as_json())
    again = Resolved.from_json(json.loads(written))
    assert again.chosen.method == found.chosen.method
    assert (again.experiment, again.training, again.options) == (found.experiment, found.training, found.options)


@thorough
@given(given_values())
def test_any_values_are_taken_or_refused(said: tuple[str, dict[str, Any]]) -> None:
    settled(lambda: resolve(*said))


@thorough
@given(st.data())
def test_any_value_of_any_one_field_is_taken_or_refused(data: st.DataObject) -> None:
    spec = data.draw(st.sampled_from(sorted(METHODS)))
    name = data.draw(st.sampled_from([*METHODS[spec], *COMMON]))
    plain = st.one_of(TEXTS, NUMBERS, st.none(), st.lists(st.one_of(TEXTS, NUMBERS), max_size=3))
    found = settled(lambda: resolve(spec, {name: data.draw(plain)}))
    if found is not None:
        assert_repeatable(found)


IMPOSSIBLE: dict[str, Any] = {
    "2**63": 2**63,
    "-2**63 - 1": -(2**63) - 1,
    "5000 digits": 10**5000,
    "minus 5000 digits": -(10**5000),
    "NaN": float("nan"),
    "NUL": "a\0b",
    "a long text": "x" * 100_000,
    "an array": np.zeros(3),
    "bytes": b"x",
    "an object": object(),
}
"""Numbers that fit into nothing, texts that no file can be called, and what is neither."""


@pytest.mark.parametrize("what", IMPOSSIBLE)
def test_every_field_refuses_what_none_can_be(what: str) -> None:
    for name in COMMON:
        assert settled(lambda: resolve("fedavg", {name: IMPOSSIBLE[what]})) is None, name  # noqa: B023


KEYS = st.one_of(
    st.sampled_from([*COMMON, *PLAIN, "method", "methods", "seeds", "executor.name", "method.fedprox.mu", "training"]),
    st.text(st.characters(codec="utf-8"), max_size=8),
)


def as_toml(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(map(as_toml, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value)
    return repr(value)


@st.composite
def files(draw: st.DrawFn) -> bytes:
    """A TOML file: lines that make sense by themselves, in tables or not, and then some bytes changed."""
    plain = st.one_of(
        st.sampled_from([*WORDS, "fedavg", "fedprox", "flea:official", "workers", "cuda", "digits", "9" * 5000]),
        st.integers(),
        st.sampled_from([2**64, 10**400]),
        st.floats(),
        st.booleans(),
        st.text(max_size=8),
    )
    lines = []
    for _ in range(draw(st.integers(0, 6))):
        key, value = draw(KEYS), draw(st.one_of(plain, st.lists(plain, max_size=3)))
        table, _, name = key.partition(".")
        as_table = draw(st.booleans()) and name
        lines += [f"[{table}]", f"{name} = {as_toml(value)}"] if as_table else [f"{key} = {as_toml(value)}"]
    lines += draw(
        st.lists(
            st.sampled_from(["[" * 3000, "a = " + "[" * 3000, "x = " + "9" * 5000, "[a.b.c]", "\ufeff", "#"]),
            max_size=1,
        )
    )
    content = bytearray("\n".join(lines).encode("utf-8", "surrogatepass"))
    for place, byte in draw(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 255)), max_size=3)):
        if place < len(content):
            content[place] = byte
    return bytes(content)


@thorough
@given(content=files())
def test_any_file_is_taken_or_refused(content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_bytes(content)
    settled(lambda: _of_file(path))


@pytest.mark.parametrize(
    "line", ["rounds = " + "9" * 5000, "rounds = " + "[" * 5000, "[" * 5000, "a" + ".a" * 5000 + " = 1"]
)
def test_files_that_no_parser_expects_are_refused(line: str, tmp_path: Path) -> None:
    (tmp_path / "odd.toml").write_text(f"clients = 5\n{line}\n")
    assert settled(lambda: _of_file(tmp_path / "odd.toml")) is None


def _of_file(path: Path) -> Resolved:
    file = config_file.read(path)
    try:
        return resolve(file.methods[0] if file.methods else "fedavg", file.values)
    except ConfigError as error:
        raise file.explain(error) from None
