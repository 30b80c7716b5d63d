"""The coordinator's end of Flower: it starts the SuperLink, makes itself the run's ServerApp, and moves parcels.

`flwr run` would package an app and start processes for it. Here the coordinator asks the SuperLink for a run, takes the
run's task itself, as Flower's SuperExec would, and then is the process that serves it. Messages are pushed and pulled
at our own pace. The run's app is for sites with a stock SuperNode alone; our own nodes never fetch it.

The SuperLink keeps everything in memory. Where it dies it is started again, with the same nodes and a new run, and
every site counts as started anew: what was on its way is asked for again, and sites answer from their disks.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fewfed.deploy.flower import relay_app, wire
from fewfed.deploy.flower.superlink import SuperLink
from fewfed.deploy.parcel import Parcel, Unanswered
from fewfed.errors import RunError

if TYPE_CHECKING:
    import httpx
    from flwr.supercore.protobuf.client import ProtobufCall, ProtobufRequestContext
    from flwr.supercore.runtime import RuntimeHttpClient

_HEARTBEAT = 10.0
_LOOK = 0.25
"""Seconds for which what is known of the nodes is good enough."""
_OF_APP = (1, 2)
"""Flower's codes of errors that a node's app caused: it could not be loaded, or it raised."""
_RESTARTS = 5
"""So many starts that fail one after another end the run."""


class _Known:
    """Shows the door of the SuperLink who is calling."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        self._headers = headers

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        context.request.headers.update(self._headers)
        return call_next(context)


class FlowerHub:
    """A `Transport` over a SuperLink of its own."""

    def __init__(
        self,
        link: SuperLink,
        nodes: Mapping[str, str],
        *,
        most_bytes: int = 1 << 31,
        ttl: float = 86_400.0,
        log: logging.Logger | None = None,
    ) -> None:
        """`nodes`: the public key of every site's node, as the roster has it. Nobody else is let in."""
        self._link, self._keys, self._most_bytes, self._ttl = link, dict(nodes), most_bytes, ttl
        self._log = log or logging.getLogger("fewfed.coordinator")
        self._names: dict[int, str] = {}
        self._ids: dict[str, int] = {}
        self._client: RuntimeHttpClient | None = None
        self._run = 0
        self._asked: dict[str, str] = {}
        """Which site each message that is not answered yet went to."""
        self._coming: dict[str, tuple[str, wire.Pulling]] = {}
        """Answers of which not everything is there yet, each with the site it comes from."""
        self._again: dict[str, int] = {}
        """How often what was sent to a site was lost on the way."""
        self._sessions: dict[str, str] = {}
        self._looked = 0.0
        self._stop = threading.Event()
        self._heart: threading.Thread | None = None
        self._link.start()
        self._open()

    def present(self) -> Mapping[str, str]:
        if time.monotonic() - self._looked < _LOOK:
            return self._sessions
        from flwr.proto.runtime_pb2 import GetNodesRequest

        with self._mended():
            found = self._runtime.GetNodes(GetNodesRequest())
            self._sessions = {
                self._names[node.node_id]: f"{self._run} {node.last_activated_at} "
                f"{self._again.get(self._names[node.node_id], 0)}"
                for node in found.nodes
                if node.status == "online" and node.node_id in self._names
            }
            self._looked = time.monotonic()
        return self._sessions

    def send(self, parcels: Mapping[str, Parcel]) -> None:
        from flwr.common.constant import SUPERLINK_NODE_ID
        from flwr.proto.node_pb2 import Node
        from flwr.proto.runtime_pb2 import PushAppMessagesRequest
        from flwr.supercore.inflatable.inflatable_protobuf_utils import make_push_object_fn_protobuf
        from flwr.supercore.inflatable.inflatable_utils import push_objects

        with self._mended():
            messages = {
                site: wire.message_of(
                    parcel,
                    run=self._run,
                    sender=SUPERLINK_NODE_ID,
                    to=self._ids[site],
                    created=time.time(),
                    ttl=self._ttl,
                    answers="",
                )
                for site, parcel in parcels.items()
            }
            protos, trees, objects = wire.objects_of(list(messages.values()))
            found = self._runtime.PushMessages(PushAppMessagesRequest(messages_list=protos, message_object_trees=trees))
            node = Node(node_id=SUPERLINK_NODE_ID)
            push_objects(
                dict(objects),
                make_push_object_fn_protobuf(self._runtime.PushObject, node, self._run, found.session_id),
                object_ids_to_push=set(found.objects_to_push),
            )
            for site, name in zip(messages, found.message_ids, strict=True):
                if name:
                    self._asked[name] = site
                else:
                    self._lose(site)

    def receive(self) -> Sequence[tuple[str, Parcel | Unanswered]]:
        from flwr.proto.runtime_pb2 import PullAppMessagesRequest

        came: list[tuple[str, Parcel | Unanswered]] = []
        with self._mended():
            if self._asked:
                found = self._runtime.PullMessages(PullAppMessagesRequest(message_ids=list(self._asked)))
                came += self._noted(found)
            for name, (site, pulling) in list(self._coming.items()):
                parcel = self._parcel(site, name, pulling)
                if parcel is not None:
                    came.append((site, parcel))
        return came

    def _noted(self, found: Any) -> Iterator[tuple[str, Parcel | Unanswered]]:
        """Note answers whose contents are to be fetched; those of which nothing is to be had come out at once."""
        for message, tree in zip(found.messages_list, found.message_object_trees, strict=True):
            site = self._asked.pop(message.metadata.reply_to_message_id, None)
            if site is None:
                continue
            if message.HasField("error"):
                if message.error.code in _OF_APP:
                    yield site, Unanswered(relay_app.told(message.error.reason))
                else:  # The node was away for too long, or the message expired.
                    self._lose(site)
                continue
            try:
                self._coming[message.metadata.message_id] = (site, wire.Pulling(tree, self._most_bytes))
            except wire.Unreadable as error:
                yield site, self._unreadable(site, error)

    def close(self) -> None:
        self._stop.set()
        if self._heart is not None:
            self._heart.join()
        if self._client is not None:
            with contextlib.suppress(Exception):
                from flwr.common.constant import SubStatus
                from flwr.proto.runtime_pb2 import PushTaskOutputRequest

                self._client.PushTaskOutput(PushTaskOutputRequest(sub_status=SubStatus.COMPLETED, details=""))
            self._client.close()
        self._link.stop()

    @property
    def _runtime(self) -> RuntimeHttpClient:
        if self._client is None:
            raise RunError("the connection to Flower's SuperLink is closed")
        return self._client

    def _parcel(self, site: str, name: str, pulling: wire.Pulling) -> Parcel | None:
        """An answer, as soon as all of it is there. Nobody waits for a site that stops in the middle of one."""
        from flwr.common.constant import SUPERLINK_NODE_ID
        from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest
        from flwr.proto.node_pb2 import Node

        node = Node(node_id=SUPERLINK_NODE_ID)

        def pull(object_id: str) -> bytes | None:
            request = PullObjectRequest(node=node, run_id=self._run, object_id=object_id)
            found = self._runtime.PullObject(request)
            if not found.object_found:
                raise wire.Unreadable("a part of it is gone")
            return found.object_content if found.object_available else None

        try:
            contents = pulling.advance(pull)
            if contents is None and not pulling.stands:
                return None
            if contents is None:  # Its process was killed while it sent, say: it is asked again.
                self._log.warning("an answer of site '%s' was broken off", site)
                self._lose(site)
            found = None if contents is None else wire.parcel_in(name, contents)
        except wire.Unreadable as error:
            found = self._unreadable(site, error)
        del self._coming[name]
        confirmed = ConfirmMessageReceivedRequest(node=node, run_id=self._run, message_object_id=name)
        self._runtime.ConfirmMessageReceived(confirmed)
        return found

    def _unreadable(self, site: str, error: wire.Unreadable) -> Parcel:
        """As an answer that no signature fits: the site's turn ends, and it is a strike."""
        self._log.warning("an answer of site '%s' could not be read: %s", site, error)
        return Parcel(b"")

    def _lose(self, site: str) -> None:
        self._again[site] = self._again.get(site, 0) + 1
        self._looked = 0.0

    @contextlib.contextmanager
    def _mended(self) -> Iterator[None]:
        """What goes wrong on the way to the SuperLink is mended where it can be; letters are then sent again."""
        import httpx
        from flwr.supercore.inflatable.inflatable_utils import ObjectPushError

        try:
            yield
        except (httpx.HTTPError, ObjectPushError) as error:
            self._log.warning("Flower's SuperLink: %s: connecting anew", error or type(error).__name__)
            self._renew()

    def _renew(self) -> None:
        import httpx

        for number in range(_RESTARTS):
            try:
                if number or not self._link.alive():
                    self._log.warning("Flower's SuperLink is started again")
                    self._link.start()
                self._open()
                return
            except (httpx.HTTPError, RunError) as error:
                self._log.warning("Flower's SuperLink: %s", error)
                time.sleep(1.0)
        raise RunError("Flower's SuperLink cannot be started again: see its log; 'fewfed serve --resume' goes on")

    def _open(self) -> None:
        """Register the sites' nodes, and have a run of our own."""
        self._stop_heart()
        control = self._connected(_control_client())
        try:
            self._register(control)
            run = self._started(control)
        finally:
            control.close()
        self._client = self._acquired(run)
        self._run = run
        self._asked.clear()
        self._coming.clear()
        self._sessions, self._looked = {}, 0.0
        self._start_heart(self._client)

    def _register(self, control: Any) -> None:
        import httpx
        from cryptography.hazmat.primitives.serialization import load_ssh_public_key
        from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest
        from flwr.supercore.primitives.asymmetric import public_key_to_bytes

        keys: dict[bytes, str] = {}
        for name, line in self._keys.items():
            key: Any = load_ssh_public_key(line.encode())
            keys[public_key_to_bytes(key)] = name
        there = {node.public_key: node.node_id for node in control.ListNodes(ListNodesRequest()).nodes_info}
        for key, name in keys.items():
            if key not in there:
                try:
                    there[key] = control.RegisterNode(RegisterNodeRequest(public_key=key)).node_id
                except httpx.HTTPStatusError as error:
                    raise RunError(f"Flower does not take the node key of site '{name}': {error}") from error
        self._ids = {name: there[key] for key, name in keys.items()}
        self._names = {number: name for name, number in self._ids.items()}

    def _started(self, control: Any) -> int:
        from flwr.proto.control_pb2 import StartRunRequest
        from flwr.proto.fab_pb2 import Fab

        app, digest = relay_app.packed()
        fab = Fab(hash_str=digest, content=app)
        return int(control.StartRun(StartRunRequest(fab=fab)).run_id)

    def _acquired(self, run: int) -> RuntimeHttpClient:
        """Take the run's task, and with it the right to send messages."""
        from flwr.proto.runtime_pb2 import AcquireTaskRequest, PullTaskInputRequest
        from flwr.supercore.constant import TaskType
        from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor
        from flwr.supercore.runtime import RuntimeHttpClient

        asking = self._connected(RuntimeHttpClient)
        try:
            while True:  # A task of a run before this one may still wait: nobody else will take it.
                found = asking.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP]))
                if not found.token:
                    raise RunError("Flower's SuperLink gave the coordinator no task: is another process taking them?")
                if found.task.run_id == run:
                    break
        finally:
            asking.close()
        client: RuntimeHttpClient = self._connected(RuntimeHttpClient, RuntimeTokenHttpInterceptor(token=found.token))
        client.PullTaskInput(PullTaskInputRequest())
        return client

    def _connected(self, kind: Any, *more: Any) -> Any:
        from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

        version = RuntimeVersionHttpInterceptor(component_name="flwr-serverapp")
        return kind(
            self._link.url,
            interceptors=[version, _Known(self._link.headers), *more],
            verify=self._link.tls_context(),
        )

    def _start_heart(self, client: RuntimeHttpClient) -> None:
        from flwr.proto.runtime_pb2 import SendTaskHeartbeatRequest

        stop = self._stop = threading.Event()

        def beat() -> None:
            while not stop.wait(_HEARTBEAT):
                with contextlib.suppress(Exception):  # The next call in earnest will find out.
                    client.SendTaskHeartbeat(SendTaskHeartbeatRequest())

        self._heart = threading.Thread(target=beat, daemon=True, name="heartbeat of the run")
        self._heart.start()

    def _stop_heart(self) -> None:
        self._stop.set()
        if self._heart is not None:
            self._heart.join()
            self._heart = None
        if self._client is not None:
            self._client.close()
            self._client = None


def _control_client() -> Any:
    from flwr.supercore.control.control_http_client import ControlHttpClient

    return ControlHttpClient
