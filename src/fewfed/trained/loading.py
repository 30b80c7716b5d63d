"""From a run folder to a trained model. The folder may be somebody else's: nothing in it decides which code runs."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fewfed import networks, tree
from fewfed.data.examples import Examples
from fewfed.data.federation import GeneratedFederation
from fewfed.data.limits import Limits
from fewfed.data.readers.options import DataOptions
from fewfed.engine import asking
from fewfed.engine.client_store import ClientStore
from fewfed.engine.homes import state_in
from fewfed.engine.job import Job
from fewfed.engine.threads import one_thread
from fewfed.errors import ConfigError, RunError, did_you_mean
from fewfed.network import Network
from fewfed.plan import Plan
from fewfed.runs import given
from fewfed.runs.blueprint import Blueprint
from fewfed.runs.experiment import Resolved
from fewfed.runs.first_model import first_model
from fewfed.runs.folder import RunFolder
from fewfed.runs.identity import refuse_other_inputs, weights_of
from fewfed.runs.prepare import seed_of_weights
from fewfed.runs.user_code import code_of, is_known, method_files, network_file
from fewfed.settings import make
from fewfed.trained.model import TrainedModel
from fewfed.trained.preprocessing import Present
from fewfed.tree import Tree

Where = str | PathLike[str]


def load(
    run: Where,
    *,
    site: str | None = None,
    client: int | None = None,
    network: nn.Module | Network | Where | None = None,
    method: Where = "",
    unfinished: bool = False,
) -> TrainedModel:
    """The model that a run ended with, ready for rows as they are in your files.

    `site` (or `client`, its number): whose, where each site has a model or a scaling of its own. `network`: your own
    module, where the run was given one as an object, or the file again that the run has its network from. `method`: the
    run's method named again, where it is a file that you have not run before. `unfinished`: the model of the last
    checkpoint, where the run has not come to its end.
    """
    path, spec = given.folder_of(run, "run"), given.method_of(method)
    own = given.own_of(None, network).network
    named = os.fspath(network) if isinstance(network, (str, PathLike)) else None
    return Opened.at(path, network=own or named, method=spec, unfinished=unfinished).model(site, client)


@dataclass(frozen=True)
class Opened:
    """A run folder whose model is wanted, and what the user says about it."""

    folder: RunFolder
    config: Mapping[str, Any]
    blueprint: Blueprint
    options: DataOptions
    network: nn.Module | Network | str | None
    method: str
    unfinished: bool

    @classmethod
    def at(
        cls,
        path: Path,
        *,
        network: nn.Module | Network | str | None = None,
        method: str = "",
        unfinished: bool = False,
    ) -> Opened:
        folder, config = RunFolder.open(path, any_version=True)
        blueprint = Blueprint.from_json(folder.blueprint())
        options = make(DataOptions, dict(config.get("data_options") or {}), "data_options")
        if folder.result() is None and not unfinished:
            raise RunError(
                f"the run in '{path}' is not finished: 'fewfed resume {path}' ends it, or ask for the model of its "
                "last checkpoint with --unfinished, in Python unfinished=True"
            )
        return cls(folder, config, blueprint, options, network, method, unfinished)

    def model(self, site: str | None = None, client: int | None = None) -> TrainedModel:
        """The model of everybody, or of one site."""
        number = self._client(site, client)
        tree_of_model, net = self._weights(number)
        name = self.blueprint.sites[number] if self.blueprint.sites and number is not None else ""
        presents = Present(self._job(net).method, tree_of_model) if self.blueprint.presents else None
        return TrainedModel(net, tree_of_model, self.blueprint, site=name, presents=presents, options=self.options)

    def _client(self, site: str | None, client: int | None) -> int | None:
        """The number of the client that is meant; None where it does not matter."""
        blueprint, path = self.blueprint, self.folder.path
        if site is not None and client is not None:
            raise ConfigError("both site and client are given: expected one of them")
        if site is not None:
            return blueprint.client_called(str(site))
        if client is not None:
            if isinstance(client, bool) or not isinstance(client, int) or not 0 <= client < blueprint.clients:
                raise ConfigError(f"client = {client!r:.40}: expected a number from 0 to {blueprint.clients - 1}")
            return client
        if blueprint.of_site:
            own = "a model" if blueprint.personal else "a scaling of inputs"
            raise ConfigError(
                f"every site of the run in '{path}' has {own} of its own: say whose you want with --site NAME or "
                f"--client NUMBER, in Python site= or client=; it has {blueprint.told_sites}"
            )
        return None

    def _weights(self, client: int | None) -> tuple[Tree, Network]:
        """The tree of the model that predicts, and its network."""
        if self.blueprint.personal or self.unfinished:
            return self._from_checkpoint(client)
        model = self.folder.model()
        return model, self._fitting(model)

    def _from_checkpoint(self, client: int | None) -> tuple[Tree, Network]:
        last = self.folder.last_checkpoint()
        if last.server is None:
            raise RunError(f"the run in '{self.folder.path}' has no checkpoint yet: there is no model to load")
        net = self._network(seed_of_weights(self._resolved().experiment))
        job = self._job(net)
        if not self.blueprint.personal or client is None:
            return asking.predictor(job, last.server, {}), net
        state = state_in(ClientStore(self.folder.clients).named_in(last.states, client))
        if state is None:
            state = asking.client_init(self._job(self._first(net, client)))
        return asking.predictor(job, last.server, state), net

    def _first(self, net: Network, client: int) -> Network:
        """The network with the weights that the run began with, which are those of who never took part."""
        start = self._resolved().experiment.start_from
        if start:
            net = net.starting_from(first_model(Path(start), net))
        inputs = self.config.get("inputs")
        if not isinstance(inputs, dict) or weights_of(net) != inputs.get("weights"):
            raise RunError(
                f"client {client} never took part in '{self.folder.path}' and has the weights that the run began with, "
                "which the network given does not have: expected the module as it was before training"
            )
        return net

    def _resolved(self) -> Resolved:
        return Resolved.from_json(self.config)

    def _job(self, net: Network) -> Job:
        """Enough of a job to ask its method about models. A method's file is run only where the user named it."""
        resolved = self._resolved()
        if self.method:
            resolved = resolved.named(self.method)
        code = code_of(resolved.spec)
        for file, digest in zip(method_files(resolved.spec), code, strict=True):
            if not self.method and not is_known(digest):
                raise self._unknown(file, "method", resolved.spec)
        refuse_other_inputs({"code": code}, self.folder, self.config)
        blueprint = self.blueprint
        nobody = Examples(torch.empty(0, *blueprint.shape), torch.empty(0, dtype=torch.long))
        federation = GeneratedFederation(blueprint.clients, lambda _: nobody, nobody, blueprint.outputs)
        training = resolved.training
        plan = Plan(resolved.experiment.seed, training.batch, training.batch_rule, training.sampling)
        return Job(resolved.chosen.method, net, blueprint.make_task(), federation, training, plan)

    def _fitting(self, model: Tree) -> Network:
        """The network, made only after it is known to fit the weights, so that no forged size takes memory."""
        found = {path: tuple(leaf.shape) for path, leaf in tree.leaves(model)}
        if self.network is None and self.blueprint.network.origin == "built-in":
            self._refuse_other(self._forms(), found)
        net = self._network(0)
        self._refuse_other({path: tuple(leaf.shape) for path, leaf in tree.leaves(net.model())}, found)
        return net

    def _refuse_other(self, expected: Mapping[str, tuple[int, ...]], found: Mapping[str, tuple[int, ...]]) -> None:
        for path, shape in expected.items():
            if found.get(path) != shape:
                name = self.blueprint.network.name
                here = "missing" if path not in found else f"of shape {found[path]}"
                raise RunError(
                    f"the model in '{self.folder.path}' does not fit network '{name}': '{path}' is {here}, expected "
                    f"{shape}; give the network that the run was made with"
                )

    def _network(self, seed: int) -> Network:
        recipe, own = self.blueprint.network, self.network
        if isinstance(own, Network):
            return own
        if isinstance(own, nn.Module):
            with one_thread():
                return Network.of(own, example=torch.zeros(1, *self.blueprint.shape, dtype=_dtype(own)))
        if own is not None and recipe.origin != "file":
            raise ConfigError(f"network = '{own:.80}', but the run has its network from no file: leave it out")
        if recipe.origin == "object":
            raise ConfigError(
                f"the run in '{self.folder.path}' was given its network as an object, which no folder can keep: give "
                "it again as network= in Python"
            )
        if recipe.origin == "built-in":
            self._forms()
        name = recipe.name if recipe.origin == "built-in" else self._file(own)
        with one_thread():
            return networks.build(name, self.blueprint.shape, self.blueprint.outputs, seed)

    def _forms(self) -> dict[str, tuple[int, ...]]:
        """The shape of everything in a model of a network by name. What a forged folder claims takes no memory yet."""
        name = self.blueprint.network.name
        if name not in networks.names():
            raise ConfigError(did_you_mean("network", name, networks.names()))
        forms = networks.forms(name, self.blueprint.shape, self.blueprint.outputs)
        bytes_needed = 4 * sum(math.prod(shape) for shape in forms.values())
        Limits().check_total(f"network '{name}' for inputs of shape {self.blueprint.shape}", bytes_needed)
        return forms

    def _file(self, named: str | None) -> str:
        """The file that the network is in, where the user has named it, now or before."""
        recipe = self.blueprint.network
        name = named or recipe.name
        digest = network_file(name)
        if digest != recipe.digest:
            raise RunError(
                f"'{name}' is not the file that the network of '{self.folder.path}' was made by: put it back as it "
                "was, or name it where it lies now with --network, in Python network="
            )
        if not named and not is_known(digest):
            raise self._unknown(name, "network", name)
        return name

    def _unknown(self, file: str, kind: str, name: str) -> RunError:
        return RunError(
            f"'{self.folder.path}' asks to run the code in '{file}', which you have not run before: read it, and if "
            f"you trust it name it with --{kind} {name}, in Python as {kind}="
        )


def _dtype(module: nn.Module) -> torch.dtype:
    """The type of a module's weights, which its inputs must have."""
    kinds = (weight.dtype for weight in module.parameters() if weight.is_floating_point())
    return next(kinds, torch.get_default_dtype())
