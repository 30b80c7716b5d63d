"""Reading a study from its TOML file: blocks become runs. The format is explained in reproduce/README.md."""

from __future__ import annotations

import dataclasses
import itertools
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fewfed.data.readers.options import DataOptions
from fewfed.errors import ConfigError, FewfedError, did_you_mean
from fewfed.reproduction.coordinates import AXES, Coordinates, Value, is_one_of, listed
from fewfed.reproduction.curve import CurvePoint
from fewfed.reproduction.published import Published, read_published
from fewfed.reproduction.study import Planned, Study
from fewfed.runs.experiment import Experiment, known_fields, resolve
from fewfed.settings import make
from fewfed.training import Training

_KEYS = (
    *("name", "what", "paper", "seeds", "note", "terms", "metric"),
    *("common", "method", "block", "set", "published", "curve"),
)
_OWNERS = {
    name: part
    for part, cls in (("data_options", DataOptions), ("training", Training), ("experiment", Experiment))
    for name in (field.name for field in dataclasses.fields(cls))
}


def read_study(path: Path, published: Path) -> Study:
    """The study of a file. `published` is the folder of published tables."""
    content = _content(path)
    try:
        return _study(content, path.stem, published)
    except (ConfigError, TypeError, AttributeError) as error:
        kind = type(error) if isinstance(error, FewfedError) else ConfigError
        raise kind(f"{path}: {error}") from error


def summary_of(path: Path) -> str:
    """The line that says what a file shows."""
    return str(_content(path).get("what", ""))


def _content(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read '{path}': {error.strerror or error}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error


def _study(content: Mapping[str, Any], name: str, published: Path) -> Study:
    for key in content:
        if key not in _KEYS:
            raise ConfigError(did_you_mean("key", key, _KEYS))
    if content.get("name") != name:
        raise ConfigError(f"name = {content.get('name')!r}: expected '{name}', the name of the file")
    runs = _runs(content)
    values = _values(runs)
    table = read_published(content["published"], published) if "published" in content else None
    if table is not None:
        _refuse_unmatched(table, runs, values)
    axes = tuple(axis for axis in values if axis != "seed")
    curve = tuple(make(CurvePoint, entry, "[[curve]]") for entry in content.get("curve", ()))
    if curve and len({run.setting for run in runs}) > 1:
        raise ConfigError("[[curve]] needs a file with one setting and one method: it does not say whose curve it is")
    return Study(
        name=name,
        what=str(content.get("what", "")),
        paper=str(content.get("paper", "")),
        runs=runs,
        axes=axes,
        published=table,
        curve=curve,
        terms=tuple(content.get("terms", ())),
        metric=_metric(content.get("metric", "accuracy")),
        note=str(content.get("note", "")),
        values=values,
    )


def _metric(given: Any) -> tuple[str, ...]:
    names = tuple(listed(given))
    if not names or not all(isinstance(name, str) and name for name in names):
        raise ConfigError(f"metric = {given!r}: expected the name of a metric, or several of which the first is taken")
    return tuple(str(name) for name in names)


def _runs(content: Mapping[str, Any]) -> tuple[Planned, ...]:
    made: dict[str, Planned] = {}
    rules = [_Rule.of(entry, number) for number, entry in enumerate(content.get("set", ()), 1)]
    methods = {str(label): _flat(entry) for label, entry in content.get("method", {}).items()}
    blocks = content.get("block", ())
    if not blocks:
        raise ConfigError("it has no [[block]]: expected at least one")
    used: set[str] = set()
    for number, block in enumerate(blocks, 1):
        for at, values in _combinations(block, number, _seeds(content)):
            label = str(at["method"])
            used.add(label)
            own = dict(methods.get(label, {}))
            spec = str(own.pop("use", label))
            layers = [_flat(content.get("common", {})), _block_fields(block)]
            chosen = _merged(layers) | {f"method.{field}": value for field, value in own.items()} | _merged([values])
            for rule in rules:
                chosen |= rule.values_for(at)
            planned = _planned(at, spec, chosen)
            other = made.setdefault(planned.name, planned)
            if other != planned:
                raise ConfigError(f"two blocks make '{planned.name}' with different settings: expected one")
    idle = sorted(set(methods) - used)
    if idle:
        raise ConfigError(f"[method.'{idle[0]}'] is used by no block: {did_you_mean('label', idle[0], used)}")
    for rule in rules:
        rule.refuse_unused(made.values())
    return tuple(made.values())


def _combinations(
    block: Mapping[str, Any], number: int, seeds: list[int]
) -> Iterator[tuple[Coordinates, dict[str, Any]]]:
    """Every combination of a block's lists, with the values its sweep sets."""
    for key in ("data", "split", "clients", "methods"):
        if key not in block:
            raise ConfigError(f"block {number} has no '{key}': expected a value or a list")
    sweep = {field: listed(values) for field, values in _flat(block.get("sweep", {})).items()}
    columns = {field: field.rpartition(".")[2] for field in sweep}
    for column in columns.values():
        if column in AXES or list(columns.values()).count(column) > 1:
            raise ConfigError(f"block {number} sweeps '{column}', which already is a column of the table")
    product = itertools.product(
        listed(block["data"]), listed(block["split"]), listed(block["clients"]), *sweep.values(),
        listed(block["methods"]), seeds,
    )  # fmt: skip
    for data, split, clients, *swept, method, seed in product:
        values = dict(zip(sweep, swept, strict=True))
        shown = {columns[field]: value for field, value in values.items()}
        at = {"data": data, "split": split, "clients": clients, **shown, "method": method, "seed": seed}
        yield at, values


def _planned(at: Coordinates, spec: str, values: Mapping[str, Any]) -> Planned:
    fixed = {f"experiment.{axis}": at[axis] for axis in AXES if axis != "method"}
    try:
        _refuse_unknown(spec, values)
        return Planned(at, resolve(spec, {**values, **fixed}))
    except FewfedError as error:
        where = ", ".join(f"{axis} {value}" for axis, value in at.items())
        raise ConfigError(f"{where}: {error}") from error


def _refuse_unknown(spec: str, values: Mapping[str, Any]) -> None:
    """A misspelt common field would be taken for one of the method's, and compared with those alone."""
    known = known_fields(spec)
    for name in values:
        part, _, field = name.partition(".")
        if part == "method" and "." not in field and field not in known:
            raise ConfigError(did_you_mean("field", field, known))


def _block_fields(block: Mapping[str, Any]) -> dict[str, Any]:
    structure = ("data", "split", "clients", "methods", "sweep")
    return _flat({key: value for key, value in block.items() if key not in structure})


class _Rule:
    """One [[set]]: values for the runs it speaks of."""

    def __init__(self, when: dict[str, list[Value]], values: dict[str, Any], number: int) -> None:
        self._when = when
        self._values = values
        self._number = number

    @classmethod
    def of(cls, entry: Mapping[str, Any], number: int) -> _Rule:
        if "when" not in entry:
            raise ConfigError(f"set {number} has no 'when': expected axes and values, or put its fields into [common]")
        when = {axis: listed(values) for axis, values in entry["when"].items()}
        return cls(when, _flat({key: value for key, value in entry.items() if key != "when"}), number)

    def fits(self, at: Coordinates) -> bool:
        return all(axis in at and is_one_of(at[axis], wanted) for axis, wanted in self._when.items())

    def values_for(self, at: Coordinates) -> dict[str, Any]:
        return _merged([self._values]) if self.fits(at) else {}

    def refuse_unused(self, runs: Any) -> None:
        if not any(self.fits(run.at) for run in runs):
            raise ConfigError(f"set {self._number} fits no run: when = {self._when}")


def _merged(layers: list[dict[str, Any]]) -> dict[str, Any]:
    return {_qualified(name): value for layer in layers for name, value in layer.items()}


def _qualified(name: str) -> str:
    """A field with its part: unlike on the command line, what is common to all methods wins over a method's own."""
    if "." in name:
        return name
    return f"{_OWNERS.get(name, 'method')}.{name}"


def _flat(entry: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """`inner.mu = 1` is a table in TOML and one dotted name here."""
    flat: dict[str, Any] = {}
    for key, value in entry.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def _seeds(content: Mapping[str, Any]) -> list[int]:
    given = content.get("seeds", 1)
    seeds = list(range(given)) if isinstance(given, int) and not isinstance(given, bool) else given
    if not isinstance(seeds, list) or not seeds or not all(isinstance(seed, int) for seed in seeds):
        raise ConfigError(f"seeds = {given!r}: expected how many there are, or a list of whole numbers")
    return seeds


def _values(runs: tuple[Planned, ...]) -> dict[str, list[Value]]:
    """Every axis with its values; sweeps stand between the clients and the method."""
    swept = list(dict.fromkeys(axis for run in runs for axis in run.at if axis not in AXES))
    order = ("data", "split", "clients", *swept, "method", "seed")
    return {axis: list(dict.fromkeys(run.at[axis] for run in runs if axis in run.at)) for axis in order}


def _refuse_unmatched(table: Published, runs: tuple[Planned, ...], axes: Mapping[str, list[Value]]) -> None:
    for axis in (*table.match.values(), *table.spelling):
        if axis not in axes:
            raise ConfigError(f"[published]: {did_you_mean('axis', axis, axes)}")
    if not any(table.row_of(run.at) for run in runs):
        raise ConfigError(f"[published]: no run has a row in {table.table}: look at 'match' and 'spelling'")
