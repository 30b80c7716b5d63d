"""The network between a site and the coordinator is cut, and mended: the site lives in a network of its own.

Needs the right to make networks (root, `ip netns`): where that is missing these tests cannot run, and say so.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from disturbed import Disturbed, assert_equals, assert_worked, missing, pause, reference


@dataclass(frozen=True)
class Wire:
    """A cable between this machine and a network with one machine in it."""

    number: int

    @property
    def network(self) -> str:
        return f"fewfed-{self.number}"

    @property
    def here(self) -> str:
        return f"ff{self.number}h"

    @property
    def server(self) -> str:
        """By which this machine is reached from there. These addresses are for tests of networks."""
        return f"198.18.{self.number % 250}.1"

    def lay(self) -> None:
        there = f"ff{self.number}t"
        inside = ("netns", "exec", self.network, "ip")
        ip("netns", "add", self.network)
        ip("link", "add", self.here, "type", "veth", "peer", "name", there)
        ip("link", "set", there, "netns", self.network)
        ip("addr", "add", f"{self.server}/24", "dev", self.here)
        ip("link", "set", self.here, "up")
        ip(*inside, "addr", "add", f"198.18.{self.number % 250}.2/24", "dev", there)
        ip(*inside, "link", "set", there, "up")
        ip(*inside, "link", "set", "lo", "up")

    @contextmanager
    def cut(self) -> Iterator[None]:
        ip("link", "set", self.here, "down")
        try:
            yield
        finally:
            ip("link", "set", self.here, "up")

    def remove(self) -> None:
        for command in (["ip", "link", "del", self.here], ["ip", "netns", "del", self.network]):
            subprocess.run(command, capture_output=True, check=False)


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], capture_output=True, check=True, text=True)


@pytest.fixture(scope="module")
def wire() -> Iterator[Wire]:
    made = Wire(os.getpid() % 30_000)
    if os.geteuid() or shutil.which("ip") is None:
        pytest.skip("cutting a network needs root and the command ip")
    try:
        made.lay()
    except subprocess.CalledProcessError as error:
        made.remove()
        pytest.skip(f"this machine lets nobody make networks: {error.stderr.strip()}")
    yield made
    made.remove()


@pytest.fixture
def apart(trio: Disturbed, wire: Wire) -> Iterator[Disturbed]:
    """The federation with cedar at the other end of the wire."""
    made = trio.fewfed("certs", "keys", "--server", f"127.0.0.1,{wire.server}", "--renew")
    assert made.returncode == 0, made.stderr
    trio.kill("cedar")
    trio.before["cedar"] = ["ip", "netns", "exec", wire.network]
    trio.start_site("cedar", server=f"{wire.server}:{trio.port}")
    yield trio
    trio.end("cedar")
    trio.before.pop("cedar")


def test_a_short_cut_changes_nothing(apart: Disturbed, wire: Wire, tmp_path: Path) -> None:
    apart.serve("short-cut")
    apart.wait_round("short-cut", 1)
    with wire.cut():
        pause(4.0)
        assert apart.processes["short-cut"].poll() is None, "it waits"
    found = apart.finished("short-cut")
    assert missing(found) == set()
    assert_equals(found, reference(tmp_path / "reference"))
    assert_worked(apart, "short-cut", twice=1)


@pytest.mark.thorough
def test_a_cut_that_is_long_enough_for_flower_to_forget_the_node(apart: Disturbed, wire: Wire, tmp_path: Path) -> None:
    apart.serve("long-cut", deadline=2.0)
    apart.wait_round("long-cut", 1)
    with wire.cut():
        apart.wait_log("long-cut", "waiting for cedar")
        pause(25.0)
    found = apart.finished("long-cut")
    assert missing(found) == set()
    assert_equals(found, reference(tmp_path / "reference"))
    assert_worked(apart, "long-cut", twice=1)
    assert "no connection to" in apart.log("cedar")
