"""The sites' homes as the coordinator sees them: it knows what became of their answers, and tells them so."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from fewfed.deploy.messages import BadMessage, Verdict
from fewfed.deploy.security.strikes import StrikeBook
from fewfed.engine.client_store import ClientStore
from fewfed.engine.job import PSEUDO_CLIENT
from fewfed.engine.storage import Damaged
from fewfed.errors import RunError
from fewfed.tree import Tree

_FACTS = "facts"
_ROUNDS = 2
"""Rounds, of those in which a site took part, whose verdicts it is told. It keeps answers for as long."""


class RemoteHomes:
    """`Homes` of real sites. What sites remember is on their own disks, and follows what they are told was accepted."""

    def __init__(self, strikes: StrikeBook | None = None, store: ClientStore | None = None) -> None:
        """`store`: where all this is written down with a checkpoint, in a file among those of clients' states."""
        self._store = ClientStore() if store is None else store
        self.strikes = strikes or StrikeBook()
        self.withdrawn: set[str] = set()
        """Sites whose rows must not be used any more."""
        self._verdicts: dict[str, list[Verdict]] = {}
        self._before: dict[str, list[Verdict]] = {}
        """As they were when the last round ended."""

    def judge(self, site: str, verdict: Verdict) -> None:
        """Note what became of a site's answer. It is told with the next request."""
        others = [each for each in self._verdicts.get(site, []) if (each.round, each.phase) != _place(verdict)]
        found = [*others, verdict]
        # However long a site is away, it must hear of the last answers that were accepted.
        rounds = _last(each.round for each in found) | _last(each.round for each in found if each.accepted)
        self._verdicts[site] = [each for each in found if each.round in rounds]

    def verdicts(self, site: str) -> tuple[Verdict, ...]:
        """What a site is to be told."""
        return tuple(self._verdicts.get(site, ()))

    def finish_round(self) -> None:
        self._before = {site: list(verdicts) for site, verdicts in self._verdicts.items()}

    def undo_round(self) -> None:
        self._verdicts = {site: list(verdicts) for site, verdicts in self._before.items()}

    def commit(self) -> dict[str, Any]:
        facts = {
            "verdicts": {site: [each.as_json() for each in found] for site, found in sorted(self._verdicts.items())},
            "strikes": self.strikes.as_json(),
            "withdrawn": sorted(self.withdrawn),
        }
        written = bytearray(json.dumps(facts).encode())
        self._store.put(PSEUDO_CLIENT, {_FACTS: torch.frombuffer(written, dtype=torch.uint8)})
        self._store.finish_round()
        return self._store.commit()

    def settle(self) -> None:
        """Sites clear their own disks."""
        self._store.forget_obsolete()

    def check(self, committed: Mapping[str, Any]) -> None:
        """Raise `Damaged` unless this is what `commit` returned."""
        self._store.check(committed)
        if committed:
            self._read(self._store.named_in(committed, PSEUDO_CLIENT))

    def restore(self, committed: Mapping[str, Any], before: Mapping[str, Any] | None = None) -> None:
        self._store.restore(committed, before)
        if committed:
            rule = self.strikes.rule
            self._verdicts, self.strikes, self.withdrawn = self._read(self._store.get(PSEUDO_CLIENT))
            self.strikes.rule = rule  # As the configuration has it now.
        self.finish_round()

    def book(self, client: int) -> Tree:  # noqa: ARG002
        """A site's book of what left it stays with the site."""
        return {}

    def close(self) -> None:
        self._store.close()

    @staticmethod
    def _read(written: Tree | None) -> tuple[dict[str, list[Verdict]], StrikeBook, set[str]]:
        try:
            facts = json.loads((written or {})[_FACTS].numpy().tobytes())
            verdicts = {
                str(site): [Verdict.from_json(each) for each in found] for site, found in facts["verdicts"].items()
            }
            return verdicts, StrikeBook.from_json(facts["strikes"]), set(map(str, facts["withdrawn"]))
        except (ValueError, KeyError, TypeError, AttributeError, BadMessage, RunError) as error:
            raise Damaged(f"what became of the sites' answers is damaged ({type(error).__name__})") from error


def _last(rounds: Iterable[int]) -> set[int]:
    return set(sorted(set(rounds))[-_ROUNDS:])


def _place(verdict: Verdict) -> tuple[int, str]:
    return (verdict.round, verdict.phase)
