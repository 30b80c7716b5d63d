"""The commands of the pages about federations, typed in their order: a coordinator and three sites, each a process.

Names of machines become this one's address, and the file of the run, the page's own, asks for two rounds; options stay
as documented.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from documented_commands import FEDERATIONS
from documented_files import public_part
from sklearn.datasets import load_digits

from documents import ROOT, code, commands_in
from fewfed.runs.folder import RunFolder
from run_support import wait_until

pytestmark = pytest.mark.timeout(1200)
PATIENCE = 300.0
"""Seconds for a machine that does much else at the same time."""
SITES = ("north", "south", "west")
HOSTS = ("fl.example.org,10.0.0.5", "fl.example.org", "coordinator.example.org")
SHORTER = {"rounds = 30": 'rounds = 2\nnetwork = "mlp"', "epochs = 5": "epochs = 1", "quorum = 2": "quorum = 3"}
README = tuple(
    line for line in commands_in(ROOT / "README.md") if line.startswith(("fewfed certs", "fewfed serve", "fewfed site"))
)
PAGES = {"README.md": README, **{page: tuple(commands_in(ROOT / page)) for page in FEDERATIONS}}
POLICY = 'roles = ["model", "features", "labels", "counts", "statistics", "score"]\n'
"""What the pages say that a site must allow: what FLea sends, what inputs are measured by, and scores."""
RELAY = "--relay"
"""A site behind a SuperNode of Flower's: tests/deploy/faults/test_relay.py."""


@dataclass
class Machines:
    """A folder for the coordinator, and one for each site, as if each were a machine."""

    folder: Path
    port: int
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def words(self, line: str) -> list[str]:
        for host in HOSTS:
            line = line.replace(f"{host}:9092", f"127.0.0.1:{self.port}").replace(host, "127.0.0.1")
        return shlex.split(line)[1:]

    def start(self, who: str, line: str, place: Path) -> None:
        with (self.folder / f"{who}.log").open("ab") as log:
            self.running[who] = subprocess.Popen(
                [sys.executable, "-m", "fewfed", *self.words(line)],
                cwd=place, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=log, stderr=log,
            )  # fmt: skip

    def ended(self, who: str) -> None:
        """Until it has ended well; a site that has ended has failed, and nobody need wait for the others."""

        def gone() -> bool:
            for name in SITES:
                assert name not in self.running or self.running[name].poll() is None, self.log(name)
            return self.running[who].poll() is not None

        wait_until(gone, PATIENCE)
        assert self.running.pop(who).returncode == 0, self.log(who)

    def log(self, who: str) -> str:
        return (self.folder / f"{who}.log").read_text()

    def start_sites(self, line: str) -> None:
        """Every site types its command, with its own name, rows and keys."""
        (key,) = re.findall(r"--key (\S+)", line)
        for number, name in enumerate(SITES):
            place = self.folder / "machines" / name
            place.mkdir(parents=True)
            rows_of(number, place / "rows.npz", held="--test-column held" in line)
            (place / "policy.toml").write_text(POLICY)
            shutil.copytree(self.folder / "keys" / "sites" / name, place / key)
            own = self.folder / "mine"
            if name == "north" and own.exists():
                for file in own.glob("*.key"):
                    shutil.copy(file, place / key)
            self.start(name, line.replace("--name north", f"--name {name}"), place)

    def close(self) -> None:
        for process in self.running.values():
            process.kill()
            process.wait()


@pytest.fixture
def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machines]:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = int(found.getsockname()[1])
    made = Machines(tmp_path, port)
    yield made
    made.close()


def configured(machines: Machines, page: str) -> None:
    """The file of the run that a page has; README leaves it to the pages it names."""
    own = [block for block in code(ROOT / page, "toml") if "[federation]" in block]
    (text,) = own or [block for block in code(ROOT / "docs" / "deploy.md", "toml") if "[federation]" in block]
    for long, short in {"0.0.0.0:9092": f"127.0.0.1:{machines.port}", **SHORTER}.items():
        assert long in text
        text = text.replace(long, short)
    (machines.folder / "federation.toml").write_text(text)


def rows_of(site: int, path: Path, *, held: bool) -> None:
    """Forty digits, a quarter of them to test on: marked in a column, or in arrays of their own."""
    digits = load_digits()
    rows = slice(40 * site, 40 * (site + 1))
    x, y = digits.images[rows, None].astype(np.float32), digits.target[rows]
    if held:
        np.savez(path, x=x, y=y, held=np.arange(40) >= 30)
    else:
        np.savez(path, x=x[:30], y=y[:30], x_test=x[30:], y_test=y[30:])


def finished(machines: Machines, line: str) -> None:
    out = machines.folder / line.split("--out ")[1].split(" ")[0]
    machines.ended("coordinator")
    result = RunFolder(out).result()
    assert result is not None
    assert [record["failed"] for record in RunFolder(out).metrics()] == [[], []], machines.log("coordinator")


@pytest.mark.parametrize(
    "page", ["README.md", *(pytest.param(page, marks=pytest.mark.thorough) for page in FEDERATIONS)]
)
def test_a_federation_is_what_the_pages_type(page: str, machines: Machines) -> None:
    serving = ""
    configured(machines, page)
    assert len(PAGES[page]) >= 3
    for line in PAGES[page]:
        if RELAY in line:
            continue
        if line.startswith("fewfed certs keys --public"):
            public_part(machines.folder)
        if serving and not line.startswith("fewfed site"):
            finished(machines, serving)
            serving = ""
        if line.startswith("fewfed serve"):
            machines.start("coordinator", line, machines.folder)
            serving = line
        elif line.startswith("fewfed site"):
            machines.start_sites(line)
        elif line.startswith("fewfed watch"):
            watched(machines, line)
        else:
            machines.start("operator", line, machines.folder)
            machines.ended("operator")
    if serving:
        finished(machines, serving)


def watched(machines: Machines, line: str) -> None:
    """It serves until Ctrl-C."""
    machines.start("viewer", f"{line} --port 0", machines.folder)
    wait_until(lambda: "Ctrl-C ends it" in machines.log("viewer"), PATIENCE)
    address = machines.log("viewer").split(" ")[0]
    with urllib.request.urlopen(address, timeout=60) as answer:
        assert b"</html>" in answer.read()
    machines.running["viewer"].send_signal(signal.SIGINT)
    machines.ended("viewer")
