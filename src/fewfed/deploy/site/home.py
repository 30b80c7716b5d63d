"""What a site remembers of a run, on its own disk: its state, its book of what left it, and its last answers.

Every answer is written down before it is sent, together with what the site will remember if it is accepted. The same
request then gets the same answer, whoever was restarted in between, and nothing is trained twice. An answer changes
what is remembered only once the coordinator says, in a later request, that it was accepted.

Answers of the last two rounds are kept. A coordinator that goes on from its last checkpoint, or from the one before,
asks for these again, in a later attempt. What is not kept any more is never taken for new: within an attempt no round
is gone back to, and no phase answered twice in different ways, and letters of earlier attempts are not heard.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from fewfed.deploy.messages import SCALING, TRAINING, Verdict
from fewfed.engine import storage
from fewfed.engine.own_folder import OwnFolder
from fewfed.engine.storage import Damaged
from fewfed.errors import RunError
from fewfed.tree import Tree

INDEX = "index.json"
_ROUNDS_KEPT = 2
_STAGES = (SCALING, TRAINING)
_FORMAT = 2


class Stale(Exception):
    """A request that is older than what the site remembers, or that contradicts an earlier one; the message says so."""


@dataclass(frozen=True)
class Kept:
    """What a site remembers beside its answers."""

    state: Tree | None = None
    """Of its method; None before it has taken part."""
    moments: Tree = field(default_factory=dict)
    """Of its optimiser, by phase, where they stay from round to round."""
    book: Tree = field(default_factory=dict)
    """What its gates have noted of what left it. What has left has left, whether it was accepted or not."""

    def tree(self) -> Tree:
        found: Tree = {"moments": self.moments, "book": self.book}
        return found if self.state is None else {**found, "state": self.state}

    @classmethod
    def of(cls, tree: Tree) -> Kept:
        return cls(tree.get("state"), tree.get("moments", {}), tree.get("book", {}))


@dataclass(frozen=True)
class _Entry:
    """An answer: to what, and where it lies."""

    stage: str
    round: int
    phase: str
    attempt: int
    """The attempt of the request that it answers."""
    asked: str
    """Digest of all that the site had received."""
    file: str
    digest: str
    accepted: bool = False

    @property
    def place(self) -> tuple[str, int, str]:
        return (self.stage, self.round, self.phase)


class Home:
    """The folder of one run at a site."""

    def __init__(self, folder: OwnFolder) -> None:
        self._folder = folder
        self._folder.make()
        self._entries: list[_Entry] = []
        """In the order in which they were made."""
        self._base: tuple[str, str] | None = None
        """File and digest of what was remembered before the first of them."""
        self._attempt = 0
        """The latest of which something was heard."""
        self._reached: tuple[str, int] | None = None
        """Stage and round of the last answer in that attempt."""
        self._answered: list[str] = []
        """Phases of that round that were answered, whether the answers are still kept or not."""
        self._written = 0
        self._cached: tuple[str, Kept] | None = None
        if self._folder.has(INDEX):
            self._open()

    def hear(self, attempt: int) -> None:
        """Raise `Stale` for a letter of an earlier attempt than the latest: it was sent again by somebody else."""
        if attempt < self._attempt:
            raise Stale(f"it is of attempt {attempt}: expected {self._attempt}, as before, or a later attempt")
        if attempt > self._attempt:
            self._attempt, self._reached, self._answered = attempt, None, []
            self._write_index()

    def found(self, place: tuple[str, int, str], attempt: int, asked: str) -> bytes | None:
        """The answer that a request got before; None if it is new, or the coordinator has begun anew with other inputs.

        Raises `Stale` for a request that came before what is remembered, or was answered with other inputs.
        """
        for number, entry in enumerate(self._entries):
            if entry.place != place:
                continue
            if entry.asked == asked:
                content: bytes = storage.load(self._folder / entry.file, entry.digest)[0]["reply"].numpy().tobytes()
                return content
            if attempt <= entry.attempt:
                raise Stale(
                    f"round {place[1] + 1}, phase '{place[2]}' was asked for already, in attempt {entry.attempt}, with "
                    "another broadcast: expected the same, or a later attempt"
                )
            self._keep_only(self._entries[:number])
            return None
        self._refuse_past(place, attempt)
        later = [entry for entry in self._entries if _comes_after(entry.place, place)]
        if later:
            self._keep_only([entry for entry in self._entries if entry not in later])
        return None

    def _refuse_past(self, place: tuple[str, int, str], attempt: int) -> None:
        """Raise `Stale` for what was asked for before in this attempt, of which no answer is kept."""
        if self._reached is None or attempt > self._attempt:
            return
        if _order(place[:2]) < _order(self._reached) or (place[:2] == self._reached and place[2] in self._answered):
            raise Stale(
                f"round {place[1] + 1}, phase '{place[2]}' is over here, which is in round {self._reached[1] + 1}"
            )

    def settle(self, verdicts: Sequence[Verdict], stage: str) -> None:
        """Take over what became of earlier answers. Those that were accepted change what is remembered."""
        said = {(stage, verdict.round, verdict.phase): verdict.accepted for verdict in verdicts}
        judged = [dataclasses.replace(entry, accepted=said.get(entry.place, entry.accepted)) for entry in self._entries]
        if judged != self._entries:
            self._entries = judged
            self._write_index()

    def begin(self, place: tuple[str, int, str]) -> Kept:
        """What the site remembers as a new turn begins. Answers that nobody accepted are undone; their book stays."""
        accepted = [entry for entry in self._entries if entry.accepted]
        if accepted != self._entries:
            self._keep_only(accepted)
        self._fold(place[1])
        return self.kept()

    def kept(self) -> Kept:
        """What the site remembers now."""
        accepted = [entry for entry in self._entries if entry.accepted]
        file = (accepted[-1].file, accepted[-1].digest) if accepted else self._base
        if file is None:
            return Kept(book=self._book())
        if self._cached is None or self._cached[0] != file[0]:
            self._cached = (file[0], Kept.of(storage.load(self._folder / file[0], file[1])[0]))
        return dataclasses.replace(self._cached[1], book=self._book())

    def keep(
        self, place: tuple[str, int, str], attempt: int, asked: str, reply: bytes, after: Kept, value: bytes = b""
    ) -> None:
        """Write an answer down, with what will be remembered if it is accepted. Before it is sent.

        `value`: what the site will add to a sum under masks, which does not leave it as it is.
        """
        file, digest = self._write({**after.tree(), "reply": _bytes(reply), "value": _bytes(value)})
        before = self._entries, self._reached, self._answered
        answered = self._answered if place[:2] == self._reached else []
        self._entries = [*self._entries, _Entry(*place, attempt, asked, file, digest)]
        self._reached, self._answered = place[:2], [*answered, place[2]]
        try:
            self._write_index()
        except BaseException:  # What is not on the disk was not answered.
            self._entries, self._reached, self._answered = before
            raise
        self._cached = (file, after)

    def value(self, place: tuple[str, int, str]) -> bytes:
        """What the site adds to the sum under masks of a phase; nothing where it has taken no turn in it."""
        for entry in self._entries:
            if entry.place == place:
                return bytes(storage.load(self._folder / entry.file, entry.digest)[0]["value"].numpy().tobytes())
        return b""

    def write_facts(self, name: str, facts: Mapping[str, Any]) -> None:
        """Keep something that stays the same over the run: the offer, how inputs are scaled."""
        self._folder.write(f"{name}.json", json.dumps(facts).encode())

    def facts(self, name: str) -> Any:
        """What `write_facts` wrote; None where it never did."""
        if not self._folder.has(f"{name}.json"):
            return None
        try:
            return json.loads(self._folder.read(f"{name}.json"))
        except (ValueError, RecursionError) as error:
            raise _damaged(self._folder, f"{name}.json") from error

    def _book(self) -> Tree:
        """The last that was written: it never goes back."""
        file = (self._entries[-1].file, self._entries[-1].digest) if self._entries else self._base
        if file is None:
            return {}
        if self._cached is not None and self._cached[0] == file[0]:
            return self._cached[1].book
        return Kept.of(storage.load(self._folder / file[0], file[1])[0]).book

    def _fold(self, round: int) -> None:
        """Forget answers that nobody will ask for again; what was remembered after them is where the rest begins."""
        old = [
            entry
            for entry in self._entries
            if (round > 0 if entry.stage == SCALING else entry.round <= round - _ROUNDS_KEPT)
        ]
        if old:
            kept = Kept.of(storage.load(self._folder / old[-1].file, old[-1].digest)[0])
            self._replace_base(kept, [entry for entry in self._entries if entry not in old])

    def _keep_only(self, entries: list[_Entry]) -> None:
        """Go back to some of the entries. The book of all of them stays, and is put into what remains."""
        book = self._book()
        remaining = (entries[-1].file, entries[-1].digest) if entries else self._base
        content: Tree = {} if remaining is None else storage.load(self._folder / remaining[0], remaining[1])[0]
        content = {"moments": {}, **content, "book": book}
        file, digest = self._write(content)
        if entries:
            entries = [*entries[:-1], dataclasses.replace(entries[-1], file=file, digest=digest)]
        else:
            self._base = (file, digest)
        self._entries = entries
        self._write_index()
        self._clear()

    def _replace_base(self, kept: Kept, entries: list[_Entry]) -> None:
        self._base = self._write(kept.tree())
        self._entries = entries
        self._write_index()
        self._clear()

    def _write(self, content: Tree) -> tuple[str, str]:
        self._written += 1
        name = f"{self._written}.safetensors"
        return name, storage.save(self._folder / name, content)

    def _write_index(self) -> None:
        index = {
            "format": _FORMAT,
            "base": self._base,
            "written": self._written,
            "attempt": self._attempt,
            "reached": self._reached,
            "answered": self._answered,
            "entries": [dataclasses.asdict(entry) for entry in self._entries],
        }
        self._folder.write(INDEX, json.dumps(index).encode())

    def _open(self) -> None:
        try:
            index = json.loads(self._folder.read(INDEX))
            if index["format"] != _FORMAT:
                raise RunError(f"'{self._folder.path}' was written by another version of this program")
            self._base = None if index["base"] is None else (str(index["base"][0]), str(index["base"][1]))
            self._written = int(index["written"])
            self._entries = [_Entry(**entry) for entry in index["entries"]]
            self._attempt = int(index["attempt"])
            self._reached = None if index["reached"] is None else (str(index["reached"][0]), int(index["reached"][1]))
            self._answered = [str(phase) for phase in index["answered"]]
        except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
            raise _damaged(self._folder, INDEX) from error
        self._clear()

    def _clear(self) -> None:
        """Delete files that nothing names any more: after the index was written, and after a sudden end."""
        named = {entry.file for entry in self._entries} | ({self._base[0]} if self._base else set())
        for name in self._folder.names():
            if name not in named and name.partition(".")[2].startswith("safetensors"):
                self._folder.remove(name)
        if self._cached is not None and self._cached[0] not in named:
            self._cached = None


def _order(reached: tuple[str, int]) -> tuple[int, int]:
    return (_STAGES.index(reached[0]), reached[1])


def _comes_after(place: tuple[str, int, str], other: tuple[str, int, str]) -> bool:
    """Whether a place is of a later round, or of the run itself where the other is of the exchange before it."""
    if place[0] != other[0]:
        return other[0] == SCALING
    return place[1] > other[1]


def _bytes(content: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else torch.zeros(0, dtype=torch.uint8)


def _damaged(folder: OwnFolder, name: str) -> Damaged:
    return Damaged(f"'{folder.path / name}' is damaged: expected what this program wrote; the run cannot go on here")
