"""Flower behind the transport: a real SuperLink with TLS and keys, parcels of every size, and what goes wrong."""

from __future__ import annotations

import datetime
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from real import free_port, wait_until

from fewfed.deploy.flower import installed, wire
from fewfed.deploy.flower.hub import FlowerHub
from fewfed.deploy.flower.link import MOST_BODY
from fewfed.deploy.flower.node import FlowerLine
from fewfed.deploy.flower.superlink import SuperLink, Tls, parsed_address
from fewfed.deploy.parcel import Parcel
from fewfed.deploy.security.key_folder import KeyFolder, SiteKeys, Wanted
from fewfed.engine.own_folder import OwnFolder
from fewfed.errors import ConfigError, RunError

LOG = logging.getLogger("fewfed.test")


@dataclass
class Echo:
    """A site that sends everything back."""

    line: FlowerLine
    came: list[int] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while not self.stop.is_set():
            delivery = self.line.receive()
            if delivery is None:
                time.sleep(0.02)
                continue
            self.came.append(len(delivery.parcel))
            delivery.answer(Parcel(delivery.parcel.letter[::-1], delivery.parcel.attached))

    def end(self) -> None:
        self.stop.set()
        self.thread.join()
        self.line.close()


@dataclass
class Link:
    """A hub and the keys of two sites; a third one is not on its list."""

    folder: Path

    def __post_init__(self) -> None:
        self.keys = KeyFolder(self.folder / "keys")
        self.keys.update(Wanted.parsed(["127.0.0.1"], ["amber", "birch", "mallory"]))
        self.port = free_port()
        path = self.keys.path
        self.tls = Tls(path / "ca.crt", path / "server.crt", path / "server.key")
        self.superlink = SuperLink(f"127.0.0.1:{self.port}", self.tls, self.folder / "flower")
        roster = self.keys.roster()
        nodes = {name: roster.sites[name].node for name in ("amber", "birch")}
        self.hub = FlowerHub(self.superlink, nodes, most_bytes=20_000_000)

    def line(self, name: str, authority: Path | None = None) -> FlowerLine:
        own = SiteKeys.read(self.keys.site(name))
        memory = OwnFolder(self.folder / f"memory-{name}")
        memory.make()
        server = f"127.0.0.1:{self.port}"
        return FlowerLine(server, own.node, authority or own.authority, memory, most_bytes=20_000_000, log=LOG)

    def round_trip(self, parcels: dict[str, Parcel], seconds: float = 60.0) -> dict[str, Parcel]:
        """Send, and wait for all answers; again to whoever is back in another session."""
        found: dict[str, Parcel] = {}
        sent: dict[str, str] = {}
        deadline = time.monotonic() + seconds
        while found.keys() != parcels.keys():
            assert time.monotonic() < deadline, "waited in vain for answers"
            here = self.hub.present()
            new = {
                site: parcels[site]
                for site in parcels.keys() - found.keys()
                if here.get(site) not in (None, sent.get(site))
            }
            if new:
                sent |= {site: here[site] for site in new}
                self.hub.send(new)
            # Whoever was asked twice, before, may still answer that.
            found |= {
                site: came
                for site, came in self.hub.receive()
                if site in parcels and isinstance(came, Parcel) and came.letter[::-1] == parcels[site].letter
            }
            time.sleep(0.02)
        return found


@pytest.fixture(scope="module")
def link(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Link]:
    made = Link(tmp_path_factory.mktemp("link"))
    yield made
    made.hub.close()


@pytest.fixture
def echoes(link: Link) -> Iterator[dict[str, Echo]]:
    made = {name: Echo(link.line(name)) for name in ("amber", "birch")}
    yield made
    for echo in made.values():
        echo.end()


@pytest.mark.parametrize("size", [1, 1000, 199_990, 200_010, 5_000_000, 12_345_678])
def test_parcels_of_every_size_arrive_as_they_are(link: Link, echoes: dict[str, Echo], size: int) -> None:
    letter, attached = os.urandom(min(size, 70_000)), os.urandom(size)
    parcels = {"amber": Parcel(letter, attached), "birch": Parcel(letter[:1], attached)}
    found = link.round_trip(parcels)
    assert found == {name: Parcel(parcel.letter[::-1], attached) for name, parcel in parcels.items()}


def test_what_is_too_large_is_not_taken(link: Link, echoes: dict[str, Echo], caplog: pytest.LogCaptureFixture) -> None:
    wait_until(lambda: link.hub.present().keys() >= {"amber"}, "amber")
    with caplog.at_level(logging.WARNING):
        link.hub.send({"amber": Parcel(b"x", os.urandom(22_000_000))})
        wait_until(lambda: "more than 20000000 bytes" in caplog.text, "the refusal", 60)
    assert echoes["amber"].came == []
    assert link.round_trip({"amber": Parcel(b"still there")}) == {"amber": Parcel(b"ereht llits")}


def test_nobody_waits_for_a_site_that_sends_half_an_answer(
    link: Link, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Half of the objects of a message, half of a request; the other site's answers come as ever."""
    from flwr.supercore.inflatable import inflatable_utils

    half, sent = threading.Event(), []
    true = inflatable_utils.push_objects

    def first_half(objects: Any, push: Any, *, object_ids_to_push: set[str]) -> None:
        if threading.current_thread() is slow.thread and not half.is_set():
            sent.append(sorted(object_ids_to_push))
            true(objects, push, object_ids_to_push=set(sent[0][: len(sent[0]) // 2]))
            half.set()
        else:
            true(objects, push, object_ids_to_push=object_ids_to_push)

    parcels = {name: Parcel(b"ab", os.urandom(7_000_000)) for name in ("amber", "birch")}
    slow, quick = Echo(link.line("amber")), Echo(link.line("birch"))
    monkeypatch.setattr(inflatable_utils, "push_objects", first_half)
    with (
        socket.create_connection(("127.0.0.1", link.port)) as plain,
        link.superlink.tls_context().wrap_socket(plain) as stalled,
    ):
        stalled.sendall(b"POST /v1/fleet/push-object HTTP/1.1\r\nHost: x\r\nContent-Length: 5000000\r\n\r\nhalf")
        wait_until(lambda: link.hub.present().keys() >= {"amber", "birch"}, "both")
        link.hub.send({"amber": parcels["amber"]})
        wait_until(lambda: bool(link.hub.receive() or half.is_set()), "half an answer")
        for _ in range(3):
            began = time.monotonic()
            found = link.round_trip({"birch": parcels["birch"]})
            assert found["birch"].attached == parcels["birch"].attached
            assert time.monotonic() - began < 30.0
        assert sent
        assert len(sent[0]) > 1
    # After a while it counts as broken off, which is no strike, and the site is asked again.
    monkeypatch.setattr(wire, "STANDS", 1.0)
    with caplog.at_level(logging.WARNING):
        wait_until(lambda: bool(link.hub.receive()) or "broken off" in caplog.text, "the end of it")
        found = link.round_trip({"amber": parcels["amber"]})
    assert found["amber"].attached == parcels["amber"].attached
    assert "broken off" in caplog.text
    slow.end()
    quick.end()


def test_a_node_that_is_not_on_the_list_is_not_let_in(link: Link, caplog: pytest.LogCaptureFixture) -> None:
    line = link.line("mallory")
    with caplog.at_level(logging.WARNING):
        assert line.receive() is None
        assert "no connection" in caplog.text
    line.close()
    assert "mallory" not in link.hub.present()


def test_a_server_of_another_authority_is_not_believed(
    link: Link, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = KeyFolder(tmp_path / "other")
    other.update(Wanted.parsed(["127.0.0.1"], ["amber"]))
    line = link.line("amber", authority=other.path / "ca.crt")
    with caplog.at_level(logging.WARNING):
        assert line.receive() is None
    assert "certificate" in caplog.text.lower()
    line.close()


@pytest.mark.parametrize("path", ["/v1/control/start-run", "/v1/runtime/acquire-task", "/docs", "/v1/fleetx", "/"])
def test_the_door_lets_nobody_but_the_coordinator_manage_runs(link: Link, path: str) -> None:
    with httpx.Client(verify=link.superlink.tls_context()) as client:
        for headers in ({}, {"x-fewfed-coordinator": "guess"}):
            assert client.post(link.superlink.url + path, headers=headers).status_code == 403
        known = client.post(link.superlink.url + path, headers=link.superlink.headers)
        assert known.status_code != 403


def test_the_door_bounds_what_a_node_sends_at_once(link: Link) -> None:
    with httpx.Client(verify=link.superlink.tls_context()) as client:
        large = client.post(link.superlink.url + "/v1/fleet/push-object", content=b"x" * (MOST_BODY + 1))
        assert large.status_code == 413

        def pieces() -> Iterator[bytes]:
            for _ in range(20):
                yield b"x" * 1_000_000

        try:
            streamed = client.post(link.superlink.url + "/v1/fleet/push-object", content=pieces())
            assert streamed.status_code >= 400
        except httpx.TransportError:
            pass  # Cut off.
    assert link.superlink.alive()


def test_clocks_may_differ(link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    from flwr.supercore import date

    true = date.now
    for hours in (-26, 3):
        monkeypatch.setattr(date, "now", lambda hours=hours: true() + datetime.timedelta(hours=hours))
        echo = Echo(link.line("amber"))
        try:
            assert link.round_trip({"amber": Parcel(b"abc")}) == {"amber": Parcel(b"cba")}
        finally:
            echo.end()


def test_a_killed_superlink_is_started_again_and_nodes_come_back(link: Link, echoes: dict[str, Echo]) -> None:
    assert link.round_trip({"amber": Parcel(b"ab")}) == {"amber": Parcel(b"ba")}
    starts = link.superlink.starts
    os.kill(link.superlink.pid, signal.SIGKILL)
    assert link.round_trip({"amber": Parcel(b"cd"), "birch": Parcel(b"ef")}) == {
        "amber": Parcel(b"dc"),
        "birch": Parcel(b"fe"),
    }
    assert link.superlink.starts == starts + 1


def test_a_node_that_was_killed_takes_its_place_at_once(link: Link) -> None:
    first = Echo(link.line("amber"))
    link.round_trip({"amber": Parcel(b"ab")})
    first.stop.set()  # Without saying good-bye, as a process that is killed.
    first.thread.join()
    first.line._stop.set()
    began = time.monotonic()
    second = Echo(link.line("amber"))
    assert link.round_trip({"amber": Parcel(b"cd")}) == {"amber": Parcel(b"dc")}
    assert time.monotonic() - began < 15.0
    second.end()


def test_another_version_of_flower_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    installed.require_flower()
    monkeypatch.setattr(installed, "VERSION", "1.40.0")
    with pytest.raises(ConfigError, match=r"Flower 1\.41\.0 is installed, .* needs 1\.40\.0"):
        installed.require_flower()


def test_a_port_that_is_taken_is_told(link: Link, tmp_path: Path) -> None:
    second = SuperLink(f"127.0.0.1:{link.port}", link.tls, tmp_path / "flower")
    with pytest.raises(RunError, match=r"did not start .*another server answers"):
        second.start()
    assert not second.alive()


@pytest.mark.parametrize("address", ["", "host", "host:", ":1", "host:0", "host:99999", "host:http"])
def test_addresses_that_are_none(address: str) -> None:
    with pytest.raises(ConfigError, match="HOST:PORT"):
        parsed_address(address)


def test_addresses() -> None:
    assert parsed_address("0.0.0.0:9092") == ("0.0.0.0", 9092)
    assert parsed_address("[::1]:9092") == ("::1", 9092)
