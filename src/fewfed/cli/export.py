"""`fewfed export`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fewfed.cli import options as opt
from fewfed.cli.printing import say
from fewfed.trained.export import export
from fewfed.trained.loading import load


def export_model(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    to: Annotated[str, typer.Option(help="onnx, torchscript, state_dict or safetensors.")],
    out: Annotated[Path | None, typer.Option(help="Folder for it; by default beside the run.")] = None,
    site: opt.Site = None,
    client: opt.Client = None,
    network: opt.NetworkFile = None,
    method: opt.MethodFile = "",
    unfinished: opt.Unfinished = False,
    force: opt.Force = False,
    as_json: opt.AsJson = False,
) -> None:
    """Write the model of a run for use elsewhere.

    Example: fewfed export runs/flea-digits-qua-2-seed0 --to onnx --out model
    """
    folder = run.parent / f"{run.resolve().name}-{to}" if out is None else out
    model = load(run, site=site, client=client, network=network, method=method, unfinished=unfinished)
    file = export(model, to, folder, force=force)
    say(f"{file}: README.md beside it says what it takes and how to load it")
    if as_json:
        print(json.dumps({"file": str(file), "to": to, "site": model.site, "classes": list(model.classes)}))
