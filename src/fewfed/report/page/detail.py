"""All that a page shows of one run beside its row in a table, read from its folder.

Folders may be anybody's. Whatever is missing, damaged or of another shape costs the part it concerns, and is told.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from fewfed.data.splits import SHOWN_CLASSES, SHOWN_CLIENTS
from fewfed.diagnostics.feature_map import FILE as FEATURE_MAP
from fewfed.engine.evaluation import BESIDE
from fewfed.engine.own_folder import OwnFolder
from fewfed.engine.storage import Damaged, digest_of
from fewfed.errors import FewfedError, in_one_line
from fewfed.metric import metric_of
from fewfed.privacy.attacks import running as attacks
from fewfed.report.rendering import printable
from fewfed.report.survey import Found, is_no_number
from fewfed.runs.folder import CONFIG, ENVIRONMENT, METRICS, RESULT, SCORES, SPLIT
from fewfed.runs.results import Summary
from fewfed.runs.seals import MOST_BYTES, parsed, read_sealed

_MOST_NAMES, _MOST_FINDINGS, _MOST_POINTS, _MOST_PANELS, _MOST_BESIDE = 10_000, 200, 2_000, 6, 10
"""Classes or sites, numbers of attacks, points and panels of a map, other models that are read of one run."""
_LARGEST, _LARGEST_WHOLE = 1e100, 1 << 53
_LONG = 1000
"""Letters of a sentence."""
_WRONG = (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, IndexError, RecursionError)
"""What comes of reading JSON of another shape than expected."""

T = TypeVar("T")


@dataclass(frozen=True)
class Score:
    """What the last model does for one class, or at one site."""

    name: str
    value: float | None
    """Of a class its recall (or Dice), of a site the chosen metric; None where there is nothing to score."""
    test_rows: int | None = None
    train_rows: int | None = None


@dataclass(frozen=True)
class Counts:
    """Rows of each class on each of the first clients."""

    classes: tuple[str, ...]
    clients: tuple[tuple[int, ...], ...]
    """One entry a client, with a number a class."""
    names: tuple[str, ...] = ()
    """Of the clients, where they are the data's own sites."""


@dataclass(frozen=True)
class Panel:
    """One model's features, laid out on a plane."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    score: float | None
    """Davies-Bouldin."""


@dataclass(frozen=True)
class Detail:
    """One run, beside its row in a table."""

    config: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    split: Mapping[str, Any] = field(default_factory=dict)
    """Without the counts."""
    counts: Counts | None = None
    per_class: tuple[Score, ...] = ()
    class_measure: str = "recall"
    """What the numbers of classes are: of masks it is Dice."""
    per_site: tuple[Score, ...] = ()
    privacy: Mapping[str, Any] | None = None
    """Epsilon, as a result has it."""
    note: str = ""
    seconds: float = 0.0
    megabytes: tuple[float, ...] = ()
    """Sent both ways until each evaluated round."""
    phases: Mapping[str, float] = field(default_factory=dict)
    """Megabytes that clients sent in each phase, over the whole run."""
    failed: Mapping[str, int] = field(default_factory=dict)
    """Turns of clients that were left out, by cause."""
    separation: tuple[tuple[int, Mapping[str, float | None]], ...] = ()
    """Davies-Bouldin scores by round: `before`, `local`, `aggregated`, on test rows."""
    beside: Mapping[str, Summary] = field(default_factory=dict)
    """The metric of models that were scored beside the one that predicts, by their names."""
    own_models: int = 0
    """How many clients' models were scored, where each client has one of its own."""
    findings: tuple[Mapping[str, Any], ...] = ()
    """What attacks found, as `fewfed attack` wrote it."""
    idle: tuple[str, ...] = ()
    """Attacks that had nothing to work on, and why."""
    panels: tuple[Panel, ...] = ()
    labels: tuple[int, ...] = ()
    """The class of every point of the panels."""
    problems: tuple[str, ...] = ()
    """What could not be read."""


class _Reader:
    """Reads part after part; one that cannot be read is a problem, not the end."""

    def __init__(self, found: Found) -> None:
        self.found = found
        self.own = OwnFolder(found.folder)
        self.problems: list[str] = []

    def part(self, name: str, read: Callable[[], T], otherwise: T) -> T:
        try:
            return read()
        except (FewfedError, OSError) as error:
            self.problems.append(in_one_line(error))
        except _WRONG as error:
            self.problems.append(f"'{self.found.folder / name}' holds something else than expected ({error!r:.80})")
        return otherwise

    def optional(self, name: str, read: Callable[[], T], otherwise: T) -> T:
        """A part that not every run has."""
        there = self.part(name, lambda: self.own.has(name), False)
        return self.part(name, read, otherwise) if there else otherwise


def detail_of(found: Found, records: Sequence[Mapping[str, Any]] | None = None) -> Detail:
    """What the folder of a run holds; of a damaged one nothing is believed. `records`: its rounds, where somebody has
    read them already."""
    if found.state == "damaged":
        return Detail()
    reader = _Reader(found)
    own = reader.own
    nothing: dict[str, Any] = {}
    config = reader.part(CONFIG, lambda: parsed(own.read(CONFIG, MOST_BYTES), own / CONFIG), nothing)
    made = Detail(config=config)
    made = reader.optional(ENVIRONMENT, lambda: _with_environment(made, _named(own, ENVIRONMENT, config)), made)
    made = reader.optional(SPLIT, lambda: _with_split(made, _named(own, SPLIT, config)), made)
    made = reader.optional(
        METRICS, lambda: _with_rounds(made, _lines(own) if records is None else records, found.metric), made
    )
    if found.state == "finished":
        made = reader.optional(RESULT, lambda: _with_result(made, parsed(own.read(RESULT), own / RESULT)), made)
        made = reader.optional(SCORES, lambda: _with_scores(made, read_sealed(own / SCORES)[0], found.metric), made)
    made = reader.part(attacks.FOLDER, lambda: _with_attacks(made, own.below(attacks.FOLDER)), made)
    made = reader.optional(FEATURE_MAP, lambda: _with_map(made, json.loads(own.read(FEATURE_MAP, MOST_BYTES))), made)
    return replace(made, problems=tuple(reader.problems))


def _named(own: OwnFolder, name: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """A file whose digest the configuration names, where it does so."""
    content = own.read(name, MOST_BYTES)
    if (wanted := config.get("files", {}).get(name)) is not None and wanted != digest_of(content):
        raise Damaged(f"'{own.path / name}' is damaged: its content does not fit the digest in {CONFIG}")
    return parsed(content, own / name)


def _lines(own: OwnFolder) -> list[dict[str, Any]]:
    """The rounds. Their digests were checked when the run was found."""
    return [json.loads(line) for line in own.read(METRICS).split(b"\n")[:-1]]


def _with_environment(made: Detail, content: Mapping[str, Any]) -> Detail:
    found = {printable(name): printable(value) for name, value in content.items() if value}
    return replace(made, environment=found)


def _with_split(made: Detail, content: Mapping[str, Any]) -> Detail:
    """Of a run between real sites nobody knows the classes, and there are no counts."""
    by_class = content.get("by_class")
    plain = {name: value for name, value in content.items() if name != "by_class"}
    if by_class is None:
        return replace(made, split=plain)
    classes = tuple(printable(name) for name in by_class["classes"][:SHOWN_CLASSES])
    clients = tuple(
        tuple(_whole(count) for count in row[:SHOWN_CLASSES]) for row in by_class["clients"][:SHOWN_CLIENTS]
    )
    if any(len(row) != len(classes) or min(row, default=0) < 0 for row in clients):
        raise ValueError("counts that are no table")
    return replace(made, split=plain, counts=Counts(classes, clients, _site_names(content, clients)))


def _site_names(content: Mapping[str, Any], clients: Sequence[Sequence[int]]) -> tuple[str, ...]:
    """What the clients are called where each is a site of the user's own data. Whether they are is seen by their sizes:
    where a part of the rows or of the sites was left out, nobody is named."""
    reading = content.get("reading")
    if not isinstance(reading, dict) or reading.get("grouping") != content.get("rule"):
        return ()
    sites = [site for site in reading["sites"] if _whole(site["train"])]
    if len(sites) != content["clients"]:
        return ()
    shown = sites[: len(clients)]
    alike = all(site["train"] == sum(row) for site, row in zip(shown, clients, strict=True))
    return tuple(printable(site["name"]) for site in shown) if alike else ()


def _with_rounds(made: Detail, records: Sequence[Mapping[str, Any]], metric: str) -> Detail:
    sent, megabytes = 0.0, []
    phases: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    separation = []
    beside: dict[str, list[float | None]] = {}
    own_models = 0
    for record in records:
        sent += (_finite(record["bytes"]["up"]) + _finite(record["bytes"]["down"])) / 1e6
        if record.get(metric) is not None and not is_no_number(record[metric]):
            megabytes.append(sent)
        for name, numbers in list(record.get(BESIDE, {}).items())[:_MOST_BESIDE]:
            if numbers.get(metric) is not None:
                beside.setdefault(printable(name), []).append(known(numbers[metric]))
        own_models = _whole(record.get("evaluated_clients", own_models))
        for name, phase in record.get("phases", {}).items():
            phases[printable(name)] += _finite(phase.get("bytes_up", 0)) / 1e6  # type: ignore[assignment]
        failed.update(printable(one["cause"]) for one in record.get("failed", ()))
        if "davies_bouldin" in record:
            separation.append((_whole(record["round"]), _separation(record["davies_bouldin"])))
    return replace(
        made,
        megabytes=tuple(megabytes),
        phases=dict(phases),
        failed=dict(failed),
        separation=tuple(separation),
        beside={name: found for name, values in beside.items() if (found := _summary(values, metric))},
        own_models=own_models,
        seconds=sum(_finite(record.get("seconds", 0)) for record in records),
    )


def _summary(values: Sequence[float | None], metric: str) -> Summary | None:
    """None where one of the values is no number: a mean of the others would flatter."""
    there = [value for value in values if value is not None]
    return Summary.of(there, metric=metric_of(metric)) if len(there) == len(values) else None


def _separation(found: Mapping[str, Any]) -> dict[str, float | None]:
    return {stage: known(found[stage]["test"]) for stage in ("before", "local", "aggregated")}


def _with_result(made: Detail, content: Mapping[str, Any]) -> Detail:
    privacy = content.get("privacy")
    if privacy is not None and not isinstance(privacy, dict):
        raise TypeError("privacy is no object")
    return replace(made, privacy=privacy, note=printable(content.get("note", ""), _LONG))


def _with_scores(made: Detail, content: Mapping[str, Any], metric: str) -> Detail:
    per_class = content.get("per_class", ())[:_MOST_NAMES]
    classes = tuple(
        Score(name, known(row.get("recall", row.get("dice"))), _count(row.get("rows")))
        for name, row in zip(_told_apart(row["class"] for row in per_class), per_class, strict=True)
    )
    per_site = content.get("per_site", ())[:_MOST_NAMES]
    sites = tuple(
        Score(
            name,
            known(row.get(metric, row.get("accuracy"))),
            _count(row.get("test_rows")),
            _count(row.get("train_rows")),
        )
        for name, row in zip(_told_apart(row["site"] for row in per_site), per_site, strict=True)
    )
    masks = any("dice" in row and "recall" not in row for row in content.get("per_class", ())[:1])
    return replace(made, per_class=classes, per_site=sites, class_measure="Dice" if masks else "recall")


def _told_apart(names: Iterable[Any]) -> Iterator[str]:
    """Names as they are shown; numbered where they are shown alike, as long ones that differ in their ends."""
    seen: Counter[str] = Counter()
    for name in map(printable, names):
        seen[name] += 1
        yield name if seen[name] == 1 else f"{name} ({seen[name]})"


def _with_attacks(made: Detail, place: OwnFolder) -> Detail:
    if not place.exists() or not place.has(attacks.FILE):
        return made
    content = json.loads(place.read(attacks.FILE, MOST_BYTES))
    findings = tuple(dict(one) for one in content["findings"][:_MOST_FINDINGS])
    for one in findings:  # Of the shape that is shown.
        _whole(one["round"])
        for measure in one["measures"]:
            _finite(measure["value"])
    apart = content["does_not_apply"][:_MOST_FINDINGS]
    idle = tuple(f"{printable(one['attack'])}: {printable(one['why'], _LONG)}" for one in apart)
    return replace(made, findings=findings, idle=idle)


def _with_map(made: Detail, content: Mapping[str, Any]) -> Detail:
    labels = tuple(_whole(label) for label in content["labels"][:_MOST_POINTS])
    panels = tuple(
        Panel(
            printable(panel["name"]),
            tuple(_finite(place) for place in panel["x"][:_MOST_POINTS]),
            tuple(_finite(place) for place in panel["y"][:_MOST_POINTS]),
            known(panel.get("davies_bouldin")),
        )
        for panel in content["panels"][:_MOST_PANELS]
    )
    if any(len(panel.x) != len(labels) or len(panel.y) != len(labels) for panel in panels):
        raise ValueError("panels of different lengths")
    return replace(made, panels=panels, labels=labels)


def known(value: Any) -> float | None:
    """A finite number that can be computed with, or None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= _LARGEST:
        return None
    return float(value)


def _finite(value: Any) -> float:
    found = known(value)
    if found is None:
        raise TypeError(f"{value!r:.40} is no finite number")
    return found


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) > _LARGEST_WHOLE:
        raise TypeError(f"{value!r:.40} is no whole number")
    return value


def _count(value: Any) -> int | None:
    return None if value is None else int(_finite(value))
