"""A trained model in a folder of its own, for people who do not have fewfed: the file, a README, the blueprint."""

from __future__ import annotations

import json
from pathlib import Path

from fewfed.engine.own_folder import OwnFolder
from fewfed.errors import ConfigError, RunError, did_you_mean
from fewfed.runs.folder import BLUEPRINT, CONFIG
from fewfed.trained.formats import FORMATS
from fewfed.trained.model import TrainedModel
from fewfed.trained.readme import readme

README = "README.md"


def export(model: TrainedModel, to: str, out: Path, *, force: bool = False) -> Path:
    """Write the model into a folder; its file there. Files that are there are only replaced with `force`."""
    if to not in FORMATS:
        raise ConfigError(did_you_mean("format", str(to), FORMATS), key="to", value=to)
    format = FORMATS[to]
    names = (format.file, README, BLUEPRINT)
    refuse_run_folder(out)
    if not force:
        refuse_existing(*(out / name for name in names))
    blueprint = model.blueprint.alone(model.site) if model.blueprint.of_site else model.blueprint
    contents = (
        format.written(model),
        readme(model, to).encode(),
        (json.dumps(blueprint.as_json(), indent=1) + "\n").encode(),
    )
    folder = OwnFolder(out)
    folder.make()
    for name, content in zip(names, contents, strict=True):
        folder.write(name, content)
    return out / format.file


def refuse_run_folder(out: Path) -> None:
    """Raise where a folder holds a run, whose files have the same names."""
    if (out / CONFIG).exists():
        raise RunError(f"'{out}' holds a run: choose another folder with --out")


def refuse_existing(*paths: Path) -> None:
    """Raise where a file is there already."""
    for path in paths:
        if path.exists() or path.is_symlink():
            raise RunError(f"'{path}' is there already: choose another --out, or replace it with --force")
