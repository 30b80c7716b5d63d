"""The network of a run made again: from its name, from a file that the user trusts, or from the user's own object."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from fewfed import networks, tree
from fewfed.data.limits import Limits
from fewfed.engine.threads import one_thread
from fewfed.errors import ConfigError, RunError, did_you_mean
from fewfed.network import Network
from fewfed.runs.blueprint import Blueprint
from fewfed.runs.user_code import is_known, network_file
from fewfed.tree import Tree

Forms = Mapping[str, tuple[int, ...]]
"""The shape of each entry of a model."""


@dataclass(frozen=True)
class Rebuild:
    """What a run folder and the user say about a network."""

    blueprint: Blueprint
    own: nn.Module | Network | str | None
    """The user's own object, or the file named again; None where the user says nothing."""
    path: Path
    """The run folder."""

    def fitting(self, model: Tree) -> Network:
        """The network, made only after it is known to fit the weights, so that no forged size takes memory."""
        found = _forms(model)
        if self.own is None and self.blueprint.network.origin == "built-in":
            self._refuse_other(self._by_name(), found)
        net = self.network(0)
        self._refuse_other(_forms(net.model()), found)
        return net

    def network(self, seed: int) -> Network:
        """The network; if it has a name, or is from a file, with the first weights of a seed."""
        recipe, own = self.blueprint.network, self.own
        if isinstance(own, Network):
            return own
        if isinstance(own, nn.Module):
            with one_thread():
                return Network.of(own, example=torch.zeros(1, *self.blueprint.shape, dtype=_dtype(own)))
        if own is not None and recipe.origin != "file":
            raise ConfigError(f"network = '{own:.80}', but the run has its network from no file: leave it out")
        if recipe.origin == "object":
            raise ConfigError(
                f"the run in '{self.path}' was given its network as an object, which no folder can keep: give it again "
                "as network= in Python"
            )
        if recipe.origin == "built-in":
            self._by_name()
        name = recipe.name if recipe.origin == "built-in" else self._file(own)
        with one_thread():
            return networks.build(name, self.blueprint.shape, self.blueprint.outputs, seed)

    def _by_name(self) -> Forms:
        """What a network of this package would have, without making it: a forged folder may claim any size."""
        name, shape = self.blueprint.network.name, self.blueprint.shape
        if name not in networks.names():
            raise ConfigError(did_you_mean("network", name, networks.names()))
        forms = networks.forms(name, shape, self.blueprint.outputs)
        needed = 4 * sum(math.prod(form) for form in forms.values())
        Limits().check_total(f"network '{name}' for inputs of shape {shape}", needed)
        return forms

    def _file(self, named: str | None) -> str:
        """The file that the network is in, where the user has named it, now or before."""
        recipe = self.blueprint.network
        name = named or recipe.name
        digest = network_file(name)
        if digest != recipe.digest:
            raise RunError(
                f"'{name}' is not the file that the network of '{self.path}' was made by: put it back as it was, or "
                "name it where it lies now with --network, in Python network="
            )
        if not named and not is_known(digest):
            raise unknown_code(self.path, name, "network", name)
        return name

    def _refuse_other(self, expected: Forms, found: Forms) -> None:
        for entry, form in expected.items():
            if found.get(entry) != form:
                here = "missing" if entry not in found else f"of shape {found[entry]}"
                raise RunError(
                    f"the model in '{self.path}' does not fit network '{self.blueprint.network.name}': '{entry}' is "
                    f"{here}, expected {form}; give the network that the run was made with"
                )


def unknown_code(path: Path, file: str, kind: str, name: str) -> RunError:
    """The error for a file that a run folder names and the user never has."""
    return RunError(
        f"'{path}' asks to run the code in '{file}', which you have not run before: read it, and if you trust it name "
        f"it with --{kind} {name}, in Python as {kind}="
    )


def _forms(model: Tree) -> Forms:
    return {path: tuple(leaf.shape) for path, leaf in tree.leaves(model)}


def _dtype(module: nn.Module) -> torch.dtype:
    """The type of a module's weights, which its inputs must have."""
    kinds = (weight.dtype for weight in module.parameters() if weight.is_floating_point())
    return next(kinds, torch.get_default_dtype())
