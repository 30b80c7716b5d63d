"""Coordinators and sites as a user starts them: processes of their own, TLS on loopback."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from federation import CONFIG, NAMES, ROWS, write_digits

PATIENCE = 120.0


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def wait_until(condition: Callable[[], bool], what: str, seconds: float = PATIENCE) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.02)


@dataclass
class Real:
    """A federation of processes. Sites stay while coordinators come and go."""

    folder: Path
    names: tuple[str, ...] = NAMES
    rows: tuple[int, ...] = ROWS
    port: int = field(default_factory=free_port)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        write_digits(self.folder, self.names, self.rows[: len(self.names)])
        self.fewfed("certs", "keys", "--server", "127.0.0.1", "--sites", ",".join(self.names))

    def fewfed(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A command to its end."""
        return subprocess.run(
            [sys.executable, "-m", "fewfed", *arguments],
            cwd=self.folder, env=environment(self.folder), capture_output=True, text=True, timeout=PATIENCE,
        )  # fmt: skip

    def start(self, who: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{who}.log").open("ab") as log:
            self.processes[who] = subprocess.Popen(
                [sys.executable, "-m", "fewfed", *arguments],
                cwd=self.folder, env=environment(self.folder), stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        return self.processes[who]

    def start_site(self, name: str, *more: str, key: str = "", server: str = "") -> subprocess.Popen[bytes]:
        return self.start(
            name,
            "site", "--data", f"{name}.npz", "--test-column", "held", "--name", name, "--threads", "1",
            "--key", key or f"keys/sites/{name}", "--server", server or f"127.0.0.1:{self.port}",
            "--state", f"state/{name}", *more,
        )  # fmt: skip

    def start_sites(self) -> None:
        for name in self.names:
            self.start_site(name)

    def serve(self, out: str, method: str = "fedavg", rounds: int = 5, *, resume: bool = False, **more: Any) -> None:
        if not resume:
            self.configure(out, method, rounds, **more)
        self.start(out, "serve", f"{out}.toml", "--out", out, *(["--resume"] if resume else []))

    def configure(
        self, out: str, method: str, rounds: int, *, more: str = "", federation: str = "", quorum: int = 5,
        deadline: float = 60.0,
    ) -> None:  # fmt: skip
        text = CONFIG.format(
            method=method, rounds=rounds, more=more, quorum=quorum, deadline=deadline,
            federation=f'address = "127.0.0.1:{self.port}"\n{federation}',
        )  # fmt: skip
        (self.folder / f"{out}.toml").write_text(text.replace("pace = 0.001", "pace = 0.02"))

    def finished(self, out: str, seconds: float = PATIENCE) -> Path:
        """The run folder of a coordinator, once that has ended well."""
        code = self.processes[out].wait(seconds)
        assert code == 0, self.log(out)
        return self.folder / out

    def log(self, who: str) -> str:
        return (self.folder / f"{who}.log").read_text()

    def wait_round(self, out: str, round: int) -> None:
        """Until so many rounds are finished."""
        path = self.folder / out / "metrics.jsonl"
        wait_until(lambda: path.exists() and path.read_bytes().count(b"\n") >= round, f"round {round} of {out}")

    def kill(self, who: str) -> None:
        """At once, without a chance to clear anything up."""
        os.kill(self.processes[who].pid, signal.SIGKILL)
        self.processes[who].wait()

    def superlink(self, out: str) -> int:
        """The process of a coordinator's SuperLink."""
        parent = self.processes[out].pid
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        (found,) = [int(pid) for pid in children if "flower.link" in Path(f"/proc/{pid}/cmdline").read_text()]
        return found

    def turns(self, site: str, run: str) -> list[tuple[int, str]]:
        """Round and phase of every turn that a site has worked on in a run."""
        lines = self.log(site).splitlines()
        first = next(number for number, line in enumerate(lines) if f"joined run {run}" in line)
        found = [re.search(r"round (\d+), phase '(.+)': done", line) for line in lines[first:]]
        return [(int(each[1]), each[2]) for each in found if each]

    def run_of(self, out: str) -> str:
        return str(json.loads((self.folder / out / "federation.json").read_text())["run"])

    def close(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.terminate()
        for process in self.processes.values():
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def environment(folder: Path) -> dict[str, str]:
    """A home of its own, in which nothing may appear."""
    home = folder / "home"
    home.mkdir(exist_ok=True)
    return {**os.environ, "OMP_NUM_THREADS": "1", "HOME": str(home), "XDG_CACHE_HOME": str(folder / "cache")}
