"""Which packets of a run are kept: rounds, clients and bytes, as a user writes them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fewfed.errors import ConfigError

TENTHS, ALL, LAST = "tenths", "all", "last"
"""Words for rounds: the first and every tenth of the run, all of them, the last one. Clients know `all` alone."""
_MEGABYTE = 1_000_000
_RANGE = re.compile(r"(\d{1,18})-(\d{1,18})")


@dataclass(frozen=True)
class Recording:
    """What is to be kept."""

    rounds: frozenset[int]
    """Counted from 1."""
    clients: frozenset[int] | None
    """None: all that take part."""
    most_bytes: int

    def members(self, round: int, taking_part: frozenset[int]) -> frozenset[int]:
        """Those of the clients that take part in a round whose packets are to be kept."""
        if round not in self.rounds:
            return frozenset()
        return taking_part if self.clients is None else taking_part & self.clients


def recording_of(rounds: str, clients: str, megabytes: float, *, of_rounds: int, of_clients: int) -> Recording:
    """From what a user says, for a run of so many rounds and clients; raise `ConfigError` where it names none of it."""
    whose = None if clients.strip() == ALL else _numbers("record_clients", clients, 0, of_clients - 1, {})
    words: dict[str, Iterable[int]] = {
        TENTHS: tenths(of_rounds),
        ALL: range(1, of_rounds + 1),
        LAST: (of_rounds,),
    }
    when = _numbers("record_rounds", rounds, 1, of_rounds, words)
    return Recording(when, whose, int(megabytes * _MEGABYTE))


def tenths(rounds: int) -> tuple[int, ...]:
    """The first round, the last, and every tenth of the run in between."""
    return tuple(sorted({1, rounds} | {max(1, rounds * part // 10) for part in range(1, 10)}))


def numbers_of(key: str, text: str, lowest: int, highest: int, otherwise: str) -> frozenset[int]:
    """Numbers as a user lists them: 0,3,10-19. `otherwise`: what could be there instead."""
    return _numbers(key, text, lowest, highest, {}, otherwise)


def _numbers(
    key: str, text: str, lowest: int, highest: int, words: Mapping[str, Iterable[int]], otherwise: str = ""
) -> frozenset[int]:
    found: set[int] = set()
    for part in (part.strip() for part in text.split(",")):
        span = _RANGE.fullmatch(f"{part}-{part}" if part.isascii() and part.isdigit() else part)
        if part in words:
            found |= set(words[part])
        elif span and lowest <= int(span[1]) <= int(span[2]) <= highest:
            found |= set(range(int(span[1]), int(span[2]) + 1))
        else:
            known = otherwise or (", ".join(words) if words else f"{ALL} alone")
            raise ConfigError(
                f"{key} = '{text:.80}': expected numbers from {lowest} to {highest} with commas between, as in "
                f"{lowest},{highest} or {lowest}-{highest}, or {known}",
                key=key,
                value=text,
            )
    return frozenset(found)
