"""A federation on this machine: a coordinator and five sites, each a process of its own with its own file of digits.

    python tools/federation.py [--out FOLDER] [--method flea] [--rounds 10]

Certificates are made, everything speaks TLS on loopback. On the way one site is killed and started again, then the
coordinator is killed and resumed. At the end comes the table, beside the same run as a simulation on one machine.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

SITES = ("amber", "birch", "cedar", "delta", "ember")
TRAIN_ROWS, TEST_ROWS = 40, 60
CONFIG = """\
method = "{method}"
rounds = {rounds}

[training]
epochs = 5
batch = 16

[federation]
address = "127.0.0.1:{port}"
keys = "keys"
shape = [1, 8, 8]
classes = 10
quorum = 5
wait = 0
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="A federation of five sites on this machine.")
    parser.add_argument("--out", type=Path, default=Path("runs/federation"), help="a new folder for all of it")
    parser.add_argument("--method", default="flea")
    parser.add_argument("--rounds", type=int, default=10)
    given = parser.parse_args()
    if given.out.exists():
        shutil.rmtree(given.out) if (given.out / "serve.toml").exists() else sys.exit(f"'{given.out}' is there already")
    given.out.mkdir(parents=True)
    tryout = Tryout(given.out.resolve(), given.method, given.rounds)
    try:
        tryout.run()
    finally:
        tryout.close()


class Tryout:
    """The processes, and what is done to them."""

    def __init__(self, folder: Path, method: str, rounds: int) -> None:
        self._folder, self._method, self._rounds = folder, method, rounds
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]

    def run(self) -> None:
        write_digits(self._folder)
        (self._folder / "serve.toml").write_text(
            CONFIG.format(method=self._method, rounds=self._rounds, port=self._port)
        )
        self._fewfed("certs", "keys", "--server", "127.0.0.1,localhost", "--sites", ",".join(SITES))
        began = time.monotonic()
        self._start("coordinator", "serve", "serve.toml", "--out", "run")
        for name in SITES:
            self._start_site(name)
        tell(f"coordinator and {len(SITES)} sites started on port {self._port}; logs in {self._folder}")
        self._wait_round(self._rounds // 3)
        self._kill("cedar")
        self._start_site("cedar")
        self._wait_round(2 * self._rounds // 3)
        self._kill("coordinator")
        self._start("coordinator", "serve", "serve.toml", "--out", "run", "--resume")
        if self._processes["coordinator"].wait(600):
            sys.exit((self._folder / "coordinator.log").read_text())
        tell(f"finished in {time.monotonic() - began:.0f} s")
        self._show()

    def _show(self) -> None:
        """The table of sites, and what a simulation of the same comes to."""
        print(self._fewfed("status", "run"))
        training = ("--epochs", "5", "--batch", "16", "--executor", "sequential")
        data = ("--data", "all.npz", "--test-column", "held", "--set", "leak=false", "--rounds", str(self._rounds))
        self._fewfed("run", self._method, *data, *training, "--out", "simulated")
        results = [json.loads((self._folder / name / "result.json").read_text()) for name in ("run", "simulated")]
        print(self._fewfed("show", "run", "simulated"))
        last = [result["accuracy"]["last"] for result in results]
        tell(f"last accuracy: {last[0]:.4f} between sites, with two processes killed; {last[1]:.4f} in a simulation")

    def _start_site(self, name: str) -> None:
        self._start(
            name, "site", "--data", f"{name}.npz", "--test-column", "held", "--name", name, "--threads", "1",
            "--key", f"keys/sites/{name}", "--server", f"127.0.0.1:{self._port}", "--state", f"state/{name}",
        )  # fmt: skip

    def _start(self, who: str, *arguments: str) -> None:
        with (self._folder / f"{who}.log").open("ab") as log:
            self._processes[who] = subprocess.Popen(
                [sys.executable, "-m", "fewfed", *arguments],
                cwd=self._folder, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def _fewfed(self, *arguments: str) -> str:
        found = subprocess.run(
            [sys.executable, "-m", "fewfed", *arguments], cwd=self._folder, capture_output=True, text=True, check=False
        )
        if found.returncode:
            sys.exit(f"fewfed {' '.join(arguments)}: {found.stderr}")
        return found.stdout

    def _kill(self, who: str) -> None:
        os.kill(self._processes[who].pid, signal.SIGKILL)
        self._processes[who].wait()
        tell(f"killed {who} (kill -9) and started it again")

    def _wait_round(self, round: int) -> None:
        path, deadline = self._folder / "run" / "metrics.jsonl", time.monotonic() + 300
        while not path.exists() or path.read_bytes().count(b"\n") < round:
            if self._processes["coordinator"].poll() is not None or time.monotonic() > deadline:
                sys.exit((self._folder / "coordinator.log").read_text())
            time.sleep(0.02)
        tell(f"round {round} is finished")

    def close(self) -> None:
        for process in self._processes.values():
            if process.poll() is None:
                process.terminate()
        for process in self._processes.values():
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def write_digits(folder: Path) -> None:
    """A file for each site, whose few digits are of four kinds, and one with all rows for comparison."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    random = np.random.default_rng(0)
    rows, left = [], random.permutation(len(digits.target))
    for number, name in enumerate(SITES):
        common = np.isin(digits.target[left], [(2 * number + step) % 10 for step in range(4)])
        train = left[common][:TRAIN_ROWS]
        left = left[~np.isin(left, train)]
        test, left = left[:TEST_ROWS], left[TEST_ROWS:]
        chosen = np.concatenate([train, test])
        part = {
            "x": digits.images[chosen, None].astype(np.float32),
            "y": digits.target[chosen],
            "held": np.arange(len(chosen)) >= len(train),
        }
        np.savez(folder / f"{name}.npz", **part)
        rows.append({**part, "site": np.full(len(chosen), name)})
    np.savez(folder / "all.npz", **{key: np.concatenate([part[key] for part in rows]) for key in rows[0]})


def tell(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    main()
