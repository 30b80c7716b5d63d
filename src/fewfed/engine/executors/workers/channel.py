"""Messages between processes: small JSON headers over a socket, arrays through shared memory, never pickle.

Each side writes its arrays into shared memory of its own, one area a slot, and hands the other the file descriptor when
an area is new or has grown. The files have no name, so nothing is left behind however a process dies.
"""

from __future__ import annotations

import array
import json
import mmap
import os
import socket
import struct
import tempfile
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fewfed import tree
from fewfed.tree import Tree

_HEADER = struct.Struct("<QB")
_ALIGN = 64
_DTYPES = {
    str(dtype): dtype for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64)
} | {str(dtype): dtype for dtype in (torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)}


class Closed(Exception):
    """The other side is gone."""


class _Area:
    """One piece of shared memory that is replaced by a larger one when it is too small."""

    def __init__(self) -> None:
        self.fd = -1
        self._map: mmap.mmap | None = None
        self._tensor: Tensor | None = None
        self.fresh = False

    def reserve(self, size: int) -> Tensor:
        if self._tensor is None or len(self._tensor) < size:
            self.close()
            room = max(size, 4096) * 5 // 4
            with tempfile.TemporaryFile(dir=_folder_with(room)) as file:
                file.truncate(room)
                self.attach(os.dup(file.fileno()))
            self.fresh = True
        assert self._tensor is not None
        return self._tensor

    def attach(self, fd: int) -> None:
        self.close()
        self.fd = fd
        self._map = mmap.mmap(fd, 0)
        self._tensor = torch.from_numpy(np.frombuffer(self._map, np.uint8))

    @property
    def tensor(self) -> Tensor:
        assert self._tensor is not None
        return self._tensor

    def close(self) -> None:
        # The mapping itself goes when the last tensor that looks into it does.
        self._map = None
        self._tensor = None
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class Channel:
    """One end of a conversation. A slot's arrays stay valid until the other side sends on that slot again."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._mine: dict[str, _Area] = {}
        self._theirs: dict[str, _Area] = {}

    @classmethod
    def pair(cls) -> tuple[Channel, Channel]:
        ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        for end in ends:
            # Room for the headers of the largest networks, so that two ends never wait for each other to read.
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 22)
        return cls(ends[0]), cls(ends[1])

    def fileno(self) -> int:
        return self.sock.fileno()

    def send(self, message: dict[str, Any], arrays: Tree | None = None, slot: str = "0") -> None:
        """Send a JSON-able message with a tree of arrays."""
        body: dict[str, Any] = {"message": message, "slot": slot}
        fds: list[int] = []
        if arrays is not None:
            area = self._mine.setdefault(slot, _Area())
            body["places"] = _pack(arrays, area)
            if area.fresh:
                fds = [area.fd]
                area.fresh = False
        self._send(json.dumps(body).encode(), fds)

    def share(self, arrays: Tree, slot: str, others: list[Channel]) -> list[Channel]:
        """Write arrays once and let several receivers look at them; returns those that are gone."""
        area = self._mine.setdefault(slot, _Area())
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
            self._theirs.setdefault(slot, _Area()).attach(fds[0])
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


def _pack(arrays: Tree, area: _Area) -> list[list[Any]]:
    places: list[list[Any]] = []
    offset = 0
    flat = [(path, leaf.detach().cpu().contiguous()) for path, leaf in tree.leaves(arrays)]
    for path, leaf in flat:
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


def _folder_with(room: int) -> str | None:
    """Memory-backed where there is space for it; containers often give it only 64 MiB."""
    if os.path.isdir("/dev/shm"):
        space = os.statvfs("/dev/shm")
        if space.f_bavail * space.f_frsize > 2 * room:
            return "/dev/shm"
    return None


def _view(room: Tensor, dtype: torch.dtype, shape: list[int], start: int) -> Tensor:
    count = 1
    for length in shape:
        count *= length
    size = count * dtype.itemsize
    return room[start : start + size].view(dtype).view(shape) if size else torch.empty(shape, dtype=dtype)
