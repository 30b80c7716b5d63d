"""What is needed beside the weights to rebuild a run's model and to use it on new rows."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np

from fewfed.data.examples import Dataset
from fewfed.data.raw_inputs import RawInputs
from fewfed.data.scaling import Scaling
from fewfed.data.splits import Split
from fewfed.engine.job import Job
from fewfed.errors import DataError, FewfedError
from fewfed.method import Method
from fewfed.runs.experiment import Resolved
from fewfed.runs.scaling import InputScaling
from fewfed.runs.user_code import network_file
from fewfed.task import Task
from fewfed.tasks.classification import Classification
from fewfed.tasks.segmentation import Segmentation
from fewfed.version import __version__
from fewfed.wrapper import Wrapper

FORMAT = 1
"""Raised when something that reads blueprints would misunderstand those written from then on."""

TaskName = Literal["classification", "segmentation"]
Origin = Literal["built-in", "file", "object"]
TASKS: tuple[TaskName, ...] = ("classification", "segmentation")
ORIGINS: tuple[Origin, ...] = ("built-in", "file", "object")
MOST_AXES = 8
MANY = 20
"""Sites that an error lists."""

T = TypeVar("T", bound=str)


@dataclass(frozen=True)
class NetworkRecipe:
    """How the network is made again."""

    origin: Origin
    """By a name of this package, by code in a file of the user's, or from an object that only the user has."""
    name: str
    digest: str = ""
    """Of the file's content."""


@dataclass(frozen=True)
class Blueprint:
    """A run's model without its weights."""

    task: TaskName
    outputs: int
    """Classes that the network scores, for each row or pixel."""
    class_names: tuple[str, ...]
    """Empty where classes are called by their numbers."""
    shape: tuple[int, ...]
    """Of one input as the network takes it."""
    inputs: RawInputs | None
    """What an input is made from in the user's files; None where nobody could make one from a new file."""
    scaling: InputScaling
    network: NetworkRecipe
    clients: int
    sites: tuple[str, ...] = ()
    """The name of each client, where clients are natural sites."""
    personal: bool = False
    """Whether each client has a model of its own."""
    presents: bool = False
    """Whether the method changes inputs before the model that predicts sees them."""
    label: str = ""
    """The column of labels, where the user named it."""
    site: str = ""
    """The column, or array, that says whose a row is; empty where clients are no natural sites."""

    @property
    def of_site(self) -> bool:
        """Whether it depends on the site what is predicted: by its own model, or its own scaling."""
        return self.personal or bool(self.scaling.sites)

    def client_called(self, site: str) -> int:
        """The number of the client that is a site."""
        if site in self.sites:
            return self.sites.index(site)
        if not self.sites:
            raise DataError(
                f"there is no site '{site:.80}', since the run's clients have numbers and no names: expected "
                f"client = 0 to {self.clients - 1}"
            )
        near = difflib.get_close_matches(site, self.sites, n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"expected one of {self.told_sites}"
        raise DataError(f"unknown site '{site:.80}': {hint}")

    @property
    def told_sites(self) -> str:
        """The sites, or the numbers of clients without names, for an error."""
        if not self.sites:
            return f"clients 0 to {self.clients - 1}"
        more = f" and {len(self.sites) - MANY} more" if len(self.sites) > MANY else ""
        return "sites " + ", ".join(self.sites[:MANY]) + more

    def alone(self, site: str) -> Blueprint:
        """The same for one site's model, without what is known of the others."""
        own = self.scaling.sites.get(site, self.scaling.common)
        scaling = InputScaling(self.scaling.mode, own)
        return dataclasses.replace(self, scaling=scaling, personal=False, clients=1, sites=(site,) if site else ())

    def make_task(self) -> Task:
        return Segmentation(self.outputs) if self.task == "segmentation" else Classification(self.outputs)

    def as_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "fewfed": __version__,
            "task": self.task,
            "outputs": self.outputs,
            "class_names": list(self.class_names),
            "shape": list(self.shape),
            "inputs": None if self.inputs is None else self.inputs.as_json(),
            "scaling": self.scaling.as_json(),
            "network": dataclasses.asdict(self.network),
            "clients": self.clients,
            "sites": list(self.sites),
            "personal": self.personal,
            "presents": self.presents,
            "label": self.label,
            "site": self.site,
        }

    @classmethod
    def from_json(cls, recorded: Mapping[str, Any]) -> Blueprint:
        """What `as_json` wrote; raise where it is something else, before anything is made of it."""
        if not isinstance(recorded, Mapping):
            raise _damaged(f"a {type(recorded).__name__}")
        if recorded.get("format") != FORMAT:
            raise DataError(
                f"a blueprint has format {recorded.get('format')!r:.20}, this is fewfed {__version__}, which knows "
                f"{FORMAT}: use the version that wrote it ({recorded.get('fewfed')!s:.20})"
            )
        try:
            made = cls._read(recorded)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise _damaged(f"{type(error).__name__}: {error}") from error
        made._check()
        return made

    @classmethod
    def _read(cls, recorded: Mapping[str, Any]) -> Blueprint:
        network = recorded["network"]
        inputs = recorded["inputs"]
        return cls(
            task=_one_of(TASKS, recorded["task"]),
            outputs=_whole(recorded["outputs"]),
            class_names=_texts(recorded["class_names"]),
            shape=tuple(_whole(size) for size in recorded["shape"]),
            inputs=None if inputs is None else RawInputs.from_json(inputs),
            scaling=InputScaling.from_json(recorded["scaling"]),
            network=NetworkRecipe(_one_of(ORIGINS, network["origin"]), str(network["name"]), str(network["digest"])),
            clients=_whole(recorded["clients"]),
            sites=_texts(recorded["sites"]),
            personal=recorded["personal"] is True,
            presents=recorded["presents"] is True,
            label=str(recorded["label"]),
            site=str(recorded["site"]),
        )

    def _check(self) -> None:
        """Raise where parts do not fit each other."""
        width = self.shape[0] if self.shape else 0
        own = [self.scaling.common, *self.scaling.sites.values()]
        columns = self.inputs.columns if self.inputs is not None else ()
        wrong = {
            "shape": not 0 < len(self.shape) <= MOST_AXES or min(self.shape) < 1 or math.prod(self.shape) >= 1 << 40,
            "outputs": self.outputs < 2,
            "class_names": bool(self.class_names) and len(self.class_names) != self.outputs,
            "clients": self.clients < 1,
            "sites": bool(self.sites) and len(self.sites) != self.clients,
            "scaling": any(isinstance(one, Scaling) and len(one.mean) != width for one in own),
            "inputs": bool(columns) and (sum(column.width for column in columns),) != self.shape,
        }
        for part, is_wrong in wrong.items():
            if is_wrong:
                raise _damaged(f"its {part} do not fit the rest")


def blueprint_of(
    resolved: Resolved, job: Job, dataset: Dataset, split: Split, scaling: InputScaling, own_network: bool
) -> Blueprint:
    """Of a prepared run. `own_network`: the network is an object of the user's."""
    sites = _sites(dataset, split)
    return Blueprint(
        task=dataset.task,
        outputs=dataset.classes,
        class_names=dataset.class_names,
        shape=dataset.shape,
        inputs=dataset.inputs,
        scaling=scaling,
        network=_recipe(resolved, job, own_network),
        clients=len(split),
        sites=sites,
        personal=bool(job.method.personal_model),
        presents=changes_inputs(job.method),
        label=resolved.options.label if dataset.reading is None else dataset.reading.label,
        site=_site_column(resolved, dataset, split) if sites else "",
    )


def _site_column(resolved: Resolved, dataset: Dataset, split: Split) -> str:
    read = "" if dataset.reading is None else dataset.reading.site
    return read or resolved.options.site or split.name


def changes_inputs(method: Method) -> bool:
    """Whether a method, or one it is around, has something to say about test inputs."""
    silent = (Method.presented, Wrapper.presented)
    return any(type(layer).presented not in silent for layer in method.layers)


def _recipe(resolved: Resolved, job: Job, own_network: bool) -> NetworkRecipe:
    if own_network:
        return NetworkRecipe("object", job.net.name)
    digest = network_file(resolved.experiment.network)
    if digest is not None:
        return NetworkRecipe("file", resolved.experiment.network, digest)
    return NetworkRecipe("built-in", job.net.name)


def _sites(dataset: Dataset, split: Split) -> tuple[str, ...]:
    """The name of each client where every client is one group of the data."""
    ids = dataset.groups.get(split.name)
    if ids is None:
        return ()
    owned = [np.unique(ids[split.rows(client)]) for client in range(len(split))]
    if any(len(groups) != 1 for groups in owned):
        return ()
    return tuple(dataset.group_name(split.name, int(groups[0])) for groups in owned)


def _one_of(known: tuple[T, ...], value: Any) -> T:
    return known[known.index(value)]


def _whole(value: Any) -> int:
    if type(value) is not int or abs(value) >= 1 << 40:
        raise ValueError(f"{value!r:.40} is no whole number of ordinary size")
    return value


def _texts(values: Any) -> tuple[str, ...]:
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise ValueError("a list of names is none")
    return tuple(values)


def _damaged(what: str) -> FewfedError:
    return DataError(f"a blueprint is damaged ({what:.200}): expected what 'fewfed run' wrote")
