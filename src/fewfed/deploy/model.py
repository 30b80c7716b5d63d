"""Task and network of a federation, as coordinator and sites make them alike: from the offer and the seed, not data.

All code is that of the installed package."""

from __future__ import annotations

import math

from fewfed import networks
from fewfed.deploy.messages import Offer
from fewfed.engine.threads import one_thread
from fewfed.errors import ConfigError, did_you_mean
from fewfed.network import Network
from fewfed.runs.experiment import Experiment, Resolved
from fewfed.runs.prepare import seed_of_weights
from fewfed.spelling import spelled
from fewfed.task import Task
from fewfed.tasks.classification import Classification
from fewfed.tasks.segmentation import Segmentation

MOST_WEIGHTS = 1 << 31
"""Numbers in a model. Whoever asks for more is refused before memory is taken."""


def task_of(offer: Offer) -> Task:
    """What is learnt."""
    if offer.task not in ("classification", "segmentation") or len(offer.classes) < 2:
        raise ConfigError(f"task '{offer.task:.40}' with {len(offer.classes)} classes: expected a known one, from 2 on")
    return Segmentation(len(offer.classes)) if offer.task == "segmentation" else Classification(len(offer.classes))


def network_of(experiment: Experiment, offer: Offer) -> Network:
    """The network with its first weights, which depend on the seed alone."""
    name = experiment.network
    if name == "auto":
        name = "unet" if offer.task == "segmentation" else networks.default_for(experiment.data, offer.shape)
    if name not in networks.names():
        raise ConfigError(did_you_mean("network", name, networks.names()), key="network")
    size = sum(math.prod(shape) for shape in networks.forms(name, offer.shape, len(offer.classes)).values())
    if size > MOST_WEIGHTS:
        raise ConfigError(f"network '{name}' would have {size} weights: expected at most {MOST_WEIGHTS}")
    with one_thread():
        return networks.build(name, offer.shape, len(offer.classes), seed_of_weights(experiment))


def refuse_code(resolved: Resolved) -> None:
    """Raise where a configuration needs code, or weights, that are not in the installed package: no site takes any."""
    experiment = resolved.experiment
    if spelled(resolved.spec).files or any(_names_file(value) for value in resolved.values.values()):
        raise ConfigError(f"method '{resolved.spec:.80}' is code in a file: expected a method of the package by name")
    if _names_file(experiment.network) or ":" in experiment.network:
        raise ConfigError(
            f"network '{experiment.network:.80}' is code in a file: expected one of the package by name", key="network"
        )
    if experiment.start_from:
        raise ConfigError("start_from names a folder of the coordinator's: expected fresh weights in a federation")


def _names_file(value: object) -> bool:
    return isinstance(value, str) and (value.endswith(".py") or ".py:" in value or "/" in value)
