"""A federation of real processes to which things are done, and what its result must be.

What a disturbed run must come to is computed by sites in this process, of which nothing is asked that the real ones
did not answer: with the same seed, wherever the same sites took part, not a bit may differ.
"""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from federation import Federation, difference, write_digits
from in_process import Answering
from real import Real, environment, wait_until

from fewfed.deploy.messages import PHASE
from fewfed.deploy.parcel import Parcel
from fewfed.deploy.security.envelope import About, Direction, Expected, unseal
from fewfed.deploy.security.names import COORDINATOR
from fewfed.engine import storage
from fewfed.runs.folder import CHECKPOINT, MODEL, RunFolder

TRIO = ("amber", "birch", "cedar")
METHOD, ROUNDS = "flea", 4
Turn = tuple[int, str, str]
"""Round (from 0), phase and site."""


@dataclass
class Disturbed(Real):
    """Real processes that can be stopped, shut off from the network, or given another clock."""

    names: tuple[str, ...] = TRIO
    before: dict[str, list[str]] = field(default_factory=dict)
    """Words before the command of a process, as of another network."""
    settings: dict[str, Mapping[str, str]] = field(default_factory=dict)
    """More environment variables of a process."""
    programs: dict[str, list[str]] = field(default_factory=dict)
    """What Python runs in place of `-m fewfed`."""

    def start(self, who: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{who}.log").open("ab") as log:
            self.processes[who] = subprocess.Popen(
                [*self.before.get(who, []), sys.executable, *self.programs.get(who, ["-m", "fewfed"]), *arguments],
                cwd=self.folder, env={**environment(self.folder), **self.settings.get(who, {})},
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        return self.processes[who]

    def serve(self, out: str, method: str = METHOD, rounds: int = ROUNDS, **more: Any) -> None:
        super().serve(out, method, rounds, **{"quorum": len(self.names), **more})

    def configure(self, out: str, *values: Any, wait: float = 60.0, **more: Any) -> None:
        """On all interfaces, so that sites of other networks reach it; nobody is left behind at the start."""
        super().configure(out, *values, **more)
        file = self.folder / f"{out}.toml"
        text = file.read_text().replace('address = "127.0.0.1:', 'address = "0.0.0.0:')
        file.write_text(text.replace("wait = 0\n", f"wait = {wait}\n"))

    def again(self, out: str) -> None:
        """Start a coordinator again where it was."""
        super().serve(out, resume=True)

    def hold(self, who: str) -> None:
        """A process stands still: it is there, and does nothing."""
        self.processes[who].send_signal(signal.SIGSTOP)

    def let_go(self, who: str) -> None:
        self.processes[who].send_signal(signal.SIGCONT)

    @contextlib.contextmanager
    def still(self, who: str) -> Iterator[None]:
        """A process stands still for a while."""
        self.hold(who)
        try:
            yield
        finally:
            self.let_go(who)

    def wait_log(self, who: str, text: str, times: int = 1) -> None:
        """Until a text stands so often in the log of a process."""
        path = self.folder / f"{who}.log"
        wait_until(lambda: path.exists() and path.read_text().count(text) >= times, f"'{text}' in the log of {who}")

    def wait_turn(self, site: str, out: str, round: int) -> None:
        """Until a site has worked in a round (from 1) of a run."""
        run = self.run_of(out)
        wait_until(lambda: any(turn[0] == round for turn in self.turns(site, run)), f"{site} in round {round}")

    def turns(self, site: str, run: str) -> list[tuple[int, str]]:
        if f"joined run {run}" not in self.log(site):
            return []
        return super().turns(site, run)

    def ended(self, out: str, seconds: float = 120.0) -> str:
        """What a coordinator said that could not go on. It ends as for any mistake of a user, without a traceback."""
        code = self.processes[out].wait(seconds)
        said = self.log(out)
        assert code == 2, said
        assert "Traceback" not in said
        return said

    def status(self, out: str) -> str:
        """What `fewfed status` prints, in one line."""
        found = self.fewfed("status", out, "--json")
        assert found.returncode == 0, found.stderr
        return re.sub(r"\s+", " ", found.stdout)

    def end(self, who: str) -> None:
        """Kill a process, if it is still there."""
        if self.processes[who].poll() is None:
            self.kill(who)

    def mend(self) -> None:
        """All sites are there as they were at first, whatever a test before did to them."""
        for name in self.names:
            if self.processes[name].poll() is not None:
                self.start_site(name)
            self.let_go(name)

    def end_coordinators(self) -> None:
        """Of a test that failed: the next one needs the port."""
        for who in set(self.processes) - set(self.names):
            if self.processes[who].poll() is None:
                self.let_go(who)
                self.kill(who)

    def close(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
        super().close()


def missing(out: Path, names: Sequence[str] = TRIO) -> set[Turn]:
    """The turns that were left out of a run."""
    return {
        (record["round"] - 1, failed["phase"], names[failed["client"]])
        for record in RunFolder(out).metrics()
        for failed in record["failed"]
    }


def reference(
    folder: Path,
    without: Collection[Turn] = (),
    rounds: int = ROUNDS,
    method: str = METHOD,
    names: tuple[str, ...] = TRIO,
) -> Path:
    """The run folder of a federation in this process of which some turns are never answered."""
    folder.mkdir()
    write_digits(folder)
    quorum = len(names) - 1 if without else len(names)
    federation = Federation(folder, method, rounds, names=names, quorum=quorum, deadline=0.3)
    for name in names:
        answer = federation.site(name).answer
        federation.transport.restart(name, _silent(name, answer, federation, without))
    return Path(federation.run().folder)


def _silent(name: str, answer: Answering, federation: Federation, turns: Collection[Turn]) -> Answering:
    keys = {COORDINATOR: federation.keys[COORDINATOR].public}
    expected = Expected(direction=Direction.REQUEST, recipient=name, sender=COORDINATOR)

    def answered(parcel: Parcel) -> Parcel | None:
        about: About = unseal(parcel.letter, expected, keys).about
        if about.kind == PHASE and (about.round, about.phase, name) in turns:
            return None
        return answer(parcel)

    return answered


def assert_equals(found: Path, like: Path, *, scored: bool = True) -> None:
    """The same model and the same checkpoint, bit for bit; the same metrics where the same sites scored the model."""
    for name in (MODEL, CHECKPOINT):
        assert difference(storage.load(found / name)[0], storage.load(like / name)[0]) == 0.0, name
    ours, theirs = RunFolder(found).metrics(), RunFolder(like).metrics()
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        assert [(each["client"], each["phase"]) for each in mine["failed"]] == [
            (each["client"], each["phase"]) for each in other["failed"]
        ]
        assert mine["steps"] == other["steps"]
        both = mine.get("per_group", {}).keys() & other.get("per_group", {}).keys()
        assert {site: mine["per_group"][site] for site in both} == {site: other["per_group"][site] for site in both}
        if scored:
            assert mine["accuracy"] == other["accuracy"]
            assert mine["loss"] == other["loss"]


def assert_worked(real: Disturbed, out: str, *, twice: int) -> None:
    """Every site took every turn of a run, and at most so many of them twice."""
    run = real.run_of(out)
    for name in real.names:
        turns = real.turns(name, run)
        expected = {(round, phase) for round, phase in turns if round <= ROUNDS}
        assert set(turns) == expected
        assert {round for round, _ in turns} == set(range(1, ROUNDS + 1))
        assert len(turns) - len(set(turns)) <= twice, (name, turns)


def pause(seconds: float) -> None:
    """So long a fault lasts."""
    time.sleep(seconds)
