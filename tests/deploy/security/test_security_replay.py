"""A reply is taken once; what is forgotten is never taken for new."""

from __future__ import annotations

import dataclasses

import pytest

from fewfed.deploy.security.envelope import Refused, seal
from fewfed.deploy.security.keys import SigningKey
from fewfed.deploy.security.names import COORDINATOR
from fewfed.deploy.security.replay import Waiting

KEYS = {name: SigningKey.new() for name in ("a", "b")}
PUBLIC = {name: key.public for name, key in KEYS.items()}
COORDINATORS = SigningKey.new()


def test_a_reply_is_taken_once_from_the_site_that_was_asked() -> None:
    waiting = Waiting(PUBLIC)
    asked = waiting.ask("a", "run", 3, "train", "work")
    reply = seal(b"done", asked.reply(), KEYS["a"])
    with pytest.raises(Refused) as caught:
        waiting.take("b", reply)  # Brought by another node.
    assert caught.value.cause == "sender"
    assert waiting.take("a", reply).body == b"done"
    assert len(waiting) == 0
    with pytest.raises(Refused, match="answered already") as caught:
        waiting.take("a", reply)
    assert (caught.value.cause, caught.value.sender) == ("repeated", "a")


def test_replies_nobody_waits_for() -> None:
    waiting = Waiting(PUBLIC)
    asked = waiting.ask("a", "run", 3, "train", "work")
    waiting.give_up(asked)
    waiting.give_up(asked)
    with pytest.raises(Refused, match="too late") as caught:
        waiting.take("a", seal(b"late", asked.reply(), KEYS["a"]))
    assert caught.value.cause == "old"
    never = dataclasses.replace(asked.reply(), nonce=bytes(16))
    with pytest.raises(Refused, match="never made") as caught:
        waiting.take("a", seal(b"x", never, KEYS["a"]))
    assert caught.value.cause == "nonce"


@pytest.mark.parametrize("other", [{"round": 2}, {"run": "old"}, {"phase": "tune"}, {"kind": "x"}, {"attempt": 1}])
def test_a_reply_to_something_else_leaves_the_request_open(other: dict[str, object]) -> None:
    waiting = Waiting(PUBLIC)
    asked = waiting.ask("a", "run", 3, "train", "work")
    wrong = dataclasses.replace(asked.reply(), **other)  # type: ignore[arg-type]
    with pytest.raises(Refused) as caught:
        waiting.take("a", seal(b"x", wrong, KEYS["a"]))
    assert caught.value.cause == next(iter(other))
    assert waiting.take("a", seal(b"x", asked.reply(), KEYS["a"])).body == b"x"


def test_a_request_is_no_reply() -> None:
    """What the coordinator sent cannot be sent back to it."""
    waiting = Waiting({**PUBLIC, COORDINATOR: COORDINATORS.public})
    asked = waiting.ask("a", "run", 3, "train", "work")
    with pytest.raises(Refused) as caught:
        waiting.take("a", seal(b"x", asked, COORDINATORS))
    assert caught.value.cause == "direction"


def test_a_coordinator_remembers_so_many_endings() -> None:
    waiting = Waiting(PUBLIC, remembered=10)
    asked = [waiting.ask("a", "run", round, "train", "work") for round in range(30)]
    for each in asked:
        waiting.take("a", seal(b"x", each.reply(), KEYS["a"]))
    causes = []
    for each in asked:
        with pytest.raises(Refused) as caught:
            waiting.take("a", seal(b"x", each.reply(), KEYS["a"]))
        causes.append(caught.value.cause)
    assert causes == ["nonce"] * 20 + ["repeated"] * 10
