"""What a federation's size costs: rounds and memory over clients, cohort and processes, as ratios.

    python benchmarks/scaling.py [--part clients cohort processes] [--repeats 3] [--json FILE] [--plot FILE]

clients    100 to 1 000 000 synthetic clients, 100 of them a round; also SCAFFOLD, which keeps states, FLea, which
           shares features, and `fewfed.runs.run` with rows in memory
cohort     10 to 1 000 of 10 000 clients: time of one client's turn
processes  1 to all cores: speed

Every measurement is a fresh process. The settings of a part are measured one after another, then all of them again:
each ratio is to the reference of the same repeat, so that what else the machine does cancels. LeNet-5, 50 rows a
client, batch 32, one epoch: short turns, in which work that grows with the federation would stand out.

Memory is that of the process and its workers, every page once, without the pages of program files: those never change,
and they would hide growth. It is the larger of two peaks: that of the main process until the end of the first round,
and that of all processes since: what they hold after the last round plus what each had held more in between.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import re
import resource
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))
from overhead import Clock, synthetic
from scaling_report import disturbance, draw, table, verdicts

from fewfed import Experiment, Training, networks, run
from fewfed.data.examples import Dataset, Examples
from fewfed.data.federation import GeneratedFederation
from fewfed.engine.client_store import MEMORY_BYTES, ClientStore
from fewfed.engine.executors.workers.executor import Workers
from fewfed.engine.executors.workers.options import EXACT, Options
from fewfed.engine.homes import SimulatedHomes
from fewfed.engine.job import Job
from fewfed.engine.loop import Observer, RoundView, run_rounds
from fewfed.methods.registry import choose
from fewfed.plan import Plan
from fewfed.report.curves import require_matplotlib
from fewfed.runs.folder import environment
from fewfed.tasks.classification import Classification

SHAPE, CLASSES, ROWS, BATCH = (1, 28, 28), 10, 50, 32
COHORT = 100
SIZES = (100, 1_000, 10_000, 100_000, 1_000_000)
REFERENCE_SIZE, LARGEST_SIZE = 1_000, SIZES[-1]
COHORTS = (10, 30, 100, 300, 1_000)
COHORT_CLIENTS = 10_000
PARTS = ("clients", "cohort", "processes")

SMALL_STORE = 16 * 2**20
"""Room for fewer states than a cohort has: from the first round on, states go to disk at every size alike."""

IN_MEMORY_SHAPE, IN_MEMORY_ROWS = (8,), 2
"""Through `fewfed.runs.run` all rows lie in memory, so they are few and short."""


@dataclass(frozen=True)
class Setting:
    """One point of a part: what is run, and which reference its ratios are to."""

    part: str
    series: str
    x: int
    """Its place on the part's axis: clients, cohort or processes."""
    reference: int
    """The place on that axis that the ratios are to."""
    method: str
    clients: int
    cohort: int
    processes: int
    rounds: int = 5
    warm: int = 1
    """Rounds that are run first and not counted; FLea's first has no features yet."""
    store_bytes: int = MEMORY_BYTES
    in_memory: bool = False
    """Whether it goes through `fewfed.runs.run` with a data set, not through the engine with generated clients."""


def settings_of(part: str, processes: int) -> list[Setting]:
    """All points of a part, in the order they are measured."""
    if part == "clients":
        base = Setting(part, "fedavg", 0, REFERENCE_SIZE, "fedavg", 0, COHORT, processes)
        few = [
            replace(base, series="scaffold", method="scaffold"),
            replace(base, series="scaffold, states on disk", method="scaffold", store_bytes=SMALL_STORE),
            replace(base, series="flea", method="flea", warm=2),
            replace(base, series="fedavg, fewfed.runs.run", rounds=20, in_memory=True),
        ]
        many = [(base, size) for size in SIZES] + [
            (one, size) for one in few for size in (REFERENCE_SIZE, LARGEST_SIZE)
        ]
        return [replace(one, x=size, clients=size) for one, size in many]
    if part == "cohort":
        base = Setting(part, "fedavg", 0, COHORT, "fedavg", COHORT_CLIENTS, 0, processes)
        # About as many turns whatever the cohort, or the smallest would be measured over a blink.
        return [replace(base, x=size, cohort=size, rounds=max(1, 600 // size)) for size in COHORTS]
    base = Setting(part, "fedavg", 0, 1, "fedavg", REFERENCE_SIZE, COHORT, 0)
    return [replace(base, x=count, processes=count) for count in process_counts(processes)]


def process_counts(cores: int) -> list[int]:
    """Every number up to eight, then doublings, and all cores."""
    doublings = [2**power for power in range(4, cores.bit_length()) if 2**power < cores]
    return sorted({*range(1, min(cores, 8) + 1), *doublings, cores})


@dataclass(frozen=True)
class Memory:
    """What processes held at their peak, in MiB."""

    own: float
    """What is theirs alone, every page once."""
    resident: float
    """Sum of resident sizes: pages that are shared count once a process, program files included."""

    @classmethod
    def of_this_process(cls) -> Memory:
        """Of this process without its children."""
        if not Path("/proc/self/smaps_rollup").is_file():  # Not Linux: program files cannot be told apart.
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
            return cls(peak, peak)
        status = _kilobytes(Path("/proc/self/status").read_text())
        return cls((status["VmHWM"] - status["RssFile"]) / 1024, status["VmHWM"] / 1024)

    @classmethod
    def of_family(cls) -> Memory:
        """Of this process and its children, which must be alive."""
        if not Path("/proc/self/smaps_rollup").is_file():
            return cls.of_this_process()
        own = resident = 0
        for pid in (os.getpid(), *_children(os.getpid())):
            now = _kilobytes(Path(f"/proc/{pid}/smaps_rollup").read_text())
            status = _kilobytes(Path(f"/proc/{pid}/status").read_text())
            # Not the plain proportional size: it shrinks when a stranger maps the same program files.
            own += now["Pss_Anon"] + now["Pss_Shmem"] + max(0, status["VmHWM"] - status["VmRSS"])
            resident += status["VmHWM"]
        return cls(own / 1024, resident / 1024)


def forget_peak() -> None:
    """Start this process's peak anew. What it gave back after workers were forked, they may still hold: it would count
    twice, as the main process's past and as the workers' present."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _children(parent: int) -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # It ended meanwhile.
                continue
            if int(fields[1]) == parent:
                yield int(entry.name)


def _kilobytes(text: str) -> dict[str, int]:
    return {name: int(value) for name, value in re.findall(r"^(\w+):\s+(\d+) kB$", text, re.MULTILINE)}


@dataclass
class Weigh:
    """The observer that weighs the processes after the last round, while the workers still live."""

    store: ClientStore
    early: Memory | None = None
    """The main process up to the end of the first round."""
    family: Memory | None = None
    """All processes since then."""
    first_seconds: float = 0.0
    """How long the first round took."""
    states: int = 0
    failed: int = 0

    def after_round(self, view: RoundView) -> None:
        self.failed += len(view.record.failed)
        if view.clock.first:
            self.first_seconds = view.record.train_seconds
            self.early = Memory.of_this_process()
            forget_peak()
        if view.clock.last:
            self.family = Memory.of_family()
            self.states = len(self.store)

    @property
    def memory(self) -> Memory:
        """The larger of both peaks."""
        assert self.early is not None
        assert self.family is not None
        return Memory(max(self.early.own, self.family.own), max(self.early.resident, self.family.resident))


def measure(setting: Setting) -> dict[str, Any]:
    """Run one setting in this process. Start-up is what comes before the first round, without Python's imports."""
    torch.set_num_threads(1)
    began = time.perf_counter()
    store = ClientStore(memory_bytes=setting.store_bytes)
    clock, weigh = Clock(), Weigh(store)
    if setting.in_memory:
        _run_in_memory(setting, [clock, weigh])
    else:
        _run_generated(setting, store, [clock, weigh])
    store.close()
    if weigh.failed:
        raise SystemExit(f"{weigh.failed} turns of {setting} failed: their time would count for nothing")
    kept = clock.times[setting.warm - 1 :]
    memory = weigh.memory
    return {
        "round_seconds": [after - before for before, after in itertools.pairwise(kept)],
        "start_seconds": clock.times[0] - weigh.first_seconds - began,
        "memory_mib": memory.own,
        "resident_mib": memory.resident,
        "states": weigh.states,
    }


def _run_generated(setting: Setting, store: ClientStore, observers: Sequence[Observer]) -> None:
    make = synthetic(SHAPE, CLASSES, ROWS)
    federation = GeneratedFederation(setting.clients, lambda k: Examples(*make(k)), Examples(*make(-1)), CLASSES)
    training = Training(optimizer="sgd", lr=0.01, lr_decay=0.0, epochs=1, batch=BATCH)
    net = networks.build("lenet5", SHAPE, CLASSES, 0)
    job = Job(choose(setting.method).method, net, Classification(CLASSES), federation, training, Plan(0, BATCH))
    executor = Workers(job, SimulatedHomes(job, store), replace(EXACT, processes=setting.processes))
    try:
        run_rounds(job, executor, observers, rounds=setting.warm + setting.rounds, cohort=setting.cohort)
    finally:
        executor.close()


def _run_in_memory(setting: Setting, observers: Sequence[Observer]) -> None:
    # The same rows at every size, of which a smaller federation is given a part: only the number of clients differs.
    rows = LARGEST_SIZE * IN_MEMORY_ROWS
    x, y = synthetic(IN_MEMORY_SHAPE, CLASSES, rows)(0)
    data = Dataset("synthetic", Examples(x, y), Examples(x[:100], y[:100]), CLASSES)
    experiment = Experiment(
        split="iid",
        clients=setting.clients,
        volume=setting.clients / LARGEST_SIZE,
        cohort=setting.cohort,
        rounds=setting.warm + setting.rounds,
        network="mlp",
    )
    executor = Options(processes=setting.processes, stack=1)
    training = Training(optimizer="sgd", lr=0.01, epochs=1, batch=IN_MEMORY_ROWS)
    with tempfile.TemporaryDirectory(prefix="fewfed-scaling-") as folder:
        out = Path(folder) / "run"
        run(setting.method, experiment, training, executor=executor, data=data, out=out, observers=observers)


def measured(setting: Setting, repeat: int) -> dict[str, Any]:
    """One setting in a fresh process."""
    command = [sys.executable, __file__, "--measure", json.dumps(asdict(setting))]
    before = _busy_seconds()
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    if finished.returncode:
        raise SystemExit(f"{setting} failed:\n{finished.stderr}")
    everyone, own, possible = (after - then for after, then in zip(_busy_seconds(), before, strict=True))
    disturbed = max(0.0, everyone - own) / possible
    found = json.loads(finished.stdout.splitlines()[-1])
    return {**asdict(setting), "repeat": repeat, **found, "others": disturbed}


def measured_part(part: str, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """All settings of a part, one after another, then all of them again."""
    for repeat in range(options.repeats):
        for setting in settings_of(part, options.processes):
            record = measured(setting, repeat)
            seconds = statistics.median(record["round_seconds"])
            print(
                f"{part} {repeat + 1}/{options.repeats}: {setting.series}, {setting.x}: {seconds:.3f} s a round",
                file=sys.stderr,
                flush=True,
            )
            yield record


def _busy_seconds() -> tuple[float, float, float]:
    """Time the machine's cores were busy for anybody, for finished children of this process, and all there was."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    own = children.ru_utime + children.ru_stime
    possible = time.perf_counter() * (os.cpu_count() or 1)
    if not Path("/proc/stat").is_file():
        return own, own, possible
    # user, nice, system, idle, iowait, irq, softirq, steal: what a hypervisor takes away disturbs as well.
    ticks = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK"), own, possible


def hardware() -> dict[str, Any]:
    """Where and with what this ran."""
    model = ""
    if Path("/proc/cpuinfo").is_file():
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        model = found[1] if found else ""
    return {**environment(), "cpu": model, "cores_used": _cores()}


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--processes", type=int, default=_cores(), help="worker processes; default one a core")
    parser.add_argument("--json", type=Path, help="file for every single measurement")
    parser.add_argument("--plot", type=Path, help="PNG, SVG or PDF")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(Setting(**json.loads(options.measure)))))
        return
    if options.repeats < 1 or options.processes < 1:
        parser.error("--repeats and --processes: expected at least 1")
    if options.plot:
        require_matplotlib()
    began = time.perf_counter()
    records = [record for part in dict.fromkeys(options.part) for record in measured_part(part, options)]
    print(table(records))
    print("\n".join([*verdicts(records), disturbance(records)]))
    for path in (options.json, options.plot):
        if path:
            path.parent.mkdir(parents=True, exist_ok=True)
    if options.json:
        facts = {
            "command": shlex.join(["python", "benchmarks/scaling.py", *sys.argv[1:]]),
            "seconds": time.perf_counter() - began,
            "environment": hardware(),
            "measurements": records,
        }
        options.json.write_text(json.dumps(facts, indent=1) + "\n")
    if options.plot:
        draw(records, options.plot)


if __name__ == "__main__":
    main()
