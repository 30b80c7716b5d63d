"""From a run folder to a trained model. The folder may be somebody else's: nothing in it decides which code runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fewfed.data.examples import Examples
from fewfed.data.federation import GeneratedFederation
from fewfed.data.readers.options import DataOptions
from fewfed.engine import asking
from fewfed.engine.client_store import ClientStore
from fewfed.engine.homes import state_in
from fewfed.engine.job import Job
from fewfed.errors import ConfigError, RunError
from fewfed.network import Network
from fewfed.plan import Plan
from fewfed.runs import given
from fewfed.runs.blueprint import Blueprint
from fewfed.runs.experiment import Resolved
from fewfed.runs.first_model import first_model
from fewfed.runs.folder import RunFolder
from fewfed.runs.identity import refuse_other_inputs, weights_of
from fewfed.runs.prepare import seed_of_weights
from fewfed.runs.user_code import code_of, is_known, method_files
from fewfed.settings import make
from fewfed.trained.model import TrainedModel
from fewfed.trained.preprocessing import Present
from fewfed.trained.rebuilding import Rebuild, unknown_code
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
    rebuild: Rebuild
    method: str
    finished: bool

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
        finished = folder.result() is not None
        if not finished and not unfinished:
            raise RunError(
                f"the run in '{path}' is not finished: 'fewfed resume {path}' ends it, or ask for the model of its "
                "last checkpoint with --unfinished, in Python unfinished=True"
            )
        return cls(folder, config, blueprint, options, Rebuild(blueprint, network, path), method, finished)

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
        if self.blueprint.personal or not self.finished:
            return self._from_checkpoint(client)
        model = self.folder.model()
        return model, self.rebuild.fitting(model)

    def _from_checkpoint(self, client: int | None) -> tuple[Tree, Network]:
        last = self.folder.last_checkpoint()
        if last.server is None:
            raise RunError(f"the run in '{self.folder.path}' has no checkpoint yet: there is no model to load")
        net = self.rebuild.network(seed_of_weights(self._resolved().experiment))
        job = self._job(net)
        if not self.blueprint.personal or client is None:
            return asking.predictor(job, last.server, {}), net
        if self.folder.is_of_sites:
            raise RunError(
                f"every site of the run in '{self.folder.path}' has a model of its own, which stays at the site: "
                "expected the folder 'model' of the run in the site's folder of state"
            )
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
                raise unknown_code(self.folder.path, file, "method", resolved.spec)
        refuse_other_inputs({"code": code}, self.folder, self.config)
        blueprint = self.blueprint
        nobody = Examples(torch.empty(0, *blueprint.shape), torch.empty(0, dtype=torch.long))
        federation = GeneratedFederation(blueprint.clients, lambda _: nobody, nobody, blueprint.outputs)
        training = resolved.training
        plan = Plan(resolved.experiment.seed, training.batch, training.batch_rule, training.sampling)
        return Job(resolved.chosen.method, net, blueprint.make_task(), federation, training, plan)
