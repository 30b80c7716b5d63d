"""Which wrappers go around a method, and why others do not."""

from __future__ import annotations

import functools
import re

from fewfed.conformance.clients import digits_federation, digits_network, plain_network
from fewfed.engine.job import Job
from fewfed.errors import ConfigError
from fewfed.methods.registry import choose, registered, wrapped_field
from fewfed.plan import Plan
from fewfed.tasks.classification import Classification
from fewfed.training import Training


@functools.cache
def around(spec: str) -> tuple[list[str], dict[str, str]]:
    """Wrappers that take a method inside, and the reasons of the others; asked of each as a run would ask it."""
    fits, refused = [], {}
    for name, cls in registered().items():
        if not wrapped_field(cls):
            continue
        try:
            _job(f"{name}({spec})").check()
            fits.append(name)
        except ConfigError as error:
            refused[name] = _short(str(error))
    return fits, refused


def _short(reason: str) -> str:
    """A refusal without what stands on the page anyway: the wrapper's name before it, numbers, the advice behind it."""
    reason = re.sub(r"^method '[^']*' ", "it ", reason)
    reason = re.sub(r"loss: of a batch it is .* on average: |: \w+Error: .*", "", reason)
    return re.split(r"[:;] (?:expected|wrap|use) ", reason)[0] + "."


def _job(spec: str) -> Job:
    chosen = choose(spec)
    training = Training(**chosen.training)
    plan = Plan(0, training.batch, training.batch_rule, training.sampling)
    network = plain_network() if chosen.method.no_batchnorm else digits_network()
    return Job(chosen.method, network, Classification(10), digits_federation(6, 16), training, plan)
