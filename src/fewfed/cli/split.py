"""`fewfed split`: what a split does to the data, before anything is trained on it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from fewfed.cli import options as opt
from fewfed.cli.printing import out, say
from fewfed.cli.reading import tell_reading
from fewfed.cli.run import lines_of
from fewfed.data.examples import Dataset
from fewfed.data.skew import picture, plot_split
from fewfed.data.splits import Split
from fewfed.runs.experiment import resolve_data
from fewfed.runs.prepare import data_of, manifest_of, parts_of, settled, training_part


@opt.of_experiments(*opt.DATA_FLAGS, "split", "clients", "seed")
def show_split(
    given: opt.Given,
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Draw the client-by-class picture into this file.")
    ] = None,
    shown: Annotated[int, typer.Option("--show", min=1, help="Clients in the tables.")] = 20,
    as_json: opt.AsJson = False,
) -> None:
    """Print sparsity, scarcity, sizes and the class table of a split.

    Example: fewfed split --data digits --split dir:0.1 --clients 40 --plot split.png
    """
    with lines_of(given.file):
        resolved = resolve_data("fedavg", given.values, given.file.methods if given.file else ())
        loaded = data_of(resolved)
        experiment = settled(resolved, loaded).experiment
        dataset = training_part(loaded, experiment)
        made, held_back = parts_of(dataset, experiment)
    tell_reading(loaded.reading)
    labels, names = dataset.split_labels, dataset.split_names
    counts = made.counts(labels, len(names))
    manifest = manifest_of(dataset, made, held_back, loaded.reading)
    sizes = manifest["sizes"]
    say(
        f"{dataset.name}, {manifest['rule']}, seed {manifest['seed']}: "
        f"{manifest['clients']} clients, {manifest['rows']} rows"
        + (f" to train on, {len(held_back.order)} held back for validation" if held_back else "")
    )
    say(f"sparsity {manifest['sparsity']:.3f} (empty client-class pairs), scarcity {manifest['scarcity']:.3f} "
              f"(clients with fewer than 50 rows), {manifest['mean_classes']:.2f} classes a client")  # fmt: skip
    say(
        f"client sizes: smallest {sizes['smallest']}, median {sizes['median']:g}, mean {sizes['mean']:.1f}, "
        f"largest {sizes['largest']}"
    )
    say(f"digest {manifest['digest'][:16]}" + (f"; {manifest['note']}" if manifest["note"] else ""))
    table = Table(title="rows of each class")
    table.add_column(experiment.split if experiment.split in dataset.groups else "client", justify="right")
    for name in names[:20]:
        table.add_column(escape(name), justify="right")
    table.add_column("all", justify="right")
    for client, row in enumerate(counts[:shown]):
        table.add_row(
            escape(_name(dataset, made, client)), *(str(count) if count else "·" for count in row[:20]), str(row.sum())
        )
    out.print(table)
    if len(counts) > shown:
        say(f"{len(counts) - shown} more clients: --show N")
    out.print(escape(picture(counts, clients=shown)))
    if plot is not None:
        plot_split(counts, plot)
        say(f"picture: {plot}")
    if as_json:
        print(json.dumps(manifest))


def _name(dataset: Dataset, split: Split, client: int) -> str:
    """What a client is called: its site's name where clients are sites, else its number."""
    if split.name not in dataset.groups:
        return str(client)
    return dataset.group_name(split.name, int(dataset.groups[split.name][split.rows(client)[0]]))
