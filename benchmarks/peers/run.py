"""Whole rounds of FedAvg: fewfed and other simulators doing the same work, side by side in one run.

    python benchmarks/peers/run.py [--peers ...] [--settings ...] [--rounds N] [--repeats N] [--out FILE.json]

Every simulator runs as a command of its own, in its own environment, between two runs of the bare loop
(`benchmarks/bare.py`). Beside FILE.json a table (.md) and a picture (.png) are written. README.md here says more.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))
from peers.environments import BARE, FEWFED, HERE, PEERS, NotMeasured, Simulator, python_of, versions_of
from peers.measure import Run, run
from peers.plot import plot
from peers.settings import SETTINGS, Setting
from peers.tables import Entry, Pair, bare_runs, markdown, unrest

Results = dict[str, list[Entry]]


def main() -> None:
    options = _options()
    pythons, reasons = _prepare([FEWFED, *(PEERS[name] for name in options.peers)])
    versions = {name: versions_of(python) for name, python in {BARE.name: Path(sys.executable), **pythons}.items()}
    results: Results = {}
    for name in options.settings:
        setting = SETTINGS[name]
        entries = [_entry(simulator, versions, reasons) for simulator in [FEWFED, *(PEERS[p] for p in options.peers)]]
        results[name] = entries
        _measure(setting, entries, pythons, options)
        print(markdown(_title(setting, options), entries), flush=True)
        _write(options.out, results, versions, options)  # After each setting, so that an ended run leaves what it has.
    if not plot(results, options.out.with_suffix(".png")):
        print("no picture: matplotlib is not installed")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", nargs="*", choices=list(PEERS), default=list(PEERS))
    parser.add_argument("--settings", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--rounds", type=int, help="measured rounds, one more is run; by default the setting's own")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--limit", type=float, default=600, help="seconds after which a command is given up")
    parser.add_argument("--out", type=Path, default=HERE / ".runs" / "peers.json")
    options = parser.parse_args()
    for name in ("rounds", "repeats", "processes"):
        value = getattr(options, name)
        if value is not None and value < 1:
            parser.error(f"--{name} {value}: expected at least 1")
    return options


def _prepare(simulators: Sequence[Simulator]) -> tuple[dict[str, Path], dict[str, str]]:
    """Interpreters of those that can be had, and reasons for the others."""
    pythons: dict[str, Path] = {}
    reasons: dict[str, str] = {}
    for simulator in simulators:
        try:
            pythons[simulator.name] = python_of(simulator)
        except NotMeasured as reason:
            reasons[simulator.name] = str(reason)
            print(f"{simulator.name}: not measured: {reason}", flush=True)
    return pythons, reasons


def _entry(simulator: Simulator, versions: Mapping[str, Mapping[str, str]], reasons: Mapping[str, str]) -> Entry:
    version = versions.get(simulator.name, {}).get(simulator.package, "")
    return Entry(simulator.name, simulator.title, version, not_measured=reasons.get(simulator.name, ""))


def _measure(
    setting: Setting, entries: Sequence[Entry], pythons: Mapping[str, Path], options: argparse.Namespace
) -> None:
    """Fill in the pairs: bare, simulator, bare, simulator, bare, ..."""
    rounds = _rounds(setting, options)

    def command(simulator: Simulator, python: Path) -> Run:
        return run(python, simulator, setting, rounds, options.processes, options.limit)

    def bare() -> Run:
        return command(BARE, Path(sys.executable))

    simulators = {FEWFED.name: FEWFED, **PEERS}
    for repeat in range(options.repeats):
        before = bare()
        for entry in entries:
            if entry.not_measured:
                continue
            try:
                own = command(simulators[entry.name], pythons[entry.name])
            except NotMeasured as reason:
                entry.failures.append(f"repeat {repeat + 1}: {reason}")
                print(f"{setting.name}, {entry.name}: failed in {entry.failures[-1]}", flush=True)
                before = bare()  # The last one is too long ago now.
                continue
            after = bare()
            entry.pairs.append(Pair(own, before, after))
            before = after
            last = entry.pairs[-1]
            print(
                f"{setting.name}, repeat {repeat + 1}, {entry.name}: rounds {last.rounds_ratio:.2f}, "
                f"whole {last.whole_ratio:.2f}, {own.peak_mb:.0f} MB",
                flush=True,
            )


def _rounds(setting: Setting, options: argparse.Namespace) -> int:
    return setting.rounds if options.rounds is None else int(options.rounds)


def _title(setting: Setting, options: argparse.Namespace) -> str:
    return f"{setting.name}: {setting.describe()}; {_rounds(setting, options)} rounds, {options.repeats} repeats"


def _write(out: Path, results: Results, versions: Mapping[str, Mapping[str, str]], options: argparse.Namespace) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "command": shlex.join(["python", "benchmarks/peers/run.py", *sys.argv[1:]]),
        "hardware": _hardware(),
        "python": platform.python_version(),
        "processes": options.processes,
        "repeats": options.repeats,
        "settings": {name: asdict(SETTINGS[name]) | {"rounds": _rounds(SETTINGS[name], options)} for name in results},
        "bare_rounds_over_median": {
            name: asdict(unrest(bare)) for name, entries in results.items() if (bare := bare_runs(entries))
        },
        "versions": versions,
        "results": {name: {entry.name: _told(entry) for entry in entries} for name, entries in results.items()},
    }
    out.write_text(json.dumps(content, indent=1) + "\n")
    tables = [markdown(_title(SETTINGS[name], options), entries) for name, entries in results.items()]
    out.with_suffix(".md").write_text("\n".join(tables))


def _told(entry: Entry) -> dict[str, Any]:
    told: dict[str, Any] = {"title": entry.title, "version": entry.version}
    if not entry.measured:
        told["not_measured"] = entry.reason
    else:
        told |= {
            "rounds_ratio": asdict(entry.rounds_ratio),
            "whole_ratio": asdict(entry.whole_ratio),
            "peak_mb": entry.peak_mb,
        }
    return told | {"failures": entry.failures, "pairs": [asdict(pair) for pair in entry.pairs]}


def _hardware() -> dict[str, Any]:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    model = next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor()
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {"cpu": model, "cores": len(os.sched_getaffinity(0)), "memory_gb": round(memory, 1)}


if __name__ == "__main__":
    main()
