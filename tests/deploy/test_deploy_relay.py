"""The socket between a relay and a site's daemon, and the app that a stock SuperNode is sent."""

from __future__ import annotations

import hashlib
import io
import logging
import socket
import stat
import struct
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fewfed.deploy.flower import relay_app, wire
from fewfed.deploy.flower.relay import parts_of, reached, receive_parcel, relayed, send_parcel
from fewfed.deploy.flower.relay_line import SOCKET, RelayLine
from fewfed.deploy.parcel import Parcel
from fewfed.errors import ConfigError

LOG = logging.getLogger("fewfed.test")


@pytest.fixture
def line(tmp_path: Path) -> Iterator[RelayLine]:
    made = RelayLine(tmp_path, most_bytes=1 << 20, log=LOG, seconds=0.5)
    yield made
    made.close()
    assert not (tmp_path / SOCKET).exists()


def asked(folder: Path, letter: bytes, attached: bytes, answers: list[Any]) -> threading.Thread:
    def ask() -> None:
        with reached(str(folder / SOCKET), 5.0) as connection:
            send_parcel(connection, letter, attached)
            answers.append(receive_parcel(connection, 1 << 30))

    thread = threading.Thread(target=ask)
    thread.start()
    return thread


def came(line: RelayLine) -> Any:
    deadline = time.monotonic() + 10
    while (found := line.receive()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found


@pytest.mark.parametrize("size", [0, 1, 900_000])
def test_parcels_pass_both_ways(line: RelayLine, tmp_path: Path, size: int) -> None:
    answers: list[Any] = []
    thread = asked(tmp_path, b"letter", bytes(size), answers)
    delivery = came(line)
    assert delivery.parcel == Parcel(b"letter", bytes(size))
    delivery.answer(Parcel(b"answer", b"more"))
    thread.join()
    assert answers == [(b"answer", b"more")]


def test_only_this_user_can_connect(line: RelayLine, tmp_path: Path) -> None:
    assert stat.S_IMODE((tmp_path / SOCKET).stat().st_mode) == 0o600


def test_whoever_is_not_answered_is_hung_up_on(line: RelayLine, tmp_path: Path) -> None:
    answers: list[Any] = []
    thread = asked(tmp_path, b"of a stranger", b"", answers)
    came(line)
    assert line.receive() is None
    thread.join()
    assert answers == [None]


@pytest.mark.parametrize(
    "content",
    [b"", b"half a head", struct.pack("<QQ", 100, 0) + b"half a letter", struct.pack("<QQ", 1 << 60, 1 << 60)],
)
def test_what_is_cut_off_or_stalls_or_is_too_large_costs_half_a_second(
    line: RelayLine, tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with reached(str(tmp_path / SOCKET), 5.0) as stalled, caplog.at_level(logging.WARNING):
        stalled.sendall(content)
        began = time.monotonic()
        assert line.receive() is None
        assert time.monotonic() - began < 5.0
    assert "a parcel" in caplog.text
    answers: list[Any] = []
    thread = asked(tmp_path, b"next", b"", answers)
    came(line).answer(Parcel(b"ok"))
    thread.join()
    assert answers == [(b"ok", b"")]


def test_a_relay_that_has_left_does_no_harm(line: RelayLine, tmp_path: Path) -> None:
    with reached(str(tmp_path / SOCKET), 5.0) as gone:
        send_parcel(gone, b"letter", b"")
    delivery = came(line)
    delivery.answer(Parcel(bytes(900_000), bytes(900_000)))
    assert line.receive() is None


def test_what_a_killed_daemon_left_is_no_obstacle(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as before:
        before.bind(str(tmp_path / SOCKET))
    RelayLine(tmp_path, most_bytes=1, log=LOG).close()


def test_a_path_that_no_socket_can_have_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="too long for the path of a socket"):
        RelayLine(tmp_path / ("x" * 120), most_bytes=1, log=LOG)


def test_a_daemon_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="daemon is not there"):
        reached(str(tmp_path / SOCKET), 0.0)


def test_the_app_answers_a_message_of_flower_by_the_daemon(line: RelayLine, tmp_path: Path) -> None:
    from flwr.app import Context, RecordDict

    about: Any = {"run": 1, "sender": 2, "to": 3, "created": time.time(), "ttl": 60.0, "answers": ""}
    message = wire.message_of(Parcel(b"letter", bytes(300_000)), **about)
    context = Context(1, 2, {"socket": str(tmp_path / SOCKET)}, RecordDict(), {})
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(relayed(message, context)))
    thread.start()
    delivery = came(line)
    assert len(delivery.parcel.attached) == 300_000
    delivery.answer(Parcel(b"answer"))
    thread.join()
    assert parts_of(found[0].content["parcel"]) == (b"answer", b"")
    with pytest.raises(RuntimeError, match="where is the site's daemon"):
        relayed(message, Context(1, 2, {}, RecordDict(), {}))


def test_the_archive_lists_what_is_in_it_and_is_the_same_every_time() -> None:
    content, digest = relay_app.packed()
    assert (content, digest) == relay_app.packed()
    assert hashlib.sha256(content).hexdigest() == digest
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        lines = archive.read(".info/CONTENT").decode().splitlines()
        listed = {name: mark for name, mark, _ in (line.split(",") for line in lines)}
        assert listed == {name: hashlib.sha256(archive.read(name)).hexdigest() for name in listed}
        assert {*archive.namelist()} == {*listed, ".info/CONTENT"}
        assert b"import fewfed" not in archive.read("fewfed_relay.py")
        assert b"from fewfed" not in archive.read("fewfed_relay.py")


def test_what_an_app_raised_is_told_without_flowers_words() -> None:
    assert relay_app.told("<class 'RuntimeError'>:<'it is not there'>") == "it is not there"
    assert relay_app.told("something else") == "something else"
