"""Break runs on purpose and see what becomes of them: kills, stops, signals, full disks and damaged files at random.

    python tools/chaos.py --minutes 5 [--seed 0] [--first 0] [--cases 1000]

Every case starts the program, does something bad to it, and lets it go on. A case is good if the run ends with the bits
of an undisturbed one, or if the program refuses with one sentence and exit code 2. Anything else (another result, a
traceback, a process that hangs or stays behind) is a fault. It is printed with its number, and `--first NUMBER
--cases 1` with the same seed draws the same case again; where in a run its moment falls depends on the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from fewfed.cli import main as program
from fewfed.engine import storage
from fewfed.processes import forked

METHODS = ("fedavg", "flea", "scaffold", "local")
EXECUTORS = (("--executor", "sequential"), ("--executor", "workers", "--set", "workers.processes=2", "--exact"))
COMMON = (
    *("--data", "digits", "--network", "mlp", "--clients", "6", "--cohort", "3", "--rounds", "6", "--epochs", "1"),
    *("--set", "checkpoint_seconds=0.02"),
)
DEADLINE = ("--set", "workers.deadline=3")
PATIENCE = 60.0
"""Seconds after which a program counts as hung."""
PROMPT = 10.0
"""Seconds in which a program must end after a signal that asks it to: two on an idle machine, but tests run on any."""
ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
VARIES = ("seconds", "train_seconds", "events", "chain")

SAME, REFUSED = "same end", "refused in a sentence"


class Fault(Exception):
    """What must not happen."""


@dataclass
class Program:
    """The program in a process of its own, forked from this one, so that nothing is imported again."""

    arguments: tuple[str, ...]
    folder: Path
    most_file_bytes: int = 0
    pid: int = field(init=False)

    def __post_init__(self) -> None:
        sys.stdout.flush()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ASKING)  # The program hears them once it is itself.
        try:
            self.pid = forked(lambda: self._be(before))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _be(self, heard: set[int]) -> None:
        status = 99
        try:
            os.setsid()
            for asking in ASKING:  # Whatever the program that forks made of it.
                signal.signal(asking, signal.default_int_handler if asking is signal.SIGINT else signal.SIG_DFL)
            for number in (1, 2):
                os.dup2(os.open(self._log(number), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
            sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
            torch.set_num_threads(1)
            if self.most_file_bytes:
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (self.most_file_bytes, self.most_file_bytes))
            sys.argv = ["fewfed", *self.arguments]
            signal.pthread_sigmask(signal.SIG_SETMASK, heard)
            program()
            status = 0
        except SystemExit as ending:
            status = ending.code if isinstance(ending.code, int) else 0
        except KeyboardInterrupt:  # Before the program listens to signals.
            status = 128 + signal.SIGINT
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def send(self, number: int) -> None:
        os.kill(self.pid, number)

    def workers(self) -> list[int]:
        """Processes that this one has forked."""
        try:
            text = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text()
        except OSError:
            return []
        return [int(pid) for pid in text.split()]

    def ended(self, seconds: float = PATIENCE) -> int:
        """The exit code, or minus the signal; `Fault` where the program does not end in time."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._refuse_orphans()
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.005)
        os.killpg(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        raise Fault(f"it had not ended after {seconds:g} s")

    def said(self) -> str:
        return self._log(2).read_text(errors="replace")

    def _refuse_orphans(self) -> None:
        deadline = time.monotonic() + PROMPT
        while time.monotonic() < deadline:
            try:
                os.killpg(self.pid, 0)
            except ProcessLookupError:
                return
            time.sleep(0.01)
        os.killpg(self.pid, signal.SIGKILL)
        raise Fault("it left processes behind")

    def _log(self, number: int) -> Path:
        return self.folder / f"log{number}"


@dataclass(frozen=True)
class Case:
    """One run to be disturbed."""

    method: str
    executor: tuple[str, ...]
    reference: Path
    seconds: float
    """How long an undisturbed run takes."""
    folder: Path
    draw: random.Random

    @property
    def out(self) -> Path:
        return self.folder / "run"

    @property
    def has_workers(self) -> bool:
        return "workers" in self.executor

    def start(self, most_file_bytes: int = 0) -> Program:
        """Begin the run, or go on with it if it has begun."""
        if (self.out / "config.json").exists():
            return Program(("resume", str(self.out)), self.folder, most_file_bytes)
        shutil.rmtree(self.out, ignore_errors=True)
        return Program(
            ("run", self.method, *COMMON, *self.executor, "--out", str(self.out)), self.folder, most_file_bytes
        )

    def wait(self) -> None:
        time.sleep(self.draw.uniform(0, 1.1 * self.seconds))

    def finish(self) -> str:
        """Let the run go on undisturbed: what became of it."""
        going = self.start()
        return self.judge(going, going.ended())

    def judge(self, ended: Program, code: int) -> str:
        said = ended.said()
        if "Traceback" in said:
            raise Fault(f"a traceback: {said[-600:]}")
        if code == 0:
            self.compare()
            return SAME
        if code == 2 and said.strip().splitlines()[-1].startswith("error: "):
            return REFUSED
        raise Fault(f"exit code {code}: {said[-300:]}")

    def compare(self) -> None:
        """Raise unless the run ended as the undisturbed one did."""
        if _records(self.out) != _records(self.reference):
            raise Fault("other metrics than undisturbed")
        ours, theirs = (storage.load(folder / "model.safetensors")[0] for folder in (self.out, self.reference))
        if not _equal(ours, theirs):
            raise Fault("another model than undisturbed")


def killed(case: Case) -> str:
    """Kill the program with -9, up to three times."""
    for _ in range(case.draw.randint(1, 3)):
        going = case.start()
        case.wait()
        going.send(signal.SIGKILL)
        if going.ended() == 0:
            break
    return case.finish()


def asked_to_end(case: Case) -> str:
    """Ctrl-C, SIGTERM or SIGHUP."""
    number = case.draw.choice(ASKING)
    going = case.start()
    case.wait()
    going.send(number)
    code = going.ended(PROMPT)
    if code not in (0, 128 + number, -number):
        raise Fault(f"exit code {code} after signal {number}: {going.said()[-300:]}")
    return case.finish()


def worker_killed(case: Case) -> str:
    """Kill one worker with -9."""
    going = case.start()
    case.wait()
    for worker in case.draw.sample(found := going.workers(), min(1, len(found))):
        _send(worker, signal.SIGKILL)
    return case.judge(going, going.ended())


def worker_stopped(case: Case) -> str:
    """Stop one worker for ever; the deadline of a turn is three seconds."""
    going = case.start()
    case.wait()
    for worker in case.draw.sample(found := going.workers(), min(1, len(found))):
        _send(worker, signal.SIGSTOP)
    return case.judge(going, going.ended())


def disk_full(case: Case) -> str:
    """No file may grow beyond some size; later there is room again."""
    largest = max(file.stat().st_size for file in case.reference.rglob("*") if file.is_file())
    going = case.start(case.draw.randint(1, largest))
    code = going.ended()
    if code:
        case.judge(going, code)
    return case.finish()


def damaged(case: Case) -> str:
    """Kill the program, then damage one or two of its files."""
    going = case.start()
    case.wait()
    going.send(signal.SIGKILL)
    going.ended()
    files = sorted(file for file in case.out.rglob("*") if file.is_file()) if case.out.exists() else []
    for file in case.draw.sample(files, min(len(files), case.draw.randint(1, 2))):
        _damage(file, files, case.draw)
    return case.finish()


FAULTS: dict[str, Callable[[Case], str]] = {
    "program killed": killed,
    "program asked to end": asked_to_end,
    "worker killed": worker_killed,
    "worker stopped": worker_stopped,
    "disk full": disk_full,
    "files damaged": damaged,
}
NEED_WORKERS = ("worker killed", "worker stopped")


def _damage(file: Path, files: list[Path], draw: random.Random) -> None:
    content = bytearray(file.read_bytes())
    how = draw.choice(["flip", "cut", "delete", "empty", "more", "swap"])
    if how == "delete":
        file.unlink()
        return
    if how == "swap":
        other = draw.choice(files)
        if other.exists():
            content[:] = other.read_bytes()
    elif how == "flip" and content:
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    elif how == "cut":
        del content[draw.randrange(len(content) + 1) :]
    elif how == "empty":
        content.clear()
    else:
        content += draw.randbytes(draw.randint(1, 100))
    file.write_bytes(content)


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return  # It has just ended.


def _records(folder: Path) -> list[dict[str, object]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [{name: value for name, value in json.loads(line).items() if name not in VARIES} for line in lines]


def _equal(a: object, b: object) -> bool:
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_equal(a[name], b[name]) for name in a)
    return isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and torch.equal(a, b)


class Chaos:
    """Cases in a folder, and how each kind has ended so far."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder, self._seed = folder, seed
        self._references: dict[tuple[str, tuple[str, ...]], tuple[Path, float]] = {}
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self.faults: list[str] = []

    def kind_of(self, number: int) -> str:
        return self._drawn(number)[1]

    def _drawn(self, number: int) -> tuple[random.Random, str]:
        draw = random.Random(f"{self._seed} {number}")
        return draw, draw.choice(list(FAULTS))

    def run(self, number: int) -> None:
        draw, name = self._drawn(number)
        executor = EXECUTORS[1] if name in NEED_WORKERS else draw.choice(EXECUTORS)
        if name == "worker stopped":
            executor = (*executor, *DEADLINE)
        method = draw.choice(METHODS)
        reference, seconds = self.reference(method, executor)
        with tempfile.TemporaryDirectory(dir=self._folder) as scratch:
            case = Case(method, executor, reference, seconds, Path(scratch), draw)
            try:
                outcome = FAULTS[name](case)
            except Fault as fault:
                outcome = "FAULT"
                self.faults.append(f"case {number}, {name}, {method}, {' '.join(executor)}: {fault}")
                print(self.faults[-1], flush=True)
        self.outcomes[name, outcome] += 1

    def reference(self, method: str, executor: tuple[str, ...]) -> tuple[Path, float]:
        """An undisturbed run, and how long it took."""
        key = (method, executor)
        if key not in self._references:
            place = self._folder / f"reference{len(self._references)}"
            place.mkdir()
            began = time.monotonic()
            made = Program(("run", method, *COMMON, *executor, "--out", str(place / "run")), place)
            if made.ended() != 0:
                raise SystemExit(f"an undisturbed run failed: {made.said()}")
            self._references[key] = place / "run", time.monotonic() - began
        return self._references[key]

    def table(self) -> str:
        """The outcomes as Markdown."""
        lines = [f"| what was done | cases | {SAME} | {REFUSED} | faults |", "| --- | ---: | ---: | ---: | ---: |"]
        for name in FAULTS:
            counts = [self.outcomes[name, outcome] for outcome in (SAME, REFUSED, "FAULT")]
            lines.append(f"| {name} | {sum(counts)} | {counts[0]} | {counts[1]} | {counts[2]} |")
        return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--cases", type=int, default=1_000_000)
    options = parser.parse_args()
    deadline = time.monotonic() + 60 * options.minutes
    with tempfile.TemporaryDirectory(prefix="fewfed-chaos-") as folder:
        chaos = Chaos(Path(folder), options.seed)
        for number in range(options.first, options.first + options.cases):
            if time.monotonic() > deadline:
                break
            chaos.run(number)
    print(chaos.table())
    sys.exit(1 if chaos.faults else 0)


if __name__ == "__main__":
    main()
