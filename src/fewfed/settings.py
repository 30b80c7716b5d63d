"""Settings: fields of frozen dataclasses that know their range and say what they are.

A method's hyper-parameters and an experiment's configuration are plain dataclass fields made with `setting`; this
module checks them, reads them from text (`--set mu=0.1`) and describes them (`fewfed methods fedprox`).
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, Self, TypeVar

from fewfed.errors import ConfigError, did_you_mean

T = TypeVar("T")

_LARGEST = 2**63 - 1
"""Whole numbers beyond it fit into no array, no file and no loop that ends."""
_LONGEST = 4096
"""Characters of a text: as many as the path of a file may have."""
_SHOWN = 100


def setting(
    default: Any,
    help: str = "",
    *,
    gt: float | None = None,
    ge: float | None = None,
    lt: float | None = None,
    le: float | None = None,
    essential: bool = False,
) -> Any:
    """A dataclass field with a default, a sentence of help and an optional range.

    `essential`: a value that somebody gives must not be ignored, because it changes what is computed.
    """
    limits = {"gt": gt, "ge": ge, "lt": lt, "le": le}
    return dataclasses.field(default=default, metadata={"help": help, **limits, "essential": essential})


def is_essential(field: dataclasses.Field[Any]) -> bool:
    """Whether a value given for a field changes what is computed."""
    return bool(field.metadata.get("essential"))


@dataclasses.dataclass(frozen=True)
class Described:
    """One field of a settings class, for help texts and JSON."""

    name: str
    type: str
    default: Any
    help: str
    range: str


class Known:
    """Settings that refuse a field they do not have in a sentence, where Python would say less."""

    def __new__(cls, *_: Any, **named: Any) -> Self:
        known = [field.name for field in dataclasses.fields(typing.cast(Any, cls)) if field.init]
        for name in named:
            if name not in known:
                raise ConfigError(did_you_mean(f"field of {cls.__name__}", name, known), key=name)
        return super().__new__(cls)


class Stated(Known):
    """Settings that remember which fields were named when they were made: the others may be set by somebody weaker.

    `dataclasses.replace` names every field; what then counts as named is what differs from the default.
    """

    _named: frozenset[str] | None

    def __new__(cls, *args: Any, **named: Any) -> Self:
        made = super().__new__(cls, *args, **named)
        fields = [field.name for field in dataclasses.fields(typing.cast(Any, cls)) if field.init]
        names = {*fields[: len(args)], *named}
        object.__setattr__(made, "_named", None if len(names) == len(fields) else frozenset(names))
        return made

    def stated(self) -> dict[str, Any]:
        """The named fields and their values."""
        fields = dataclasses.fields(typing.cast(Any, self))
        values = {field.name: getattr(self, field.name) for field in fields if field.init}
        if self._named is not None:
            return {name: value for name, value in values.items() if name in self._named}
        return {field.name: values[field.name] for field in fields if values[field.name] != field.default}


def check(settings: Any) -> None:
    """Raise `ConfigError` naming the first field whose value has the wrong type or lies outside its range."""
    hints = typing.get_type_hints(type(settings))
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        _check_type(field.name, value, hints[field.name])
        _check_range(field.name, value, field.metadata)


def make(cls: type[T], values: Mapping[str, Any], owner: str) -> T:
    """Build `cls` from named values; text is converted to the field's type, unknown names get a suggestion."""
    hints = typing.get_type_hints(cls)
    known = {field.name for field in dataclasses.fields(typing.cast(Any, cls)) if field.init}
    converted: dict[str, Any] = {}
    for name, value in values.items():
        if name not in known:
            none = f"{owner} has no fields: leave '{name}' out"
            raise ConfigError(did_you_mean(f"field of {owner}", name, known) if known else none, key=name)
        converted[name] = convert(name, value, hints[name])
    made = cls(**converted)
    check(made)
    return made


def convert(name: str, value: Any, hint: Any) -> Any:
    """Turn text or a TOML value into the type a field declares."""
    if isinstance(value, list):
        return tuple(value)
    if isinstance(value, int) and not isinstance(value, bool) and float in _options(hint) and int not in _options(hint):
        return float(value) if _is_moderate(value) else value
    if not isinstance(value, str):
        return value
    for option in _options(hint):
        parsed = _parse(value, option)
        if parsed is not None:
            return parsed
    if type(None) in _options(hint) and value.lower() in ("none", "null", ""):
        return None
    raise ConfigError(f"{name} = {shown(value)}: expected {type_name(hint)}", key=name, value=value)


def shown(value: Any) -> str:
    """A value as it is written in a sentence, whatever it is."""
    try:
        text = repr(value)
    except Exception:  # A whole number of thousands of digits, or an object of the user's.
        return f"<{type(value).__name__}>"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]} ..."


def describe(cls: type[Any]) -> list[Described]:
    """The fields of a settings class in order."""
    hints = typing.get_type_hints(cls)
    return [
        Described(
            name=field.name,
            type=type_name(hints[field.name]),
            default=field.default,
            help=field.metadata.get("help", ""),
            range=_range_text(field.metadata),
        )
        for field in dataclasses.fields(cls)
        if field.init
    ]


def type_name(hint: Any) -> str:
    """How a field's type is written for a user."""
    if typing.get_origin(hint) is Literal:
        return " | ".join(repr(option) for option in typing.get_args(hint))
    options = _options(hint)
    if len(options) > 1:
        return " | ".join(type_name(option) for option in options)
    if typing.get_origin(hint) is tuple:
        return "list of " + type_name(typing.get_args(hint)[0])
    return "none" if hint is type(None) else getattr(hint, "__name__", str(hint))


def _options(hint: Any) -> tuple[Any, ...]:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return typing.get_args(hint)
    return (hint,)


def _parse(text: str, hint: Any) -> Any:
    if hint is str:
        return text
    if hint is bool:
        return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}.get(text.lower())
    if hint in (int, float):
        try:
            return hint(text)
        except ValueError:
            return None
    if typing.get_origin(hint) is Literal:
        return next((option for option in typing.get_args(hint) if str(option) == text), None)
    if typing.get_origin(hint) is tuple:
        element = typing.get_args(hint)[0]
        parts = [_parse(part.strip(), element) for part in text.split(",") if part.strip()]
        return None if None in parts else tuple(parts)
    return None


def _check_type(name: str, value: Any, hint: Any) -> None:
    if not any(_fits(value, option) for option in _options(hint)):
        raise ConfigError(f"{name} = {shown(value)}: expected {type_name(hint)}", key=name, value=value)
    texts = [text for text in (value if isinstance(value, tuple) else (value,)) if isinstance(text, str)]
    if any("\0" in text or len(text) > _LONGEST for text in texts):
        expected = f"expected a text of at most {_LONGEST} characters, none of them NUL"
        raise ConfigError(f"{name} = {shown(value)}: {expected}", key=name, value=value)
    if not _is_moderate(value):
        expected = "expected a number between -2**63 and 2**63"
        raise ConfigError(f"{name} = {shown(value)}: {expected}", key=name, value=value)


def _fits(value: Any, hint: Any) -> bool:
    if typing.get_origin(hint) is Literal:
        return any(type(value) is type(option) and value == option for option in typing.get_args(hint))
    if typing.get_origin(hint) is tuple:
        return isinstance(value, tuple) and all(_fits(v, typing.get_args(hint)[0]) and _is_moderate(v) for v in value)
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and value == value  # NaN is no setting.
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if isinstance(hint, type):
        return isinstance(value, hint)
    return True


def _is_moderate(value: Any) -> bool:
    return not isinstance(value, int) or -_LARGEST <= value <= _LARGEST


def _check_range(name: str, value: Any, limits: Mapping[str, Any]) -> None:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return
    ok = (
        (limits.get("gt") is None or value > limits["gt"])
        and (limits.get("ge") is None or value >= limits["ge"])
        and (limits.get("lt") is None or value < limits["lt"])
        and (limits.get("le") is None or value <= limits["le"])
    )
    if not ok:
        raise ConfigError(f"{name} = {shown(value)}: expected {_range_text(limits)}", key=name, value=value)


def _range_text(limits: Mapping[str, Any]) -> str:
    signs = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
    return " and ".join(f"{sign} {limits[key]}" for key, sign in signs.items() if limits.get(key) is not None)
