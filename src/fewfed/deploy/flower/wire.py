"""Parcels as messages of Flower, and back. Flower stores and moves a message as objects named by their content."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fewfed.deploy.parcel import Parcel

if TYPE_CHECKING:
    from flwr.app import Message
    from flwr.proto.message_pb2 import ObjectTree

TYPE = "query"
_BESIDE = 1 << 20
"""Bytes that a message may take beside its parcel: names, sizes, lists of pieces."""
_PIECE = 5_000_000
"""Bytes of the pieces that Flower cuts arrays into."""
_PAUSE = 0.02
STANDS = 120.0
"""Seconds without another object after which a message counts as broken off."""


class Unreadable(Exception):
    """A message that holds no parcel, or one that is too large."""


def message_of(parcel: Parcel, *, run: int, sender: int, to: int, created: float, ttl: float, answers: str) -> Message:
    """A message that carries a parcel. `answers`: the message that it is the reply to."""
    from flwr.app import Metadata, RecordDict
    from flwr.app.message import make_message

    from fewfed.deploy.flower.relay import RECORD, record_of

    metadata = Metadata(
        run_id=run,
        message_id="",
        src_node_id=sender,
        dst_node_id=to,
        reply_to_message_id=answers,
        group_id="",
        created_at=created,
        ttl=ttl,
        message_type=TYPE,
    )
    message = make_message(metadata=metadata, content=RecordDict({RECORD: record_of(parcel.letter, parcel.attached)}))
    message.metadata.__dict__["_message_id"] = message.object_id
    return message


def parcel_in(message_id: str, contents: dict[str, bytes]) -> Parcel:
    """The parcel in a message, from the contents of its objects. Nothing in it is run or unpickled."""
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

    from fewfed.deploy.flower.relay import RECORD, parts_of

    try:
        message: Any = inflate_object_from_contents(message_id, contents)
        return Parcel(*parts_of(message.content[RECORD]))
    except Exception as error:
        raise Unreadable(f"it holds no parcel ({type(error).__name__})") from error


class Pulling:
    """A message that is fetched object by object. Their number and their sizes are bounded."""

    def __init__(self, tree: ObjectTree, most_bytes: int) -> None:
        from flwr.supercore.inflatable.inflatable_object import iterate_object_tree

        self._wanted = list(dict.fromkeys(each.object_id for each in iterate_object_tree(tree)))[::-1]
        if len(self._wanted) > 100 + 4 * most_bytes // _PIECE:
            raise Unreadable(f"it consists of {len(self._wanted)} pieces")
        self._most_bytes, self._bytes = most_bytes, 0
        self._found: dict[str, bytes] = {}
        self._moved = time.monotonic()

    def advance(self, pull: Callable[[str], bytes | None]) -> dict[str, bytes] | None:
        """The contents of all objects, or None as long as some are missing. It does not wait.

        `pull` gives None for an object whose sender has not finished sending it yet.
        """
        while self._wanted:
            content = pull(self._wanted[-1])
            if content is None:
                return None
            self._bytes += len(content)
            if self._bytes > self._most_bytes + _BESIDE:
                raise Unreadable(f"it has more than {self._most_bytes} bytes")
            self._found[self._wanted.pop()] = content
            self._moved = time.monotonic()
        return self._found

    @property
    def stands(self) -> bool:
        """Whether nothing more has come for so long that nobody expects the rest."""
        return time.monotonic() - self._moved > STANDS


def pulled(tree: ObjectTree, pull: Callable[[str], bytes | None], most_bytes: int) -> dict[str, bytes]:
    """The contents of all objects of a message, waited for."""
    pulling = Pulling(tree, most_bytes)
    while (found := pulling.advance(pull)) is None:
        if pulling.stands:
            raise Unreadable("a part of it did not come")
        time.sleep(_PAUSE)
    return found


def objects_of(messages: Sequence[Message]) -> tuple[list[Any], list[ObjectTree], Mapping[str, Any]]:
    """What is sent of messages: themselves without content, the trees of their objects, and the objects."""
    from flwr.app.message import remove_content_from_message
    from flwr.common.serde import message_to_proto
    from flwr.supercore.inflatable.inflatable_object import (
        get_all_nested_objects,
        get_object_tree,
        no_object_id_recompute,
    )

    with no_object_id_recompute():
        objects: dict[str, Any] = {}
        for message in messages:
            objects.update(get_all_nested_objects(message))
        trees = [get_object_tree(message) for message in messages]
        return [message_to_proto(remove_content_from_message(message)) for message in messages], trees, objects
