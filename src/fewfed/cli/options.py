"""Options that several commands share, declared once, and how flags, --set and a TOML file become one set of values."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from fewfed.errors import ConfigError
from fewfed.runs.config_file import ConfigFile, read

Out = Annotated[Path | None, typer.Option("--out", help="Folder for the results.")]
AsJson = Annotated[bool, typer.Option("--json", help="Last line of standard output: one JSON object.")]
Site = Annotated[str | None, typer.Option("--site", help="Whose model, or scaling, where each site has its own.")]
Client = Annotated[int | None, typer.Option("--client", help="The same by the number of the client, from 0.")]
NetworkFile = Annotated[str | None, typer.Option("--network", help="The run's network file again: net.py:build.")]
MethodFile = Annotated[str, typer.Option("--method", help="The run's method file again, if you have not run it yet.")]
Unfinished = Annotated[bool, typer.Option("--unfinished", help="The model of the last checkpoint will do.")]
Track = Annotated[
    list[str] | None, typer.Option("--track", help="tensorboard, mlflow or wandb: show every round there. Repeatable.")
]
Force = Annotated[bool, typer.Option("--force", help="Replace files that are there.")]


@dataclass(frozen=True)
class Flag:
    """A flag of a command, and the setting it sets."""

    kind: Any
    help: str
    setting: str = ""
    """Where it is called otherwise than the flag."""


FLAGS: Mapping[str, Flag] = {
    "data": Flag(str, "Data set by name, or a path to your own."),
    "label": Flag(str, "Own data: the column of labels.", "data_options.label"),
    "site": Flag(str, "Own data: the column that says whose a row is.", "data_options.site"),
    "ignore": Flag(str, "Own data: columns to leave out, NAME,NAME...", "data_options.ignore"),
    "missing": Flag(str, "Own data, missing values: refuse, mean or drop (the row).", "data_options.missing"),
    "test_data": Flag(str, "Own data: a file or folder with the test part.", "data_options.test_data"),
    "test_column": Flag(str, "Own data: the column that marks test rows.", "data_options.test_column"),
    "size": Flag(int, "Images: resize to so many pixels a side.", "data_options.image_size"),
    "split": Flag(str, "iid, qua:Q, dir:MU, dirm:MU, exact:N:Q, size:BETA, site, subject, file:PATH..."),
    "clients": Flag(int, "Number of clients; 0 = all of a natural split."),
    "cohort": Flag(float, "Clients a round: fraction below 1, or a count."),
    "rounds": Flag(int, "Rounds."),
    "epochs": Flag(int, "Local epochs."),
    "batch": Flag(int, "Rows of a local batch."),
    "optimizer": Flag(str, "sgd, adam or adamw."),
    "lr": Flag(float, "Learning rate of the first round."),
    "weighting": Flag(str, "What clients weigh in means: samples or uniform."),
    "seed": Flag(int, "Seed of everything random."),
    "network": Flag(str, "Network by name, or your own as net.py:build; auto = the papers' choice."),
    "start_from": Flag(str, "Folder of a finished run whose model is the first one."),
    "executor": Flag(str, "auto, sequential, workers or cuda."),
    "precision": Flag(str, "cuda: float32, tf32 or bf16.", "cuda.precision"),
    "metric": Flag(str, "What is compared: accuracy, balanced_accuracy, macro_f1, auc, loss..."),
    "robust": Flag(str, "Combination against dishonest clients: clipped, median, trimmed, krum or multi-krum."),
    "norm_bound": Flag(str, "Refuse packets that change more: a length, or 3x = three medians."),
    "row_filter": Flag(float, "Leave out shared rows so many times further from their class than usual."),
    "attack": Flag(str, "Simulated: label-flip, sign-flip, boost, noise, row-labels or row-features."),
    "attackers": Flag(str, "Simulated: who attacks, a part of all clients (0.2) or numbers (0,3,10-19)."),
    "policy": Flag(str, "A TOML file of what sites allow to leave them."),
    "record": Flag(str, "packets = keep what is sent, of rounds, clients and MB by --set record_rounds=1,10,last ..."),
    "exact": Flag(bool, "No choices by timing, which change how numbers round."),
}
"""Settings that have a flag of their own; every other one is set by --set."""
DATA_FLAGS = ("data", "label", "site", "ignore", "missing", "test_data", "test_column", "size")
"""Those of every command that reads data."""


@dataclass(frozen=True)
class Given:
    """What the user asked for, from all places."""

    values: dict[str, Any]
    file: ConfigFile | None


def of_experiments(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command flags of an experiment (all of them, or those named), --set and --config.

    The command takes what they come to as its argument `given`.
    """
    chosen = names or tuple(FLAGS)

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def call(**arguments: Any) -> None:
            flags = {FLAGS[name].setting or name: arguments.pop(name) for name in chosen}
            given = gather(arguments.pop("config"), arguments.pop("sets"), flags)
            command(given=given, **arguments)

        own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "given"]
        parameters = [*own, *(_parameter(name, FLAGS[name]) for name in chosen), *_COMMON]
        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return call

    return decorate


def gather(config: Path | None, sets: list[str] | None, flags: Mapping[str, Any]) -> Given:
    """A TOML file's values, over them --set, over them flags. A flag left out is None."""
    file = read(config) if config else None
    values = dict(file.values) if file else {}
    stronger: dict[str, Any] = {}
    for text in sets or []:
        name, separator, value = text.partition("=")
        if not separator or not name.strip():
            raise ConfigError(f"--set {text}: expected FIELD=VALUE, as in --set mu=0.1")
        stronger[name.strip()] = value.strip()
    for name, value in flags.items():
        if value is not None:
            stronger.pop(name, None)
            stronger[name] = value
    # `lr` and `training.lr` name the same field and the later of two wins: what is stronger must come last.
    kept = {name: value for name, value in values.items() if name not in stronger}
    return Given({**kept, **stronger}, file.without(stronger) if file else None)


def written(values: Mapping[str, Any]) -> list[str]:
    """Settings as somebody would type them: flags where there are some, else --set."""
    names = {flag.setting or name: f"--{name.replace('_', '-')}" for name, flag in FLAGS.items()}
    words: list[str] = []
    for name, value in values.items():
        known = name if name in names else name.rpartition(".")[2]
        if known in names and FLAGS.get(known, Flag(str, "")).kind is not bool:
            whole = isinstance(value, float) and value.is_integer()
            words += [names[known], str(int(value) if whole else value)]
        else:
            words += ["--set", f"{name}={value}"]
    return words


def number(name: str, value: Any) -> float:
    """A setting that a command needs before an experiment is made of it."""
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ConfigError(f"{name} = '{value}': expected a number", key=name) from None


def _parameter(name: str, flag: Flag) -> inspect.Parameter:
    hint = Annotated[flag.kind | None, typer.Option(f"--{name.replace('_', '-')}", help=flag.help)]  # type: ignore[name-defined]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=hint)


_COMMON = (
    inspect.Parameter(
        "sets",
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[
            list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="Any field. Repeatable.")
        ],
    ),
    inspect.Parameter(
        "config",
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[Path | None, typer.Option("--config", help="A TOML file; flags win over it.")],
    ),
)
