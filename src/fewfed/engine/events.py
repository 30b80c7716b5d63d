"""Events of a run that its user should know about. They are data; `str` makes a sentence where one is shown."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True)
class Event:
    """Something that happened. Subclasses say what, in fields; `str` makes a sentence of it."""

    kind: ClassVar[str] = ""

    def as_json(self) -> dict[str, Any]:
        return {"kind": self.kind, **dataclasses.asdict(self)}

    @staticmethod
    def from_json(recorded: Mapping[str, Any]) -> Event:
        """The event that `as_json` wrote."""
        fields = {name: _frozen(value) for name, value in recorded.items() if name != "kind"}
        made: Event = _KINDS[recorded["kind"]](**fields)
        return made


@dataclass(frozen=True)
class Chosen(Event):
    """One of several ways to compute was chosen."""

    kind: ClassVar[str] = "chosen"
    what: str
    value: str
    why: str

    def __str__(self) -> str:
        return f"{self.what}: {self.value}, {self.why}"


@dataclass(frozen=True)
class Impossible(Event):
    """A way to compute is not possible here; the run goes on without it."""

    kind: ClassVar[str] = "impossible"
    what: str
    reason: str
    phase: str = ""

    def __str__(self) -> str:
        where = f"phase '{self.phase}' runs without " if self.phase else "not possible: "
        return f"{where}{self.what}: {self.reason}"


@dataclass(frozen=True)
class WorkerDied(Event):
    """A worker process died and was replaced; what it worked on is run again."""

    kind: ClassVar[str] = "worker died"
    cause: str
    again: tuple[str, ...]

    def __str__(self) -> str:
        return f"a worker process died ({self.cause}) and was replaced; run again: {', '.join(self.again)}"


@dataclass(frozen=True)
class WorkerStuck(Event):
    """A worker process gave no answer in time and was replaced; what it worked on is run again."""

    kind: ClassVar[str] = "worker stuck"
    waited: str
    again: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"a worker process gave no answer for {self.waited} (workers.deadline) and was replaced; "
            f"run again: {', '.join(self.again)}"
        )


@dataclass(frozen=True)
class ActorDied(Event):
    """A process on a Ray cluster died, or its machine did; what it worked on is run again."""

    kind: ClassVar[str] = "actor died"
    cause: str
    again: tuple[str, ...]

    def __str__(self) -> str:
        return f"an actor of the Ray cluster died ({self.cause}); run again: {', '.join(self.again) or 'nothing'}"


@dataclass(frozen=True)
class ActorStuck(Event):
    """A process on a Ray cluster gave no answer in time and was ended; what it worked on is run again."""

    kind: ClassVar[str] = "actor stuck"
    waited: str
    again: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"an actor of the Ray cluster gave no answer for {self.waited} (ray.deadline) and was ended; "
            f"run again: {', '.join(self.again)}"
        )


@dataclass(frozen=True)
class ActorLost(Event):
    """A process on a Ray cluster will not be used any more; the others do its work."""

    kind: ClassVar[str] = "actor lost"
    cause: str
    left: int

    def __str__(self) -> str:
        return f"an actor of the Ray cluster is done without ({self.cause}): {self.left} are left to do its work"


@dataclass(frozen=True)
class ShapesUnknown(Event):
    """The shapes of a phase's uploads could not be derived beforehand: they are taken from the first packet."""

    kind: ClassVar[str] = "shapes unknown"
    phase: str
    reason: str

    def __str__(self) -> str:
        return f"phase '{self.phase}': what its uploads look like is taken from the first one ({self.reason})"


@dataclass(frozen=True)
class Withdrawn(Event):
    """Rows of clients that do not take part any more were taken out of what the server keeps."""

    kind: ClassVar[str] = "withdrawn"
    clients: tuple[int, ...]
    rows: int

    def __str__(self) -> str:
        whose = ", ".join(map(str, self.clients))
        return f"{self.rows} rows of revoked clients ({whose}) were taken out of what the server keeps"


@dataclass(frozen=True)
class RuleFellBack(Event):
    """Too few packets came for the rule that was to combine them."""

    kind: ClassVar[str] = "rule fell back"
    phase: str
    rule: str
    packets: int
    needed: int
    instead: str

    def __str__(self) -> str:
        return (
            f"phase '{self.phase}': {self.packets} packets came, of which '{self.rule}' cannot tell who is odd "
            f"(expected {self.needed}); combined by '{self.instead}' in this round"
        )


@dataclass(frozen=True)
class NotCovered(Event):
    """Uploads that are combined as declared, whoever sent them, although the run has a defence."""

    kind: ClassVar[str] = "not covered"
    phase: str
    uploads: tuple[str, ...]

    def __str__(self) -> str:
        named = ", ".join(self.uploads)
        return f"phase '{self.phase}': no defence of this run covers {named}: combined as declared, whoever sent it"


@dataclass(frozen=True)
class Mended(Event):
    """A file of the run was damaged and could be made good."""

    kind: ClassVar[str] = "mended"
    what: str

    def __str__(self) -> str:
        return self.what


_KINDS: dict[str, Any] = {
    cls.kind: cls
    for cls in (
        Chosen,
        Impossible,
        WorkerDied,
        WorkerStuck,
        ActorDied,
        ActorStuck,
        ActorLost,
        ShapesUnknown,
        Withdrawn,
        RuleFellBack,
        NotCovered,
        Mended,
    )
}


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
