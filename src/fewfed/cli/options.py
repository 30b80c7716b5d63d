"""Options that several commands share, and how flags, --set and a TOML file become one set of values."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from fewfed.config_file import ConfigFile, read
from fewfed.errors import ConfigError

Data = Annotated[str | None, typer.Option("--data", help="Data set by name, or a path to your own.")]
Split = Annotated[
    str | None, typer.Option("--split", help="iid, qua:Q, dir:MU, dirm:MU, exact:N:Q, size:BETA, subject...")
]
Clients = Annotated[int | None, typer.Option("--clients", help="Number of clients; 0 = all of a natural split.")]
Cohort = Annotated[float | None, typer.Option("--cohort", help="Clients a round: fraction below 1, or a count.")]
Rounds = Annotated[int | None, typer.Option("--rounds", help="Rounds.")]
Epochs = Annotated[int | None, typer.Option("--epochs", help="Local epochs.")]
BatchSize = Annotated[int | None, typer.Option("--batch", help="Rows of a local batch.")]
OptimizerName = Annotated[str | None, typer.Option("--optimizer", help="sgd, adam or adamw.")]
Rate = Annotated[float | None, typer.Option("--lr", help="Learning rate of the first round.")]
Seed = Annotated[int | None, typer.Option("--seed", help="Seed of everything random.")]
ExecutorName = Annotated[str | None, typer.Option("--executor", help="auto, sequential, workers or cuda.")]
PrecisionName = Annotated[str | None, typer.Option("--precision", help="cuda: float32, tf32 or bf16.")]
Exact = Annotated[bool | None, typer.Option("--exact", help="No choices by timing, which change how numbers round.")]
NetworkName = Annotated[str | None, typer.Option("--network", help="Network by name; auto = the papers' choice.")]
Out = Annotated[Path | None, typer.Option("--out", help="Folder for the results.")]
AsJson = Annotated[bool, typer.Option("--json", help="Last line of standard output: one JSON object.")]
Sets = Annotated[list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="Any field. Repeatable.")]
Config = Annotated[Path | None, typer.Option("--config", help="A TOML file; flags win over it.")]


@dataclass(frozen=True)
class Given:
    """What the user asked for, from all places."""

    values: dict[str, Any]
    file: ConfigFile | None


def gather(config: Path | None, sets: list[str] | None, **flags: Any) -> Given:
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
