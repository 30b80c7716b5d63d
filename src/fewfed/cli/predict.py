"""`fewfed predict`."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer

from fewfed.cli import options as opt
from fewfed.cli.printing import say, warn
from fewfed.engine import storage
from fewfed.engine.own_folder import OwnFolder
from fewfed.trained.export import refuse_existing
from fewfed.trained.loading import Opened
from fewfed.trained.predictions import Predictions, predict


def show_predictions(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    data: Annotated[Path, typer.Option(help="New rows: .csv, .tsv, .parquet, .npz, an image or a folder of images.")],
    out: Annotated[Path, typer.Option(help="File for the predictions; .npz for masks.")] = Path("predictions.csv"),
    site: opt.Site = None,
    client: opt.Client = None,
    keep: Annotated[str, typer.Option(metavar="COLUMN,...", help="Columns that are copied, such as an id.")] = "",
    network: opt.NetworkFile = None,
    method: opt.MethodFile = "",
    unfinished: opt.Unfinished = False,
    force: opt.Force = False,
    as_json: opt.AsJson = False,
) -> None:
    """Predict the classes of new rows.

    Example: fewfed predict runs/flea-digits-qua-2-seed0 --data new.npz --out predictions.csv
    """
    if not force:
        refuse_existing(out)
    opened = Opened.at(run, network=network, method=method, unfinished=unfinished)
    found = predict(opened, data, site=site, client=client)
    content = found.content([name.strip() for name in keep.split(",") if name.strip()])
    OwnFolder(out.parent).make()
    storage.write(out, content)
    _tell(found, out, as_json)


def _tell(found: Predictions, out: Path, as_json: bool) -> None:
    scores, rows = found.scores(), len(found.chosen)
    counts = found.counts if found.blueprint.task == "classification" else {}
    said = ", ".join(f"{name} {count}" for name, count in list(counts.items())[:20] if count)
    say(f"{rows} rows predicted{': ' + said if said else ''}; {out}")
    if scores is not None:
        say(
            f"accuracy {100 * scores.accuracy:.2f} %, balanced accuracy {100 * scores.balanced_accuracy:.2f} % on "
            f"{scores.rows} labelled rows"
        )
        if scores.unknown:
            warn(f"note: {scores.unknown} rows have a label that is none of the model's classes and are not counted")
    if as_json:
        scored = {} if scores is None else dataclasses.asdict(scores)
        print(json.dumps({"rows": rows, "out": str(out), "predicted": counts, "scores": scored}))
