"""The functions of a wrapper's training phase, to be called as the engine calls them."""

from __future__ import annotations

from fewfed.data.examples import Examples
from fewfed.method import Context, Exchange, Setup
from fewfed.network import Network
from fewfed.phase import Clock
from fewfed.plan import Plan
from fewfed.tasks.classification import Classification
from fewfed.wrapper import Wrapper
from support import context

CLOCK = Clock(0, 5, 2)


def training(method: Wrapper) -> Exchange:
    """What is done in the phase in which the inner method trains."""
    return next(phase for phase in method.phases(CLOCK) if phase.epochs).does


def first_turn(method: Wrapper, net: Network, data: Examples, client: int = 0) -> Context:
    """What a client of a classification run looks at in that phase of the first round."""
    setup = Setup(net, Classification(10), Plan(0, 8), 10, tuple(data.x.shape[1:]))
    phase = next(phase for phase in method.phases(CLOCK) if phase.epochs)
    shared = phase.does.broadcast(method.server_init(setup))
    return context(net, data, shared, phase=phase, client=client, state=method.client_init(setup), steps=2)
