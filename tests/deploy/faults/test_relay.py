"""Sites whose node is Flower's own SuperNode, which relays to their daemons; also while either of them is killed."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from disturbed import TRIO, Disturbed, assert_equals, missing, reference
from real import environment, free_port, wait_until


@dataclass
class Relayed(Disturbed):
    """Three sites, of which some do not connect themselves."""

    relayed: tuple[str, ...] = TRIO[:2]
    nodes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start_site(self, name: str, *more: str, key: str = "", server: str = "") -> subprocess.Popen[bytes]:
        if name not in self.relayed:
            return super().start_site(name, *more, key=key, server=server)
        return self.start(
            name,
            "site", "--data", f"{name}.npz", "--test-column", "held", "--name", name, "--threads", "1",
            "--key", f"keys/sites/{name}", "--state", f"state/{name}", "--relay",
        )  # fmt: skip

    def start_node(self, name: str) -> None:
        """A stock SuperNode, as docs/deploy.md says."""
        programs = Path(sys.executable).parent
        with (self.folder / f"{name}-node.log").open("ab") as log:
            self.nodes[name] = subprocess.Popen(
                [
                    str(programs / "flower-supernode"),
                    "--superlink", f"127.0.0.1:{self.port}", "--root-certificates", f"keys/sites/{name}/ca.crt",
                    "--auth-supernode-private-key", f"keys/sites/{name}/node.key",
                    "--host", "127.0.0.1", "--port", str(free_port()),
                    "--node-config", f'socket="{self.folder / "state" / name / "relay.sock"}" wait=8',
                ],
                cwd=self.folder,
                env={
                    **environment(self.folder),
                    "PATH": f"{programs}:{os.environ['PATH']}",
                    "FLWR_HOME": str(self.folder / f"flower-{name}"),
                    "FLWR_TELEMETRY_ENABLED": "0",
                    "FLWR_DISABLE_UPDATE_CHECK": "1",
                    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
                },
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def supervise(self, name: str, done: threading.Event) -> threading.Thread:
        """Start a SuperNode again whenever it has ended, as systemd does."""

        def watch() -> None:
            while not done.wait(1.0):
                if name not in self.nodes or self.nodes[name].poll() is not None:
                    self.start_node(name)

        thread = threading.Thread(target=watch)
        thread.start()
        return thread

    def kill_node(self, name: str) -> None:
        """The SuperNode alone: what it has started must notice by itself."""
        self.nodes[name].kill()
        self.nodes[name].wait()

    def close(self) -> None:
        for node in self.nodes.values():
            if node.poll() is None:
                os.killpg(node.pid, signal.SIGKILL)
                node.wait()
        super().close()


@pytest.fixture(scope="module")
def relayed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Relayed]:
    made = Relayed(tmp_path_factory.mktemp("relay"))
    try:
        made.start_sites()
        yield made
    finally:
        made.close()


def test_sites_behind_stock_supernodes_come_to_the_same_numbers(relayed: Relayed, tmp_path: Path) -> None:
    relayed.serve("relayed", "fedavg", 2)
    wait_until(lambda: (relayed.folder / "relayed" / "flower").is_dir(), "a server")
    relayed.wait_log("relayed", "waiting for sites")
    for name in relayed.relayed:
        relayed.start_node(name)
    found = relayed.finished("relayed", 150)
    assert missing(found) == set()
    assert_equals(found, reference(tmp_path / "reference", rounds=2, method="fedavg"))
    place = relayed.folder / "state" / "amber" / "relay.sock"
    assert stat.S_IMODE(place.stat().st_mode) == 0o600


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_a_supernode_is_killed_and_later_a_daemon_is_away(relayed: Relayed, tmp_path: Path) -> None:
    """The SuperNode is waited for until Flower takes it in again; without its daemon a site misses turns, no more."""
    relayed.serve("node-killed", "fedavg", 5, quorum=2, deadline=200.0)
    relayed.wait_log("node-killed", "waiting for sites")
    done = threading.Event()
    supervisors = [relayed.supervise(name, done) for name in relayed.relayed]
    try:
        relayed.wait_round("node-killed", 1)
        relayed.kill_node("amber")
        relayed.wait_round("node-killed", 2)
        relayed.kill("birch")
        relayed.wait_log("node-killed", "the site's daemon is not there")
        relayed.start_site("birch")
        found = relayed.finished("node-killed", 300)
    finally:
        done.set()
        for supervisor in supervisors:
            supervisor.join()
    left_out = missing(found)
    assert left_out
    assert {site for _, _, site in left_out} <= {"birch"}
    assert max(round for round, _, _ in left_out) < 4, "it took part again"
    assert_equals(found, reference(tmp_path / "reference", left_out, 5, "fedavg"), scored=False)
    assert "was refused" not in relayed.log("node-killed"), "it is no strike"
