from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import pytest

from fewfed.errors import ConfigError, did_you_mean
from fewfed.settings import check, describe, make, setting


@dataclass(frozen=True)
class Knobs:
    """One field of every kind a user may set."""

    rate: float = setting(0.1, "how fast", gt=0, le=1)
    count: int = setting(3, "how many", ge=1, lt=10)
    on: bool = setting(False, "whether")
    kind: Literal["plain", "fancy"] = setting("plain", "which")
    power: Literal[1, 2] = setting(1, "exponent")
    names: tuple[str, ...] = setting((), "who")
    sizes: tuple[int, ...] = setting((1, 2), "how large")
    weights: tuple[float, ...] = setting((), "how much")
    limit: float | None = setting(None, "upper bound", ge=0)
    title: str = setting("", "what it is called")


@dataclass(frozen=True)
class Bare:
    """Nothing to set."""


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("rate", "0.5", 0.5),
        ("rate", "1e-3", 1e-3),
        ("rate", "1", 1.0),
        ("rate", 1, 1.0),
        ("count", "7", 7),
        ("on", "true", True),
        ("on", "No", False),
        ("on", "1", True),
        ("kind", "fancy", "fancy"),
        ("power", "2", 2),
        ("power", 2, 2),
        ("names", "a, b,c", ("a", "b", "c")),
        ("names", "", ()),
        ("names", ["a", "b"], ("a", "b")),
        ("sizes", "3,4", (3, 4)),
        ("sizes", [5], (5,)),
        ("weights", "1,2.5", (1.0, 2.5)),
        ("limit", "none", None),
        ("limit", "2", 2.0),
        ("limit", None, None),
        ("title", "17", "17"),
    ],
)
def test_text_and_file_values_become_the_declared_type(name: str, text: Any, value: Any) -> None:
    made = getattr(make(Knobs, {name: text}, "test"), name)
    assert made == value
    assert type(made) is type(value)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("rate", "fast", "expected float"),
        ("rate", "nan", "expected float"),
        ("rate", True, "expected float"),
        ("count", "2.5", "expected int"),
        ("count", 2.0, "expected int"),
        ("count", True, "expected int"),
        ("on", "maybe", "expected bool"),
        ("on", 1, "expected bool"),
        ("kind", "fanci", "expected 'plain' | 'fancy'"),
        ("power", "3", "expected 1 | 2"),
        ("power", True, "expected 1 | 2"),
        ("sizes", "1,x", "expected list of int"),
        ("sizes", ["1"], "expected list of int"),
        ("limit", "low", "expected float | none"),
        ("title", 17, "expected str"),
        ("rate", "0", "expected > 0 and <= 1"),
        ("rate", 1.5, "expected > 0 and <= 1"),
        ("rate", "inf", "expected > 0 and <= 1"),
        ("count", "0", "expected >= 1 and < 10"),
        ("count", 10, "expected >= 1 and < 10"),
        ("limit", -1, "expected >= 0"),
    ],
)
def test_what_does_not_fit_is_named_with_what_was_expected(name: str, value: Any, says: str) -> None:
    with pytest.raises(ConfigError) as error:
        make(Knobs, {name: value}, "test")
    assert str(error.value).startswith(f"{name} = ")
    assert says in str(error.value)


def test_an_unknown_field_gets_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match="unknown field of thing 'coutn': did you mean 'count'"):
        make(Knobs, {"coutn": 1}, "thing")
    with pytest.raises(ConfigError, match="unknown field of thing 'zzz': expected one of count, kind"):
        make(Knobs, {"zzz": 1}, "thing")
    with pytest.raises(ConfigError, match="thing has no fields"):
        make(Bare, {"a": 1}, "thing")


def test_check_looks_at_objects_made_in_code_too() -> None:
    check(Knobs())
    with pytest.raises(ConfigError, match="count = 12"):
        check(Knobs(count=12))
    with pytest.raises(ConfigError, match="kind = 'odd'"):
        check(Knobs(kind="odd"))  # type: ignore[arg-type]


def test_nothing_given_leaves_the_defaults() -> None:
    assert make(Knobs, {}, "thing") == Knobs()
    assert make(Bare, {}, "thing") == Bare()


def test_fields_describe_themselves_in_order() -> None:
    described = describe(Knobs)
    assert [field.name for field in described][:4] == ["rate", "count", "on", "kind"]
    by_name = {field.name: field for field in described}
    assert (by_name["rate"].type, by_name["rate"].default, by_name["rate"].help) == ("float", 0.1, "how fast")
    assert by_name["rate"].range == "> 0 and <= 1"
    assert by_name["on"].range == ""
    assert by_name["kind"].type == "'plain' | 'fancy'"
    assert by_name["sizes"].type == "list of int"
    assert by_name["limit"].type == "float | none"


def test_a_suggestion_is_near_or_a_list() -> None:
    assert did_you_mean("fruit", "aple", ["apple", "pear"]) == "unknown fruit 'aple': did you mean 'apple'?"
    assert did_you_mean("fruit", "xyz", ["pear", "apple"]) == "unknown fruit 'xyz': expected one of apple, pear"
