"""How a job reaches a process that was not forked from this one: it is made again there, from files, and compared.

The engine does not know where jobs come from. Whoever made one says with which function it can be made again, and what
that function must find in a folder.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fewfed import tree
from fewfed.engine.own_folder import OwnFolder
from fewfed.engine.storage import digest_of
from fewfed.errors import RunError

if TYPE_CHECKING:
    from fewfed.engine.job import Job


@dataclass(frozen=True)
class Remake:
    """How another process makes the same job."""

    function: str
    """As in "package.module:function". It takes the path of the folder and returns the job."""
    folder: OwnFolder
    """Where its files are, for as long as the run lasts."""
    write: Callable[[OwnFolder], None]
    """Writes them."""
    why_not: str = ""
    """Why the job cannot be made again, as a sentence that says what to do; empty where it can."""


def remade(function: str, folder: Path, expected: str) -> Job:
    """The job that a function makes from a folder; an error where its `outline` is not the expected one."""
    module, _, name = function.partition(":")
    make: Callable[[Path], Job] = getattr(importlib.import_module(module), name)
    job = make(folder)
    if outline(job) != expected:
        raise RunError(
            f"the job made from '{folder}' is not the one it was written for: expected the same version of fewfed, of "
            "torch and of the method's code in every process of a run"
        )
    return job


def outline(job: Job) -> str:
    """A digest of what decides the results of a job: settings, network and first weights, gates, how many clients and
    rows there are. What is in the rows is for those to compare who write and read them."""
    net, federation = job.net, job.federation
    rows = (len(federation), federation.most_rows, len(federation.test), len(federation.validation))
    said = [
        job.method.label,
        f"{type(job.task).__qualname__} {job.task.classes} {job.task.outputs}",
        *(repr(part) for part in (job.method, job.training, job.plan, job.gates, job.rows_public, job.adversary)),
        *(f"{stage}: {net.module(stage)!r}" for stage in net.stages),
        f"{federation.shape} {federation.classes} {rows} {[*federation.test_groups]} {[*federation.client_groups]}",
        *(f"{path} {leaf.dtype} {tuple(leaf.shape)}" for path, leaf in tree.leaves(net.model())),
    ]
    weights = [bytes(tree.content(leaf)) for _, leaf in tree.leaves(net.model())]
    return digest_of([*("\n".join(said).encode(), *weights)])
