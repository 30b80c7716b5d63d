"""Whether a method can be trained row by row: tried out on made-up rows before a run begins."""

from __future__ import annotations

import dataclasses

import torch

from fewfed.data.examples import Examples
from fewfed.data.federation import GeneratedFederation
from fewfed.engine import asking
from fewfed.engine.combine import Combiner
from fewfed.engine.job import Job, members_of
from fewfed.engine.outcomes import Failed
from fewfed.engine.threads import one_thread
from fewfed.engine.turn import Member, run_turn
from fewfed.errors import ConfigError
from fewfed.phase import Clock
from fewfed.tree import Tree

_CLIENTS, _ROWS, _ROUNDS, _EPOCHS = 2, 40, 2, 2
"""Two rounds: what is shared in the first is there in the second. So many rows that a share of them is at least one."""


def refuse_mixed_rows(job: Job) -> None:
    """Raise `ConfigError` where a method lets rows of a batch depend on each other."""
    with one_thread():
        _play(dataclasses.replace(job, federation=_made_up(job), gates=()))


def _play(job: Job) -> None:
    method, server, first = job.method, asking.server_init(job), asking.client_init(job)
    states: dict[int, Tree] = {}
    for number in range(_ROUNDS):
        clock = Clock(number, _ROUNDS, min(_EPOCHS, job.training.epochs))
        for phase in asking.phases(job, clock):
            shared = asking.broadcast(method, phase, server)
            combiner = Combiner(phase, _CLIENTS)
            for client in members_of(phase, range(_CLIENTS), _CLIENTS):
                personal = asking.personal(method, phase, server, client)
                found = run_turn(job, phase, clock, shared, Member(client, personal, states.get(client, first)))
                if isinstance(found, Failed):
                    raise ConfigError(
                        f"method '{method.label}' cannot be trained on rows one by one (phase '{phase.name}'): "
                        f"{found.reason}"
                    )
                if phase.keeps_state:
                    states[client] = found.state
                combiner.add(found.packet)
            server = asking.absorb(method, phase, server, combiner.finish())


def _made_up(job: Job) -> GeneratedFederation:
    """Clients with rows of noise, and labels of all kinds in turn."""
    shape, classes = tuple(job.federation.shape), job.task.classes

    def rows(client: int) -> Examples:
        random = torch.Generator().manual_seed(client)
        x = torch.randn(_ROWS, *shape, generator=random, dtype=job.net.dtype)
        labels = job.task.blank_labels(_ROWS, shape)
        if classes and labels.dim() == 1:
            labels = (torch.arange(_ROWS) + client) % classes
        return Examples(x, labels)

    return GeneratedFederation(_CLIENTS, rows, rows(_CLIENTS), classes)
