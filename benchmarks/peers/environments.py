"""Who is measured, and a virtual environment of its own for each peer, made from `pins/<peer>.txt`."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ENVIRONMENTS = HERE / ".envs"
INSTALL_SECONDS = 1800


class NotMeasured(Exception):
    """Why a simulator has no number; the text goes into the table."""


@dataclass(frozen=True)
class Simulator:
    """One row of the table. `package` is the one whose version is shown; `absent` says why one cannot be had."""

    name: str
    title: str
    package: str = ""
    absent: str = ""

    @property
    def adapter(self) -> Path:
        return HERE / "adapters" / f"{self.name}_rounds.py"

    @property
    def pins(self) -> Path:
        return HERE / "pins" / f"{self.name}.txt"


BARE = Simulator("bare", "bare PyTorch loop", "torch")
FEWFED = Simulator("fewfed", "fewfed", "fewfed")
_NOT_PACKAGED = "not on the package index, only as a source repository"
PEERS: dict[str, Simulator] = {
    peer.name: peer
    for peer in (
        Simulator("pfl", "pfl-research", "pfl"),
        Simulator("flower", "Flower simulation", "flwr"),
        Simulator("fluke", "fluke", "fluke-fl"),
        Simulator("fedlab", "FedLab", "fedlab"),
        Simulator("flbench", "FL-bench", absent=_NOT_PACKAGED),
        Simulator("pfllib", "PFLlib", absent=_NOT_PACKAGED),
    )
}


def python_of(simulator: Simulator) -> Path:
    """The interpreter a simulator runs in; makes a peer's environment when it is missing or its pins have changed."""
    if simulator in (BARE, FEWFED):
        return Path(sys.executable)
    if simulator.absent:
        raise NotMeasured(simulator.absent)
    folder = ENVIRONMENTS / simulator.name
    python, made_from = folder / "bin" / "python", folder / "made-from.txt"
    wanted = f"python {sys.version_info.major}.{sys.version_info.minor}\n{simulator.pins.read_text()}"
    if made_from.exists() and made_from.read_text() == wanted:
        return python
    shutil.rmtree(folder, ignore_errors=True)
    print(f"{simulator.name}: making its environment", flush=True)
    _call([sys.executable, "-m", "venv", str(folder)], "its environment could not be made")
    _call([str(python), "-m", "pip", "install", "-q", "-r", str(simulator.pins)], "it could not be installed")
    made_from.write_text(wanted)  # Last, so that an interrupted installation is done again.
    return python


def versions_of(python: Path) -> dict[str, str]:
    """Every distribution in an environment."""
    code = (
        "import importlib.metadata as m, json; "
        "print(json.dumps({d.metadata['Name']: d.version for d in m.distributions()}))"
    )
    found: dict[str, str] = json.loads(subprocess.run([python, "-c", code], capture_output=True, check=True).stdout)
    return dict(sorted(found.items(), key=lambda item: item[0].lower()))


def _call(command: list[str], what: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS)
    except subprocess.TimeoutExpired:
        raise NotMeasured(f"{what} within {INSTALL_SECONDS // 60} minutes") from None
    if done.returncode != 0:
        raise NotMeasured(f"{what}: {last_words(done.stderr)}")


def last_words(text: str, limit: int = 200) -> str:
    """The last line of an error message, without this machine's folders."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    repository = str(HERE.parent.parent)
    return lines[-1].replace(repository, ".").replace("|", "/")[:limit] if lines else "no message"
