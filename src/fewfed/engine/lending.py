"""What clients are lent for a turn, and the watch over it: methods must leave it as it is.

The broadcast is one tree for all members of a phase. A method that changed it would change it for whoever comes next,
and results would depend on who ran where. Clients in this process therefore get a copy, and in worker processes it lies
in memory that cannot be written to. After each turn a glance tells whether the trees are still the same. Only if they
are not is the turn run again, on fresh copies that are compared after every call of the method, so that its error can
name the function.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from fewfed import tree
from fewfed.data.examples import Examples
from fewfed.engine.job import Job
from fewfed.engine.outcomes import Failed, Finished
from fewfed.engine.turn import Member, run_turn
from fewfed.errors import RunError
from fewfed.method import Batch, Context, Differentiate, Exchange, Report, RowByRow
from fewfed.phase import Clock, Phase
from fewfed.plan import Random
from fewfed.tree import Tree

_WHAT = {
    "shared": "what was broadcast",
    "personal": "what was sent to the client alone",
    "state": "what the client remembers",
}
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Glance:
    """Whether some trees are still as they were: the same names, the same tensors, none of them changed in place.

    Torch counts the changes of a tensor, so no number is looked at. Changes through `.data` or `.numpy()`, and those of
    BatchNorm, are not counted.
    """

    def __init__(self, *trees: Tree) -> None:
        self._nodes: list[tuple[Tree, list[str], list[int]]] = []
        self._leaves: list[Tensor] = []
        for one in trees:
            self._note(one)
        self._versions = [leaf._version for leaf in self._leaves]

    def unchanged(self) -> bool:
        return [leaf._version for leaf in self._leaves] == self._versions and all(
            [*node] == names and [*map(id, node.values())] == values for node, names, values in self._nodes
        )

    def _note(self, node: Tree) -> None:
        self._nodes.append((node, [*node], [*map(id, node.values())]))
        for value in node.values():
            if isinstance(value, Tensor):
                self._leaves.append(value)
            else:
                self._note(value)


class Lender:
    """Lends the clients of a run what they may look at. One for each executor, or for each worker process."""

    def __init__(self, job: Job, lent: Callable[[Tree], Tree] = tree.clone) -> None:
        """`lent`: makes what a client gets of a tree. A copy, or, where memory cannot be written to, other views."""
        self._job = job
        self._lent = lent
        self._copies = lent is tree.clone
        self._sent: Tree = {}
        self._shared: Tree = {}
        self._glance = Glance()
        self._compared: set[str] = set()
        """Phases after the first turn of which every number was compared."""
        self._spoiling: set[str] = set()
        """Phases of which a turn has changed what it was lent."""

    @property
    def shared(self) -> Tree:
        """What was broadcast, as clients get it."""
        return self._shared

    def share(self, sent: Tree) -> None:
        """A new broadcast."""
        self._sent = sent
        self._renew()

    def turn(
        self, phase: Phase, clock: Clock, member: Member, channels_last: bool = False, careful: bool = False
    ) -> Finished | Failed:
        """A member's turn; `Failed` where its method changes what it was lent.

        `careful`: this turn has ended a process already, maybe because it wrote where it must not.
        """
        if not careful and phase.name not in self._spoiling:
            given, own = self._own(member)
            found = run_turn(self._job, phase, clock, self._shared, given, channels_last)
            if self.unchanged(phase, own):
                return found
        return self._watched_turn(phase, clock, member, channels_last)

    def unchanged(self, phase: Phase, own: Callable[[], bool] = lambda: True, worked: bool = True) -> bool:
        """Whether the broadcast is still as it was, and what is the members' `own` too. If not, the broadcast is made
        anew. `worked`: turns have come to their end."""
        same = self._glance.unchanged() and own()
        if same and worked and phase.name not in self._compared:
            same = not difference(self._sent, self._shared)
            self._compared.add(phase.name)
        if not same:
            self._spoiling.add(phase.name)
            self._renew()
        return same

    def spoils(self, phase: Phase) -> bool:
        """Whether turns of a phase have changed what they were lent."""
        return phase.name in self._spoiling

    def finish(self, phase: Phase) -> None:
        """The phase is over: raise if the broadcast was changed unnoticed."""
        path = difference(self._sent, self._shared) if self._copies else ""
        self._sent, self._shared, self._glance = {}, {}, Glance()
        if path:
            raise RunError(
                f"method '{self._job.method.label}', phase '{phase.name}': one of its functions changed "
                f"{_WHAT['shared']} ('{path}') where torch does not count changes (.data, .numpy()): expected it to be "
                "left as it is; clone it first"
            )

    def _own(self, member: Member) -> tuple[Member, Callable[[], bool]]:
        """The member with what is its own as it is lent to it, and whether that is still as it was."""
        if not (member.personal or member.state):  # Most methods: this is done in every turn.
            given = Member(member.client, moments=member.moments, book=member.book)
            return given, lambda: not (given.personal or given.state)
        own = self._own_lent
        given = dataclasses.replace(member, personal=own(member.personal), state=own(member.state))
        return given, Glance(given.personal, given.state).unchanged

    def _own_lent(self, own: Tree) -> Tree:
        return tree.map(torch.clone if self._copies else _itself, own)

    def _renew(self) -> None:
        self._shared = self._lent(self._sent)
        self._glance = Glance(self._shared)

    def _watched_turn(self, phase: Phase, clock: Clock, member: Member, channels_last: bool) -> Finished | Failed:
        given: Tree = {"shared": self._sent, "personal": member.personal, "state": member.state}
        watch = _Watch(self._job.method.label, phase.name, given, tree.clone(given))
        watched = dataclasses.replace(phase, does=cast(Exchange, _Watched(phase.does, watch)))
        lent = dataclasses.replace(member, personal=watch.lent["personal"], state=watch.lent["state"])
        found = run_turn(self._job, watched, clock, watch.lent["shared"], lent, channels_last)
        if watch.found:
            self._spoiling.add(phase.name)
        return found


class _Watch:
    """Compares what one client was lent with what it should still be."""

    def __init__(self, method: str, phase: str, given: Tree, lent: Tree) -> None:
        self._method, self._phase, self._given = method, phase, given
        self.lent = lent
        self.found = False
        """Whether something has changed."""
        self._lent_leaves = dict(tree.leaves(lent))
        self._kept: set[str] = set()
        """Paths of what `begin` returned as it was, without a copy."""

    def begun(self, work: Any) -> None:
        if isinstance(work, dict):
            held = {_memory(leaf) for leaf in _tensors(work)}
            self._kept = {path for path, leaf in self._lent_leaves.items() if _memory(leaf) in held}

    def look(self, function: str) -> None:
        """Raise if something has changed; `function` was called last."""
        path = difference(self._given, self.lent)
        if not path:
            return
        self.found = True
        kind, _, place = path.partition("/")
        what = f"{_WHAT[kind]} ('{place}')"
        if path in self._kept:
            function, said = "begin", f"it returned {what} as its own, and training changed it: expected a copy"
        else:
            said = f"it changed {what}: expected it to be left as it is"
        raise RunError(f"method '{self._method}', {function} of phase '{self._phase}': {said}; clone it first")


class _Watched:
    """The functions of a phase, with a look at what was lent after each."""

    def __init__(self, does: Exchange, watch: _Watch) -> None:
        self._does, self._watch = does, watch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._does, name)

    def data(self, ctx: Context) -> Examples:
        found = self._does.data(ctx)
        self._watch.look("data")
        return found

    def begin(self, ctx: Context) -> Tree:
        work = self._does.begin(ctx)
        self._watch.look("begin")
        self._watch.begun(work)
        return work

    def draw(self, random: Random, ctx: Context, size: int) -> Tree:
        self._watch.look("begin")  # What changes between two calls is what `begin` made a part of the work.
        drawn = self._does.draw(random, ctx, size)
        self._watch.look("draw")
        return drawn

    def loss(self, work: Tree, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        terms = self._does.loss(work, ctx, batch)
        self._watch.look("loss")
        return terms

    def gradient(self, differentiate: Differentiate, work: Tree, ctx: Context, batch: Batch) -> tuple[Tree, Tree]:
        found = self._does.gradient(_Differentiating(differentiate, self._watch), work, ctx, batch)
        self._watch.look("gradient")
        return found

    def end(self, work: Tree, ctx: Context) -> Report:
        self._watch.look("begin")
        report = self._does.end(work, ctx)
        self._watch.look("end")
        return report


class _Differentiating:
    """What a method's `gradient` may ask for, with a look before each."""

    def __init__(self, differentiate: Differentiate, watch: _Watch) -> None:
        self._differentiate, self._watch = differentiate, watch

    def __call__(self, point: Tree, /) -> tuple[Tree, Tree]:
        self._watch.look("gradient")
        return self._differentiate(point)

    def by_row(self, point: Tree, /) -> Tree:
        self._watch.look("gradient")
        return cast(RowByRow, self._differentiate).by_row(point)


def returned(shared: Tree, work: Any) -> bool:
    """Whether a work tree from `begin` has parts of the broadcast itself in what training changes."""
    lent = {_memory(leaf) for leaf in _tensors(shared) if leaf.numel()}
    trained = [work.get(name) for name in ("params", "buffers")] if isinstance(work, dict) else []
    return any(_memory(leaf) in lent for part in trained for leaf in _tensors(part))


def difference(before: Mapping[str, Any], now: Any, prefix: str = "") -> str:
    """The path of the first entry that is not what it was; nothing where all are."""
    if not isinstance(now, dict):
        return prefix.rstrip("/")
    for name, value in before.items():
        path, found = f"{prefix}{name}", now.get(name)
        if isinstance(value, Tensor):
            if not (isinstance(found, Tensor) and _same(value, found)):
                return path
        elif deeper := difference(value, found, f"{path}/"):
            return deeper
    return next((f"{prefix}{name}" for name in now if name not in before), "")


def _itself(leaf: Tensor) -> Tensor:
    return leaf


def _same(a: Tensor, b: Tensor) -> bool:
    """Whether all bits are the same, and nobody asked for gradients."""
    if a.shape != b.shape or a.dtype != b.dtype or a.device != b.device or b.requires_grad > a.requires_grad:
        return False
    kind = _INTEGERS.get(a.element_size())
    # As whole numbers, because NaN is unequal to itself.
    return torch.equal(a, b) if kind is None else torch.equal(a.detach().view(kind), b.detach().view(kind))


def _tensors(node: Any) -> Sequence[Tensor]:
    if isinstance(node, Tensor):
        return [node]
    return [leaf for value in node.values() for leaf in _tensors(value)] if isinstance(node, dict) else []


def _memory(leaf: Tensor) -> int:
    return leaf.untyped_storage().data_ptr()
