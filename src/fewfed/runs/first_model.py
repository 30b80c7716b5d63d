"""The model another run ended with, to start from."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from fewfed import tree
from fewfed.errors import ConfigError, RunError
from fewfed.network import Network
from fewfed.runs.folder import RunFolder
from fewfed.tree import Tree


def first_model(path: Path, net: Network) -> Tree:
    """The model of a finished run, which must be one of the same network.

    Nothing but numbers is taken from the folder: it may be somebody else's, and its method's file is not run.
    """
    folder, _ = RunFolder.open(path)
    if folder.result() is None:
        raise RunError(f"the run in '{path}' is not finished: 'fewfed resume {path}' ends it")
    model = folder.model()
    found, expected = dict(tree.leaves(model)), dict(tree.leaves(net.model()))
    for leaf in (*expected, *found):
        if _form(found.get(leaf)) != _form(expected.get(leaf)):
            raise ConfigError(
                f"the model in '{path}' does not fit network '{net.name}': '{leaf}' is {_form(found.get(leaf))} there "
                f"and {_form(expected.get(leaf))} here (a run with a model a client has no common one)"
            )
    return model


def _form(leaf: Tensor | None) -> str:
    return "missing" if leaf is None else f"{leaf.dtype} {tuple(leaf.shape)}"
