"""A site's end of Flower: this process is itself the node, with the node's key, at its own pace.

Flower's own SuperNode would start a process for every message. This one keeps data, model and state where they are.
Whatever goes wrong with the connection, it is made again; what could not be sent will be asked for again.
"""

from __future__ import annotations

import contextlib
import json
import logging
import ssl
import threading
import time
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fewfed.deploy.flower import wire
from fewfed.deploy.flower.superlink import parsed_address
from fewfed.deploy.parcel import Parcel
from fewfed.deploy.security.keys import FlowerKey
from fewfed.deploy.transport import Delivery
from fewfed.engine.own_folder import OwnFolder
from fewfed.errors import RunError

if TYPE_CHECKING:
    import httpx
    from flwr.proto.node_pb2 import Node
    from flwr.supercore.protobuf.client import ProtobufCall, ProtobufRequestContext

_HEARTBEAT = 3.0
_INTERVAL = 10.0
"""Seconds after which, twice over, Flower takes a node without heartbeats for lost. It takes no shorter time."""
_NODE = "node.json"
_SHORTEST, _LONGEST = 0.2, 5.0
"""Seconds between two attempts to connect."""


class _Signed:
    """Signs every call with the node's key and the time, as Flower wants it.

    The time is the server's where clocks differ: Flower refuses what is signed in its future, or long ago.
    """

    def __init__(self, key: FlowerKey) -> None:
        from flwr.supercore.primitives.asymmetric import public_key_to_bytes

        self._private, public = key.pair
        self.public = public_key_to_bytes(public)
        self._ahead = timedelta()

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        from flwr.common.constant import TIMESTAMP_HEADER
        from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
        from flwr.supercore.date import now
        from flwr.supercore.primitives.asymmetric import sign_message

        timestamp = (now() + self._ahead).isoformat()
        signature = sign_message(self._private, timestamp.encode("ascii"))
        context.request.headers.update(
            {
                FLEET_HTTP_PUBLIC_KEY_HEADER: b64encode(self.public).decode("ascii"),
                TIMESTAMP_HEADER: timestamp,
                FLEET_HTTP_SIGNATURE_HEADER: b64encode(signature).decode("ascii"),
            }
        )
        response = call_next(context)
        with contextlib.suppress(ValueError, TypeError):
            there = parsedate_to_datetime(response.headers.get("date", ""))
            if abs(there - now() - self._ahead) > timedelta(seconds=3):
                self._ahead = there - now()
        return response


@dataclass(frozen=True)
class _Received:
    """A parcel that came as a message of Flower."""

    parcel: Parcel
    reply: Callable[[Parcel], None]

    def answer(self, parcel: Parcel) -> None:
        self.reply(parcel)


class FlowerLine:
    """A `Line` to a SuperLink."""

    def __init__(
        self,
        server: str,
        key: FlowerKey,
        authority: Path,
        memory: OwnFolder,
        *,
        most_bytes: int = 1 << 31,
        log: logging.Logger,
    ) -> None:
        """`authority`: the certificate that the server's must be signed with; `memory`: where the node's number is
        kept for the next start."""
        host, port = parsed_address(server)
        self._url = f"https://{f'[{host}]' if ':' in host else host}:{port}"
        self._server, self._signed, self._most_bytes, self._log = server, _Signed(key), most_bytes, log
        self._memory = memory
        self._context = ssl.create_default_context(cafile=str(authority))
        self._client: Any = None
        self._node: Node | None = None
        self._pause, self._next = _SHORTEST, 0.0
        self._told = ""
        self._stop = threading.Event()

    def receive(self) -> Delivery | None:
        import httpx
        from flwr.proto.fleet_pb2 import PullMessagesRequest

        try:
            if self._node is None and not self._connect():
                return None
            found = self._client.PullMessages(PullMessagesRequest(node=self._node))
            if not found.messages_list:
                return None
            return self._delivery(found.messages_list[0], found.message_object_trees[0])
        except httpx.HTTPError as error:
            self._lost(error)
        except wire.Unreadable as error:
            self._log.warning("a message could not be read: %s", error)
        return None

    def close(self) -> None:
        from flwr.proto.fleet_pb2 import DeactivateNodeRequest

        node, client = self._node, self._client
        self._disconnect()
        if node is not None:
            with contextlib.suppress(Exception):
                client.DeactivateNode(DeactivateNodeRequest(node_id=node.node_id))
        if client is not None:
            client.close()

    def _connect(self) -> bool:
        """Whether this node is known to the server now. Attempts have a pause between them that grows."""
        from flwr.proto.fleet_pb2 import ActivateNodeRequest
        from flwr.proto.node_pb2 import Node
        from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
        from flwr.supernode.fleet_http_client import FleetHttpClient

        if time.monotonic() < self._next:
            return False
        if self._client is None:
            version = RuntimeVersionHttpInterceptor(component_name="SuperNode")
            self._client = FleetHttpClient(self._url, interceptors=[version, self._signed], verify=self._context)
        self._forget_last()
        request = ActivateNodeRequest(public_key=self._signed.public, heartbeat_interval=_INTERVAL)
        self._node = Node(node_id=self._client.ActivateNode(request).node_id)
        try:
            self._memory.write(_NODE, json.dumps({"node": self._node.node_id}).encode())
        except RunError as error:  # A full disk, say. It only makes the next start slower.
            self._log.warning("%s", error)
        self._pause, self._told = _SHORTEST, ""
        self._log.info("connected to %s", self._server)
        self._start_heart(self._client, self._node)
        return True

    def _forget_last(self) -> None:
        """Tell the server that this node's last process is gone: if it was killed, no other is taken for it yet."""
        import httpx
        from flwr.proto.fleet_pb2 import DeactivateNodeRequest

        with contextlib.suppress(httpx.HTTPStatusError, RunError, ValueError, KeyError, TypeError):
            if self._memory.has(_NODE):
                number = int(json.loads(self._memory.read(_NODE, 1000))["node"])
                self._client.DeactivateNode(DeactivateNodeRequest(node_id=number))

    def _delivery(self, message: Any, tree: Any) -> Delivery:
        from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest

        metadata, node, came = message.metadata, self._node, time.monotonic()

        def pull(object_id: str) -> bytes | None:
            request = PullObjectRequest(node=node, run_id=metadata.run_id, object_id=object_id)
            found = self._client.PullObject(request)
            if not found.object_found:
                raise wire.Unreadable("a part of it is gone")
            return bytes(found.object_content) if found.object_available else None

        contents = wire.pulled(tree, pull, self._most_bytes)
        request = ConfirmMessageReceivedRequest(
            node=node, run_id=metadata.run_id, message_object_id=metadata.message_id
        )
        self._client.ConfirmMessageReceived(request)
        parcel = wire.parcel_in(metadata.message_id, contents)

        def reply(answer: Parcel) -> None:
            self._send(metadata, time.monotonic() - came, answer)

        return _Received(parcel, reply)

    def _send(self, asked: Any, seconds: float, parcel: Parcel) -> None:
        """Send the answer to a message. Where that fails the coordinator asks again, and the answer is on our disk."""
        import httpx
        from flwr.proto.fleet_pb2 import PushMessagesRequest
        from flwr.supercore.inflatable.inflatable_protobuf_utils import make_push_object_fn_protobuf
        from flwr.supercore.inflatable.inflatable_utils import ObjectPushError, push_objects

        if self._node is None:
            return
        message = wire.message_of(
            parcel,
            run=asked.run_id,
            sender=self._node.node_id,
            to=asked.src_node_id,
            # By the clock of whoever asked: ours may differ.
            created=asked.created_at + seconds,
            ttl=max(1.0, asked.ttl - seconds),
            answers=asked.message_id,
        )
        protos, trees, objects = wire.objects_of([message])
        try:
            found = self._client.PushMessages(
                PushMessagesRequest(
                    node=self._node, messages_list=protos, message_object_trees=trees, clientapp_runtime_list=[seconds]
                )
            )
            push = make_push_object_fn_protobuf(self._client.PushObject, self._node, asked.run_id, found.session_id)
            push_objects(dict(objects), push, object_ids_to_push=set(found.objects_to_push))
        except (httpx.HTTPError, ObjectPushError) as error:
            self._lost(error)

    def _lost(self, error: Exception) -> None:
        """The connection, or the server's memory of this node, is gone: begin anew."""
        text = _told(error)
        if text != self._told:
            self._told = text
            self._log.warning("no connection to %s: %s; trying again", self._server, text)
        self._disconnect()
        self._next = time.monotonic() + self._pause
        self._pause = min(_LONGEST, 1.5 * self._pause)

    def _disconnect(self) -> None:
        self._stop.set()
        self._node = None

    def _start_heart(self, client: Any, node: Node) -> None:
        from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest

        stop = self._stop = threading.Event()
        request = SendNodeHeartbeatRequest(node=node, heartbeat_interval=_INTERVAL)

        def beat() -> None:
            while not stop.wait(_HEARTBEAT):
                with contextlib.suppress(Exception):  # The next call in earnest will find out.
                    client.SendNodeHeartbeat(request)

        threading.Thread(target=beat, daemon=True, name="heartbeat of the node").start()


def _told(error: Exception) -> str:
    """What went wrong, for the site's log."""
    import httpx

    if isinstance(error, httpx.HTTPStatusError):
        if error.response.status_code == 401:
            return "the coordinator does not know this site's node key, or the clocks differ"
        if error.response.status_code == 412:
            return (
                "this site's node key is not on the coordinator's roster; or the coordinator has only just started, or "
                "another process still uses the key"
            )
        return f"it answered {error.response.status_code} ({error.response.text[:200]})"
    return str(error) or type(error).__name__
