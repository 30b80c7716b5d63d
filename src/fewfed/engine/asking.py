"""Asking a method: its functions are somebody else's code, so an error in one is named, and what it returns is checked.

Here are the functions that the server's side calls; those of a client's turn are called in `fewfed.engine.turn`.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any, TypeVar

from torch import Tensor

from fewfed import tree
from fewfed.engine.job import Job
from fewfed.engine.packet import BadPacket, refuse_odd_tree
from fewfed.errors import FewfedError, RunError, told
from fewfed.method import Combined, Method
from fewfed.phase import Clock, Phase
from fewfed.settings import check, make
from fewfed.training import Training
from fewfed.tree import Tree

T = TypeVar("T")

_MOST_PHASES = 1000
"""A function that yields phases may never come to an end."""


def phases(job: Job, clock: Clock) -> tuple[Phase, ...]:
    """The phases of a round, each with a name of its own."""
    whose = _whose(job.method, "phases")
    found: Any = _asked(whose, lambda: tuple(islice(job.method.phases(clock), _MOST_PHASES + 1)))
    if len(found) > _MOST_PHASES:
        raise RunError(f"{whose}: there is no end of them: expected at most {_MOST_PHASES} phases a round")
    for phase in found:
        if not isinstance(phase, Phase):
            raise RunError(f"{whose}: one of its results is a {type(phase).__name__}: expected phases only")
        if phase.training:
            make(Training, phase.training, f"phase '{phase.name}'")
            check(job.training_of(phase))
    names = [phase.name for phase in found]
    if not names:
        raise RunError(f"{whose}: it returned none for round {clock.round + 1}: expected at least one phase a round")
    for name in names:
        if names.count(name) > 1:
            raise RunError(
                f"{whose}: {names.count(name)} phases are named '{name}': expected a name of its own for each"
            )
    return tuple(found)


def check_fit(job: Job) -> None:
    """Raise where the method does not fit the task or the network."""
    _asked(_whose(job.method, "check"), job.check)


def server_init(job: Job) -> Tree:
    """What the server knows before the first round."""
    return _tree(_whose(job.method, "server_init"), lambda: job.method.server_init(job.setup))


def client_init(job: Job) -> Tree:
    """What a client remembers before its first participation."""
    return _tree(_whose(job.method, "client_init"), lambda: job.method.client_init(job.setup))


def broadcast(method: Method, phase: Phase, server: Tree) -> Tree:
    """What every member of a phase receives."""
    return _tree(_whose(method, "broadcast", phase), lambda: phase.does.broadcast(server), server)


def personal(method: Method, phase: Phase, server: Tree, client: int) -> Tree:
    """What one member of a phase receives beside it."""
    whose = _whose(method, "personal", phase, client)
    return _tree(whose, lambda: phase.does.personal(server, client), server)


def absorb(method: Method, phase: Phase, server: Tree, combined: Combined) -> Tree:
    """The server after a phase."""
    return _tree(_whose(method, "absorb", phase), lambda: phase.does.absorb(server, combined), server)


def predictor(job: Job, server: Tree, state: Tree) -> Tree:
    """The model that predicts, for the network of the job."""
    return _predictor(job, job.method, server, state)


def besides(job: Job, server: Tree) -> dict[str, Tree]:
    """The models that methods which train alike would predict with, by name."""
    others = _asked(_whose(job.method, "besides"), lambda: dict(job.method.besides))
    return {name: _predictor(job, other, server, {}) for name, other in others.items()}


def _predictor(job: Job, method: Method, server: Tree, state: Tree) -> Tree:
    whose = _whose(method, "predictor")
    found = _tree(whose, lambda: method.predictor(server, state), server)
    leaves = dict(tree.leaves(found))
    for path, expected in tree.leaves(job.net.model()):
        leaf = leaves.get(path)
        if leaf is None:
            raise RunError(f"{whose}: its result has no '{path}': expected what network '{job.net.name}' has")
        if leaf.shape != expected.shape or leaf.dtype != expected.dtype:
            raise RunError(f"{whose}: its result '{path}' is {_form(leaf)}: expected {_form(expected)}")
    missing = [name for name in ("params", "buffers") if not isinstance(found.get(name), dict)]
    if missing:
        raise RunError(f"{whose}: its result has no tree '{missing[0]}': expected a model, with params and buffers")
    return found


def presented(job: Job, model: Tree, x: Tensor) -> Tensor:
    """Test inputs as the model that predicts is to see them."""
    whose = _whose(job.method, "presented")
    found: Any = _asked(whose, lambda: job.method.presented(model, x))
    if not isinstance(found, Tensor) or found.shape != x.shape or found.dtype != x.dtype:
        kind = _form(found) if isinstance(found, Tensor) else f"a {type(found).__name__}"
        raise RunError(f"{whose}: its result is {kind}: expected {_form(x)}, as the inputs are")
    return found


def _tree(whose: str, call: Callable[[], Tree], server: Tree | None = None) -> Tree:
    found = _asked(whose, call, server)
    try:
        refuse_odd_tree(found, "result")
    except BadPacket as error:
        raise RunError(f"{whose}: {error}") from None
    return found


def _asked(whose: str, call: Callable[[], T], server: Tree | None = None) -> T:
    try:
        return call()
    except (FewfedError, KeyboardInterrupt):
        raise
    except BaseException as error:  # Also `sys.exit()`: a method must not end the program as if all were well.
        # What a server's tree lacks is most often what `absorb` or `server_init` left out of it.
        has = f"; the server's tree has {_listed(server)}" if isinstance(error, KeyError) and server is not None else ""
        raise RunError(f"{whose}: {told(error)}{has}") from error


def _whose(method: Method, function: str, phase: Phase | None = None, client: int | None = None) -> str:
    of_phase = f" of phase '{phase.name}'" if phase else ""
    for_client = f" for client {client}" if client is not None else ""
    return f"method '{method.label}', {function}{of_phase}{for_client}"


def _listed(server: Tree) -> str:
    names = [f"'{name}'" for name in server]
    return ", ".join(names[:10]) + (", ..." if len(names) > 10 else "") if names else "nothing in it"


def _form(leaf: Tensor) -> str:
    return f"{leaf.dtype} {tuple(leaf.shape)}"
