"""Run folders as they are found: finished, unfinished or damaged, of this version or another.

They are only read. No code that a folder names is run, no link in one is followed, and whatever a file holds, the worst
that comes of it is a run that counts as damaged.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from fewfed.data.readers.options import DataOptions
from fewfed.engine.own_folder import OwnFolder
from fewfed.engine.storage import Damaged
from fewfed.errors import FewfedError, RunError, in_one_line
from fewfed.methods.registry import choose
from fewfed.metric import METRICS as KNOWN
from fewfed.metric import metric_of
from fewfed.report.rendering import printable
from fewfed.runs.experiment import RECORDS, Experiment
from fewfed.runs.folder import CONFIG, METRICS, RESULT, SPLIT
from fewfed.runs.results import Leak, Summary, last_leak
from fewfed.runs.seals import CHAIN, DIGEST, MOST_BYTES, parsed, read_sealed, unlinked
from fewfed.spelling import Spelled, spelled
from fewfed.training import Training
from fewfed.version import __version__

State = Literal["finished", "unfinished", "damaged"]

DEEPEST = 6
"""Folders below one that is named in which runs are looked for."""
_SHOWN_APART = ("data", "split", "rounds", "seed")
"""Fields of an experiment that every table has a column for."""
_WITHOUT_EFFECT = ("executor", "checkpoint_seconds", "most_bytes", "most_ratio", "rows_public", "leak", *RECORDS)
"""Fields that say how something is computed, what is allowed or what is measured beside; not what is computed."""
_DIGITS = 8
_DICE = "dice"
_LARGEST_WHOLE, _LARGEST = 1 << 53, 1e100
"""No run writes larger numbers, and whoever computes with these need not fear for their squares."""


@dataclass(frozen=True)
class Found:
    """One run folder, as far as it can be read."""

    folder: Path
    state: State
    problem: str = ""
    """What is wrong with it."""
    method: str = ""
    preset: str = ""
    data: str = ""
    split: str = ""
    clients: int | None = None
    rounds: int | None = None
    """How many were asked for."""
    done: int = 0
    seed: int | None = None
    metric: str = "accuracy"
    """What the run is judged by."""
    summary: Summary | None = None
    """That metric over the rounds so far."""
    mb_up: float | None = None
    mb_down: float | None = None
    leak: Leak | None = None
    """What could last be reconstructed of shared rows."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Whatever else decides what is computed, by name."""
    curve: tuple[tuple[int, float], ...] = ()
    """Evaluated rounds, and what the metric was in them."""
    without_number: int = 0
    """Evaluated rounds in which the metric was NaN or infinite, as the loss of a run that diverged: in no curve."""


def survey(folders: Sequence[Path]) -> list[Found]:
    """Every run in these folders and below them, each once."""
    found: dict[Path, Path] = {}
    for folder in folders:
        here = list(_runs_below(folder, DEEPEST))
        if not here:
            raise RunError(f"'{folder}' holds no run: expected a run folder, or one with run folders below it")
        for each in here:
            found.setdefault(each.resolve(), each)
    # One that was deleted while others were read is no damaged run.
    return [run for run in map(look_at, found.values()) if os.path.lexists(run.folder)]


Rounds = Callable[[OwnFolder, str], tuple[list[dict[str, Any]], str]]
"""Reads the metrics of every finished round, and the digest of the last, given that of the configuration."""


def look_at(folder: Path, rounds: Rounds | None = None) -> Found:
    """What one run folder holds. `rounds`: how its metrics are read, for somebody who looks again and again."""
    blank = Found(folder, "damaged")
    try:
        own = OwnFolder(folder)
        version, config, chain = _config(own)
        blank = _described(blank, config)
        records, chain = (rounds or _records)(own, chain)
        blank = dataclasses.replace(blank, done=len(records), clients=_clients(own) or blank.clients)
        finished = _finished(own, chain)
        made = _summed(blank, records) if finished is None else _concluded(blank, finished)
        made = dataclasses.replace(
            made,
            curve=_curve(records, blank.metric),
            without_number=sum(is_no_number(record.get(blank.metric)) for record in records),
            settings=_settings(version, config),
            metric=_headline(blank.metric, records),
        )
    except (FewfedError, OSError) as error:
        return dataclasses.replace(blank, problem=in_one_line(error))
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        why = f"'{folder}' holds something else than a run writes ({type(error).__name__}: {in_one_line(error):.100})"
        return dataclasses.replace(blank, problem=why)
    return made


def _runs_below(folder: Path, depth: int) -> Iterator[Path]:
    """Run folders in the order of their names; hidden folders and links are passed by."""
    try:
        if any(os.path.lexists(folder / name) for name in (CONFIG, RESULT, METRICS)):
            yield folder
            return
        with os.scandir(folder) as entries:
            below = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except (OSError, ValueError) as error:
        if depth == DEEPEST:  # One that was named.
            raise RunError(f"cannot look into '{folder}' ({in_one_line(error)}): expected a folder of runs") from error
        if not isinstance(error, FileNotFoundError):  # Else it has just been deleted.
            yield folder  # What cannot be read counts as damaged, with the reason why.
        return
    for name in below:
        if depth and not name.startswith("."):
            yield from _runs_below(folder / name, depth - 1)


def _config(own: OwnFolder) -> tuple[str, dict[str, Any], str]:
    """The version that wrote the folder, the configuration, and the digest that the metrics continue from, if any."""
    if not own.has(CONFIG):
        raise Damaged(f"'{own.path / CONFIG}' is missing")
    config = parsed(own.read(CONFIG, MOST_BYTES), own / CONFIG)
    version = config.get("fewfed")
    if not isinstance(version, str):
        raise Damaged(f"'{own.path / CONFIG}' is damaged: it names no version of fewfed")
    if DIGEST not in config and version != __version__:  # Before 0.2 files had no digests.
        return version, config, ""
    return version, *read_sealed(own / CONFIG)


def _records(own: OwnFolder, chain: str) -> tuple[list[dict[str, Any]], str]:
    """The metrics of every finished round, and the digest of the last."""
    found = []
    # A run that is being written, or was killed, may have a last line without its end.
    for line in own.read(METRICS).split(b"\n")[:-1] if own.has(METRICS) else []:
        if chain:
            record, chain = unlinked(line, chain, own / METRICS)
        else:
            record = parsed(line, own / METRICS)
            record.pop(CHAIN, None)
        found.append(record)
    return found, chain


def _finished(own: OwnFolder, chain: str) -> dict[str, Any] | None:
    """The result, if the run came to its end and the result fits the metrics."""
    if not own.has(RESULT):
        return None
    if not chain:
        return parsed(own.read(RESULT, MOST_BYTES), own / RESULT)
    result, _ = read_sealed(own / RESULT)
    files = result.get("files")
    if not isinstance(files, dict) or files.get(METRICS) != chain:
        raise Damaged(f"'{own.path / RESULT}' was written for other metrics than those in {METRICS}")
    return result


def _described(blank: Found, config: Mapping[str, Any]) -> Found:
    experiment = config["experiment"]
    written = spelled(str(config["method"]))
    return dataclasses.replace(
        blank,
        method=printable(config.get("label") or _label(written)),
        preset=printable(_preset(written)),
        data=printable(Path(str(experiment["data"])).name),
        split=printable(experiment["split"]),
        clients=_whole(experiment["clients"]) or None,
        rounds=_whole(experiment["rounds"]),
        seed=_whole(experiment["seed"]),
        metric=metric if (metric := str(experiment.get("metric", ""))) in KNOWN else "accuracy",
    )


def _label(written: Spelled) -> str:
    """A method by its name alone; one in a file by that of the file, which is not opened."""
    name = Path(written.name).stem if written.is_file else written.name
    return f"{name}({_label(written.inner)})" if written.inner else name


def _preset(written: Spelled) -> str:
    return written.preset or (_preset(written.inner) if written.inner else "paper")


def _clients(own: OwnFolder) -> int | None:
    """How many clients the split has."""
    return _whole(parsed(own.read(SPLIT, MOST_BYTES), own / SPLIT)["clients"]) if own.has(SPLIT) else None


def _concluded(blank: Found, result: Mapping[str, Any]) -> Found:
    # Before there were other metrics every run was judged by its accuracy.
    summary, traffic = result["accuracy" if blank.metric == "accuracy" else "chosen"], result["bytes"]
    return dataclasses.replace(
        blank,
        state="finished",
        method=printable(result["method"]),
        preset=printable(result["preset"]),
        clients=_whole(result["clients"]),
        # Between sites whose policies keep scores at home nothing was measured.
        summary=_summary([summary[name] for name in ("best", "last", "last10")]),
        mb_up=_number(traffic["up"]) / 1e6,
        mb_down=_number(traffic["down"]) / 1e6,
        leak=_leak(Leak(**result["leak"])) if result.get("leak") else None,
    )


def _summary(values: Sequence[Any]) -> Summary | None:
    """None where nothing was measured, and where what was measured is no number: half of it would flatter."""
    if values[1] is None or any(is_no_number(value) for value in values):
        return None
    return Summary(*(_number(value) for value in values))


def _summed(blank: Found, records: Sequence[Mapping[str, Any]]) -> Found:
    curve = [value for _, value in _curve(records, blank.metric)]
    diverged = any(is_no_number(record.get(blank.metric)) for record in records)
    return dataclasses.replace(
        blank,
        state="unfinished",
        summary=Summary.of(curve, metric=metric_of(blank.metric)) if curve and not diverged else None,
        mb_up=sum(_number(record["bytes"]["up"]) for record in records) / 1e6,
        mb_down=sum(_number(record["bytes"]["down"]) for record in records) / 1e6,
        leak=_leak(last_leak(records)),
    )


def _leak(found: Leak | None) -> Leak | None:
    """Refuses what are no numbers."""
    return found and dataclasses.replace(found, r2=_number(found.r2), reidentified=_number(found.reidentified))


def _curve(records: Sequence[Mapping[str, Any]], metric: str) -> tuple[tuple[int, float], ...]:
    return tuple(
        (_whole(record["round"]), _number(record[metric]))
        for record in records
        if record.get(metric) is not None and not is_no_number(record[metric])
    )


def is_no_number(value: Any) -> bool:
    """What a run writes that diverged; anything else that is no number is damage."""
    return isinstance(value, float) and not math.isfinite(value)


def _headline(metric: str, records: Sequence[Mapping[str, Any]]) -> str:
    """What the numbers are: where images are segmented, `accuracy` is their Dice, and a reader takes it for something
    else under that name."""
    segments = any(isinstance(record.get(_DICE), (int, float)) for record in records)
    return _DICE if metric == "accuracy" and segments else metric


def _settings(version: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Everything but the seed that decides what is computed; what an older version did not know has its default."""
    parts: dict[str, Any] = {"experiment": Experiment(), "training": Training(), "data_options": DataOptions()}
    found: dict[str, Any] = {}
    for part, defaults in parts.items():
        known = json.loads(json.dumps(dataclasses.asdict(defaults)))  # As it would be read back.
        # What only another version knows cannot be compared; that it is another version is said.
        values = {
            name: value for name, value in config.get(part, {}).items() if name in known or version == __version__
        }
        values = {**known, **values}
        found |= {name: value for name, value in values.items() if name not in (*_SHOWN_APART, *_WITHOUT_EFFECT)}
    for name, value in _fields(version, config).items():
        found[f"method.{name}" if name in found else name] = value
    for executor, options in config.get("executors", {}).items():
        found |= {f"{executor}.{name}": value for name, value in options.items()}
    return {**found, **_contents(config), "fewfed": version}


def _fields(version: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """The method's fields: all of them where it is one of this package's and version, else those that were set."""
    spec, given = str(config["method"]), dict(config["method_fields"])
    if version == __version__ and not spelled(spec).files:
        found: dict[str, Any] = {}
        for depth, layer in enumerate(choose(spec, given).method.layers):
            names = [each.name for each in dataclasses.fields(layer) if each.init]
            values = {name: getattr(layer, name) for name in names if name != "inner"}
            found |= {"inner." * depth + name: value for name, value in values.items()}
        return found
    return {name: _read(value) for name, value in given.items()}


def _contents(config: Mapping[str, Any]) -> dict[str, Any]:
    """What tells files of the same name apart: a few letters of their digests."""
    inputs = config.get("inputs", {})
    found = {
        f"content of {part}": str(inputs[part])[:_DIGITS] for part in ("data", "split", "network") if inputs.get(part)
    }
    names = [Path(file).name for file in spelled(str(config["method"])).files]
    digests = [str(digest)[:_DIGITS] for digest in inputs.get("code", [])]
    if names:
        found["method file"] = ", ".join(f"{name} {digest}" for name, digest in zip(names, digests, strict=True))
    return found


def _read(value: Any) -> Any:
    """A value that was given on a command line, as the number it stands for."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) > _LARGEST_WHOLE:
        raise TypeError(f"{value!r:.40} is no whole number")
    return value


def _number(value: Any) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not abs(value) <= _LARGEST:
        raise TypeError(f"{value!r:.40} is no finite number")
    return float(value)
