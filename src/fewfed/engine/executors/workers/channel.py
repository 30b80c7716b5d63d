"""Messages between processes: small JSON headers over a socket, arrays through shared memory, never pickle.

Each side writes its arrays into shared memory of its own, one area a slot, and hands the other the file descriptor when
an area is new or has grown. The files have no name, so nothing is left behind however a process dies. What a worker
receives it cannot write to, because other workers look at the same memory.
"""

from __future__ import annotations

import array
import contextlib
import json
import mmap
import socket
import struct
from typing import Any

import torch
from torch import Tensor

from fewfed import tree
from fewfed.engine.executors.workers.area import Area
from fewfed.errors import RunError
from fewfed.tree import Tree

_HEADER = struct.Struct("<QB")
_ALIGN = 64
_SEND_SECONDS = 60
"""How long the other side may leave everything unread before it counts as gone."""
_DTYPES = {
    str(dtype): dtype for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64)
} | {str(dtype): dtype for dtype in (torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)}


class Closed(Exception):
    """The other side is gone."""


class Channel:
    """One end of a conversation. A slot's arrays stay valid until the other side sends on that slot again."""

    def __init__(self, sock: socket.socket, access: int) -> None:
        """`access`: what may be done with the memory that is received."""
        self.sock = sock
        self._access = access
        self._mine: dict[str, Area] = {}
        self._theirs: dict[str, Area] = {}

    @classmethod
    def pair(cls) -> tuple[Channel, Channel]:
        """The end of the main process, and that of a worker, which can only read what it receives."""
        ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        for end in ends:
            # Room for the headers of the largest networks, so that two ends never wait for each other to read.
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 22)
        # A worker that is stopped reads nothing: the main process must not wait for it to do so.
        with contextlib.suppress(OSError):
            ends[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", _SEND_SECONDS, 0))
        return cls(ends[0], mmap.ACCESS_WRITE), cls(ends[1], mmap.ACCESS_READ)

    def fileno(self) -> int:
        return self.sock.fileno()

    def send(self, message: dict[str, Any], arrays: Tree | None = None, slot: str = "0") -> None:
        """Send a JSON-able message with a tree of arrays."""
        body: dict[str, Any] = {"message": message, "slot": slot}
        fds: list[int] = []
        if arrays is not None:
            area = self._mine.setdefault(slot, Area())
            body["places"] = _pack(arrays, area)
            if area.fresh:
                fds = [area.fd]
                area.fresh = False
        self._send(json.dumps(body).encode(), fds)

    def share(self, arrays: Tree, slot: str, others: list[Channel]) -> list[Channel]:
        """Write arrays once and let several receivers look at them; returns those that are gone."""
        area = self._mine.setdefault(slot, Area())
        body = {"message": {"kind": "share"}, "slot": slot, "places": _pack(arrays, area)}
        gone = []
        for channel in others:
            try:
                channel._send(json.dumps(body).encode(), [area.fd])
            except Closed:
                gone.append(channel)
        return gone

    def receive(self) -> tuple[dict[str, Any], Tree]:
        """The next message and views of its arrays."""
        payload, fds = self._receive()
        body = json.loads(payload)
        slot = body["slot"]
        if fds:
            self._theirs.setdefault(slot, Area()).attach(fds[0], self._access)
        if "places" not in body:
            return body["message"], {}
        return body["message"], _unpack(body["places"], self._theirs[slot].tensor)

    def close(self) -> None:
        self.sock.close()
        for area in (*self._mine.values(), *self._theirs.values()):
            area.close()

    def _send(self, payload: bytes, fds: list[int]) -> None:
        try:
            socket.send_fds(self.sock, [_HEADER.pack(len(payload), len(fds))], fds)
            self.sock.sendall(payload)
        except OSError as error:
            raise Closed(str(error)) from error

    def _receive(self) -> tuple[bytes, list[int]]:
        try:
            header, ancillary, _, _ = self.sock.recvmsg(_HEADER.size, socket.CMSG_SPACE(4))
            header += self._exactly(_HEADER.size - len(header))
            length, _ = _HEADER.unpack(header)
            payload = self._exactly(length)
        except OSError as error:
            raise Closed(str(error)) from error
        fds: list[int] = []
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.extend(array.array("i", data[: len(data) - len(data) % 4]))
        return payload, fds

    def _exactly(self, length: int) -> bytes:
        chunks = bytearray()
        while len(chunks) < length:
            chunk = self.sock.recv(min(1 << 20, length - len(chunks)))
            if not chunk:
                raise Closed("end of stream")
            chunks += chunk
        return bytes(chunks)


def _pack(arrays: Tree, area: Area) -> list[list[Any]]:
    places: list[list[Any]] = []
    offset = 0
    flat = [(path, leaf.detach().cpu().contiguous()) for path, leaf in tree.leaves(arrays)]
    for path, leaf in flat:
        if str(leaf.dtype) not in _DTYPES:
            raise RunError(f"'{path}' is of {leaf.dtype}: expected one of {', '.join(_DTYPES)}")
        places.append([path, str(leaf.dtype), list(leaf.shape), offset])
        offset += -(-leaf.numel() * leaf.element_size() // _ALIGN) * _ALIGN
    room = area.reserve(offset)
    for (_, leaf), (_, _, _, start) in zip(flat, places, strict=True):
        if leaf.numel():
            _view(room, leaf.dtype, list(leaf.shape), start).copy_(leaf)
    return places + [[path, "", [], 0] for path in tree.hollows(arrays)]


def _unpack(places: list[list[Any]], room: Tensor) -> Tree:
    return tree.from_leaves(
        {path: _view(room, _DTYPES[dtype], shape, start) for path, dtype, shape, start in places if dtype},
        [path for path, dtype, _, _ in places if not dtype],
    )


def _view(room: Tensor, dtype: torch.dtype, shape: list[int], start: int) -> Tensor:
    count = 1
    for length in shape:
        count *= length
    size = count * dtype.itemsize
    return room[start : start + size].view(dtype).view(shape) if size else torch.empty(shape, dtype=dtype)
