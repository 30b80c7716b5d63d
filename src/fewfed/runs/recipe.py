"""A job as a recipe: a configuration and where the data are. Another process, or machine, makes the same job of it.

Nothing of this process is needed for that: no fork, no pickled object. Shapes, labels and first weights that come out
are compared with those the recipe was written for, so that nobody trains on other data by mistake.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fewfed.data.saved import read, save
from fewfed.errors import ConfigError
from fewfed.runs.experiment import Resolved
from fewfed.runs.prepare import Prepared, prepare


@dataclass(frozen=True)
class Recipe:
    """What another process needs to make a job. Files it names must be found there under the same names."""

    config: Mapping[str, Any]
    inputs: Mapping[str, Any]
    """What identifies data and first weights."""
    data: str = ""
    """A file with the user's own data; empty where the configuration says how data are found."""

    def as_json(self) -> dict[str, Any]:
        return {"config": dict(self.config), "inputs": dict(self.inputs), "data": self.data}

    @classmethod
    def from_json(cls, recorded: Mapping[str, Any]) -> Recipe:
        try:
            return cls(dict(recorded["config"]), dict(recorded["inputs"]), str(recorded["data"]))
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"a recipe is damaged ({error}): expected what `recipe_of` wrote") from error

    def prepare(self) -> Prepared:
        """The job, made anew; raise where it is not the one the recipe was written for."""
        own = read(Path(self.data)) if self.data else None
        made = prepare(Resolved.from_json(self.config), data=own)
        if made.inputs != self.inputs:
            differ = sorted(name for name, value in made.inputs.items() if self.inputs.get(name) != value)
            raise ConfigError(
                f"the recipe leads to another job here, in its {', '.join(differ)}: expected the same files and "
                "versions as where it was written"
            )
        return made


def recipe_of(prepared: Prepared, folder: Path) -> Recipe:
    """The recipe of a prepared run. Data that are the user's own objects are written to `folder`."""
    if prepared.own_network:
        raise ConfigError(
            f"network '{prepared.job.net.name}' is an object of this process, which no other can rebuild: expected a "
            "network by its name"
        )
    file = ""
    if prepared.own_data is not None:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder.resolve() / "data.safetensors"
        save(prepared.own_data, path)
        file = str(path)
    return Recipe(prepared.resolved.as_json(), prepared.inputs, file)
