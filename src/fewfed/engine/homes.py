"""Where clients keep what they remember. The round loop never holds it.

In a simulation all clients are in this process, and their states are in a store that spills to disk. An executor whose
clients are elsewhere (other machines, real sites) provides another class with the functions of `Homes`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from fewfed.engine.client_store import ClientStore, State
from fewfed.engine.job import Job
from fewfed.phase import Phase
from fewfed.tree import Tree


class Homes(Protocol):
    """What the rest of a run may ask of the homes: to write down what clients remember, and to go back to it."""

    def finish_round(self) -> None:
        """A round has ended: what clients remember now is what `undo_round` goes back to."""

    def undo_round(self) -> None:
        """The run ends in the middle of a round: clients remember what they did before it."""

    def commit(self) -> dict[str, Any]:
        """Write down what clients remember. The result must be stored in the checkpoint."""

    def settle(self) -> None:
        """The checkpoint is written: delete what neither it nor the one before needs."""

    def restore(self, committed: Mapping[str, Any], before: Mapping[str, Any] | None = None) -> None:
        """Go back to what `commit` returned for a checkpoint; what it returned for the one before is kept as well."""

    def book(self, client: int) -> Tree:
        """What the client's gates have noted of what left it; nothing where there are none."""

    def close(self) -> None:
        """Free files and memory."""


_STATE, _MOMENTS, _BOOK = "fewfed.state", "fewfed.moments", "fewfed.book"
"""What is kept of a client with moments of its optimiser, or a book of what left it: the method's state, if it keeps
any, the moments by phase, and the book by gate."""

_BESIDE = (_MOMENTS, _BOOK)


def state_in(kept: Tree | None) -> Tree | None:
    """What a client's method remembers, of all that is kept of the client."""
    return kept.get(_STATE) if kept is not None and (_MOMENTS in kept or _BOOK in kept) else kept


class SimulatedHomes:
    """All clients of a simulation."""

    def __init__(self, job: Job, store: ClientStore | None = None) -> None:
        self._job = job
        self._store = ClientStore() if store is None else store  # An empty store is false.
        self._first: Tree | None = None
        self._met_more = False
        """Whether anybody may have moments or a book: if not, nobody has to look what was kept before."""

    def state(self, client: int) -> Tree:
        """What a client remembers; before its first participation, what the method gives it."""
        kept = self.remembered(client)
        if kept is not None:
            return kept
        if self._first is None:  # The same for everybody, and never changed: a method returns what is to be kept.
            self._first = self._job.method.client_init(self._job.setup)
        return self._first

    def remembered(self, client: int) -> Tree | None:
        """What a client kept from its last participation; None before the first."""
        return state_in(self.kept(client))

    def kept(self, client: int) -> Tree | None:
        """All there is of a client: what its method remembers, and its optimiser."""
        return self._store.get(client)

    def moments(self, client: int, phase: Phase) -> Tree:
        """Where the client's optimiser stopped in its last turn of a phase; nothing where it starts anew."""
        found: Tree = self._beside(client, _MOMENTS).get(phase.name, {}) if self._job.keeps_moments(phase) else {}
        return found

    def book(self, client: int) -> Tree:
        """What the client's gates have noted of what left it; nothing where there are none."""
        return self._beside(client, _BOOK) if self._job.gates else {}

    def keep(self, phase: Phase, client: int, state: Tree) -> None:
        """A client's packet was accepted: from now on it remembers this."""
        if phase.keeps_state:
            self._put(client, state, {name: self._beside(client, name) for name in _BESIDE} if self._met_more else {})

    def keep_moments(self, phase: Phase, client: int, moments: Tree) -> None:
        """The same for the moments of its optimiser in a phase."""
        self._met_more = True
        all_phases = {**self._beside(client, _MOMENTS), phase.name: moments}
        self._put(client, self.remembered(client), {_MOMENTS: all_phases, _BOOK: self._beside(client, _BOOK)})

    def keep_book(self, client: int, book: Tree) -> None:
        """The same for what its gates have noted."""
        self._met_more = True
        self._put(client, self.remembered(client), {_MOMENTS: self._beside(client, _MOMENTS), _BOOK: book})

    @property
    def store(self) -> ClientStore:
        """Where states lie, for an executor whose clients are computed by processes with stores of their own."""
        return self._store

    def adopt(self, files: Mapping[int, State]) -> None:
        """Clients were computed elsewhere: from now on they remember what lies in these files."""
        self._met_more = True
        for client, file in files.items():
            self._store.adopt(client, file)

    def follow(self, files: Mapping[int, State], clients: Iterable[int], after: int) -> None:
        """Elsewhere it is known what these clients remember: nothing but what lies in these files."""
        self._met_more = True
        self._store.follow(files, clients, after)

    def _beside(self, client: int, name: str) -> Tree:
        """What is kept of a client beside the method's state: moments of all phases, or the book."""
        found: Tree = (self.kept(client) or {}).get(name, {})
        return found

    def _put(self, client: int, state: Tree | None, beside: Tree) -> None:
        beside = {name: kept for name, kept in beside.items() if kept}
        if beside:
            self._store.put(client, beside if state is None else {_STATE: state, **beside})
        elif state is not None:
            self._store.put(client, state)

    def finish_round(self) -> None:
        self._store.finish_round()

    def undo_round(self) -> None:
        self._store.undo_round()

    def commit(self) -> dict[str, Any]:
        return self._store.commit()

    def settle(self) -> None:
        self._store.forget_obsolete()

    def check(self, committed: Mapping[str, Any]) -> None:
        """Raise `Damaged` unless everything that `commit` returned for a checkpoint is as it was written."""
        self._store.check(committed)

    def restore(self, committed: Mapping[str, Any], before: Mapping[str, Any] | None = None) -> None:
        self._met_more = True  # Only the files would tell.
        self._store.restore(committed, before)

    def close(self) -> None:
        self._store.close()
