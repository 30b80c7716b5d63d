"""A run folder: configuration, environment, split, blueprint, one line of metrics a round, checkpoints, final model and
scores, result.

Every file is covered by a digest (`fewfed.runs.seals`): the configuration names those of environment, split and
blueprint, the lines of metrics continue from the configuration's, a checkpoint names the last line's and those of the
clients' states, and the result names the last line's, the model's and the scores'.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from fewfed.engine import storage
from fewfed.engine.holdings import Holdings
from fewfed.engine.own_folder import PART, File, OwnFolder
from fewfed.engine.provenance import Provenance
from fewfed.engine.storage import Damaged, digest_of
from fewfed.errors import RunError
from fewfed.privacy.record import FOLDER as PACKETS
from fewfed.runs.machine import environment
from fewfed.runs.round_lines import RoundLines
from fewfed.runs.seals import MOST_BYTES, linked, parsed, read_sealed, unlinked, write_sealed
from fewfed.tree import Tree
from fewfed.version import __version__

CONFIG, ENVIRONMENT, SPLIT = "config.json", "environment.json", "split.json"
BLUEPRINT = "blueprint.json"
"""What is needed beside the weights to use the model."""
METRICS, CHECKPOINT, MODEL, RESULT = "metrics.jsonl", "checkpoint.safetensors", "model.safetensors", "result.json"
SCORES = "scores.json"
BEFORE = "checkpoint.before.safetensors"
"""The checkpoint before the last, which is used where the last is damaged."""
CLIENTS = "clients"
CHOICES = "choices.json"
FEDERATION = "federation.json"
"""In the folder of a run between real sites: its identity among them. Their states are not in the folder."""
LOCK = "lock"

_MOST_ROUNDS = 1 << 31
_RELEASE_SECONDS = 3.0
"""How long a process that was just killed may take to let go of its folder."""


class Checkpoint(NamedTuple):
    """What a run was when it was last written down."""

    server: Tree | None = None
    """Nothing before the first checkpoint."""
    done: int = 0
    """Finished rounds."""
    states: Mapping[str, Any] = {}
    """The file of each client's state, and its digest."""
    held: Mapping[str, Any] = {}
    """What clients hold of the broadcast."""
    lines: tuple[bytes, ...] = ()
    """The metrics of the finished rounds."""
    chain: str = ""
    """The digest of the last of them."""
    rows: Mapping[str, Any] = {}
    """Whose the rows on the server are; nothing where nobody asked."""


class Restored(NamedTuple):
    """Where a run goes on."""

    last: Checkpoint
    before: Checkpoint
    """The checkpoint before that, whose files are still needed."""
    mended: tuple[str, ...]
    """What was damaged and could be made good."""


class RunFolder:
    """The files of one run. Every file but the metrics is replaced atomically; those are appended line by line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._own = OwnFolder(path)
        self._written = RoundLines()

    @classmethod
    def create(
        cls, path: Path, config: Mapping[str, Any], split: Mapping[str, Any], blueprint: Mapping[str, Any]
    ) -> RunFolder:
        """Start a run folder; an existing run is not overwritten."""
        refuse_existing(path)
        folder = cls(path)
        folder._own.make()
        files = {name: folder._write_json(name, content) for name, content in
                 ((ENVIRONMENT, environment()), (SPLIT, split), (BLUEPRINT, blueprint))}  # fmt: skip
        # Last: a folder with a configuration is a run that can be continued.
        write_sealed(folder._own / CONFIG, {"fewfed": __version__, **config, "files": files})
        return folder

    @classmethod
    def open(cls, path: Path, *, any_version: bool = False) -> tuple[RunFolder, dict[str, Any]]:
        """An existing run and its configuration. `any_version`: it is only looked at, so that nothing can differ."""
        if not (path / CONFIG).is_file():
            raise RunError(f"'{path}' is not a run folder: expected one with a {CONFIG}, as 'fewfed run' writes it")
        folder = cls(path)
        folder._own.names()  # Refuses links.
        version = parsed(folder._own.read(CONFIG, MOST_BYTES), folder._own / CONFIG).get("fewfed")
        if not isinstance(version, str):
            raise Damaged(f"'{path / CONFIG}' is damaged: expected the JSON that 'fewfed run' wrote")
        if version != __version__ and not any_version:
            raise RunError(
                f"'{path}' was written by fewfed {version!s:.40}, this is {__version__}: results could differ; "
                f"continue it with that version or start a new run"
            )
        return folder, read_sealed(folder._own / CONFIG)[0]

    def checkpoint(
        self,
        server: Tree,
        round: int,
        states: Mapping[str, Any],
        held: Mapping[str, Any],
        rows: Mapping[str, Any] | None = None,
    ) -> None:
        """Write the server's tree after `round` rounds, where the clients' states lie, what clients hold, and whose the
        rows on the server are, where that is known."""
        self._own.flush(METRICS)  # A checkpoint must not outlive the metrics of its rounds.
        metrics, chain = self._written.until(round)
        facts = {
            "round": round,
            "states": dict(states),
            "held": dict(held),
            "chain": chain,
            "metrics": base64.b64encode(metrics).decode(),
            **({"rows": dict(rows)} if rows else {}),
        }
        new = CHECKPOINT + ".new"
        storage.save(self._own / new, server, facts)
        try:
            if self._own.has(CHECKPOINT):
                self._own.rename(CHECKPOINT, BEFORE)
            self._own.rename(new, CHECKPOINT)
        except OSError as error:
            raise RunError(f"cannot write '{self.path / CHECKPOINT}': {error.strerror or error}") from error

    def restore(self, check: Callable[[Mapping[str, Any]], None], rounds: int) -> Restored:
        """The last good checkpoint, or the beginning; metrics of rounds after it are dropped.

        `check` raises `Damaged` where client states that a checkpoint names are not as they were written. Damage that
        can be made good is made good, and told.
        """
        start = read_sealed(self._own / CONFIG)[1]
        good: dict[str, Checkpoint] = {}
        bad: dict[str, Damaged] = {}
        for name in (CHECKPOINT, BEFORE):
            try:
                if self._own.has(name):
                    found = self._checkpoint(name, start, rounds)
                    check(found.states)
                    good[name] = found
            except Damaged as error:
                bad[name] = error
        if bad and not good:
            first = next(iter(bad.values()))
            raise RunError(f"{first}, and no other checkpoint is there: remove it to start over from round 1")
        last, before = good.get(CHECKPOINT), good.get(BEFORE, Checkpoint())
        if last is None and BEFORE in good:  # From now on it is the last.
            last, before = good[BEFORE], Checkpoint()
            self._own.rename(BEFORE, CHECKPOINT)
        elif BEFORE in bad:
            self._own.remove(BEFORE)
        last = last or Checkpoint(chain=start)
        mended = [f"{error}; the run goes on from round {last.done}" for error in bad.values()]
        mended += self._mend_metrics(last)
        self._written = RoundLines(last.chain, last.lines)
        for name in self._own.names():
            if name.endswith((PART, CHECKPOINT + ".new")):
                self._own.remove(name)
        return Restored(last, before, tuple(mended))

    def append(self, metrics: Mapping[str, Any]) -> None:
        line, chain = linked(metrics, self._written.chain)
        self._own.append(METRICS, line)
        self._written.add(line, chain)

    def config(self) -> dict[str, Any]:
        """The configuration; `Damaged` where it is not as it was written."""
        return read_sealed(self._own / CONFIG)[0]

    def metrics(self) -> list[dict[str, Any]]:
        """One record a finished round; `Damaged` where they are not as they were written."""
        if not self._own.exists() or not self._own.has(METRICS):
            return []
        return self._linked_metrics()[0]

    def look_at(self, name: str) -> None:
        """Raise `Damaged` unless a checkpoint fits the rest of the run."""
        start = read_sealed(self._own / CONFIG)[1]
        found = self._checkpoint(name, start, rounds=_MOST_ROUNDS)
        if tuple(_lines(self._own.read(METRICS))[: found.done]) != found.lines:
            raise Damaged(f"'{self.path / METRICS}' differs from the metrics in {name}")

    def check_result(self) -> None:
        """Raise `Damaged` unless the result fits the metrics, the model and the scores."""
        recorded, _ = read_sealed(self._own / RESULT)
        files = recorded.get("files")
        if not isinstance(files, dict) or self._linked_metrics()[1] != files.get(METRICS):
            raise Damaged(f"'{self.path / RESULT}' was written for other metrics than those in {METRICS}")
        storage.load(self._own / MODEL, str(files.get(MODEL)))
        if SCORES in files:
            self.scores()

    def finish(self, model: Tree, scores: Mapping[str, Any], result: Mapping[str, Any]) -> None:
        files = {
            METRICS: self._written.chain,
            MODEL: storage.save(self._own / MODEL, model, {"fewfed": __version__}),
            SCORES: write_sealed(self._own / SCORES, scores),
        }
        write_sealed(self._own / RESULT, {**result, "files": files})

    def result(self) -> dict[str, Any] | None:
        """The summary of a finished run, wherever its folder lies by now; None while it is not finished."""
        if not self._own.exists() or not self._own.has(RESULT):
            return None
        try:
            found, _ = read_sealed(self._own / RESULT)
        except Damaged as error:
            raise RunError(f"{error}; remove it and resume the run to write it again") from error
        found.pop("files", None)
        return {**found, "folder": str(self.path)}

    def scores(self) -> dict[str, Any]:
        """The scores of a finished run's last model."""
        if not self.result():
            raise RunError(f"'{self.path}' holds no finished run, so there are no scores yet: resume it first")
        files = read_sealed(self._own / RESULT)[0].get("files")
        wanted = files.get(SCORES) if isinstance(files, dict) else None
        if wanted is None:
            raise RunError(
                f"'{self.path}' was made before runs had a {SCORES}: remove its {RESULT} and resume it to have one"
            )
        if not self._own.has(SCORES):
            raise RunError(f"'{self.path / SCORES}' is missing: resume the run to write it again")
        found, digest = read_sealed(self._own / SCORES)
        if digest != wanted:
            raise Damaged(f"'{self.path / SCORES}' is of another run than {RESULT}: resume the run to write it again")
        return found

    def model(self) -> Tree:
        """The final model of a finished run; `Damaged` where it is not as the result says."""
        recorded, _ = read_sealed(self._own / RESULT)
        files = recorded.get("files")
        model, _ = storage.load(self._own / MODEL, str(files.get(MODEL)) if isinstance(files, dict) else "?")
        return model

    def last_checkpoint(self) -> Checkpoint:
        """What the run was when it was last written down, for somebody who only reads; `Damaged` where it is not as it
        was written."""
        start = read_sealed(self._own / CONFIG)[1]
        return self._checkpoint(CHECKPOINT, start, _MOST_ROUNDS) if self._own.has(CHECKPOINT) else Checkpoint()

    def blueprint(self) -> dict[str, Any]:
        """What is needed beside the weights to use the model; `Damaged` where it is not as it was written."""
        files = read_sealed(self._own / CONFIG)[0].get("files")
        wanted = files.get(BLUEPRINT) if isinstance(files, dict) else None
        if wanted is None:
            raise RunError(
                f"'{self.path}' was made before runs had a {BLUEPRINT}, without which its model cannot be rebuilt: "
                "run it again"
            )
        content = self._own.read(BLUEPRINT, MOST_BYTES)
        if digest_of(content) != wanted:
            raise Damaged(f"'{self.path / BLUEPRINT}' is damaged: its content does not fit the digest in {CONFIG}")
        return parsed(content, self._own / BLUEPRINT)

    def is_whole(self) -> bool:
        """Whether final model and scores of a finished run are there as they were written."""
        try:
            storage.load(self._own / MODEL)
            if SCORES in dict(read_sealed(self._own / RESULT)[0].get("files", {})):
                self.scores()
        except RunError:
            return False
        return True

    @property
    def is_of_sites(self) -> bool:
        """Whether this is the coordinator's folder of a run between real sites."""
        return self._own.has(FEDERATION)

    @property
    def choices(self) -> File:
        return self._own / CHOICES

    @property
    def place(self) -> OwnFolder:
        """The folder itself, for what is written there beside the run."""
        return self._own

    @property
    def clients(self) -> OwnFolder:
        return self._own.below(CLIENTS)

    def _linked_metrics(self) -> tuple[list[dict[str, Any]], str]:
        """The records, and the digest of the last."""
        chain = read_sealed(self._own / CONFIG)[1]
        records = []
        for line in _lines(self._own.read(METRICS)):
            record, chain = unlinked(line, chain, self._own / METRICS)
            records.append(record)
        return records, chain

    def _checkpoint(self, name: str, start: str, rounds: int) -> Checkpoint:
        """A checkpoint whose every part fits the others, or `Damaged`. `start` is the configuration's digest."""
        server, facts = storage.load(self._own / name)
        where = f"'{self.path / name}'"
        try:
            done, chain = int(facts["round"]), str(facts["chain"])
            states, held = dict(facts["states"]), dict(facts["held"])
            Holdings.from_json(held)
            rows = dict(facts["rows"]) if "rows" in facts else {}
            if rows:
                Provenance.from_json(rows)
            text = _decompressed(base64.b64decode(facts["metrics"], validate=True))
        except (RunError, KeyError, TypeError, ValueError, binascii.Error, zlib.error) as error:
            raise Damaged(f"{where} is damaged ({type(error).__name__}): expected a checkpoint of this run") from error
        lines = _lines(text)
        if not 1 <= done <= rounds or len(lines) != done:
            raise Damaged(f"{where} is damaged: it claims round {done} of {rounds} with {len(lines)} lines of metrics")
        for number, line in enumerate(lines, 1):
            record, start = unlinked(line, start, self._own / name)
            if record.get("round") != number:
                raise Damaged(f"{where} is damaged: line {number} of its metrics is of another round")
        if start != chain:
            raise Damaged(f"{where} is damaged: it is not of this run, or its metrics were changed")
        return Checkpoint(server, done, states, held, tuple(lines), chain, rows)

    def _mend_metrics(self, last: Checkpoint) -> list[str]:
        """Let the file of metrics end with those of the checkpoint, which has them all."""
        found = _lines(self._own.read(METRICS)) if self._own.has(METRICS) else []
        kept = tuple(found[: last.done])
        self._own.write(METRICS, b"".join(last.lines))
        if kept == last.lines:
            return []
        what = "damaged" if found else "missing"
        return [f"'{self.path / METRICS}' was {what} and was written again from the checkpoint"]

    def _write_json(self, name: str, content: Mapping[str, Any]) -> str:
        written = (json.dumps(content, indent=1) + "\n").encode()
        self._own.write(name, written)
        return digest_of(written)


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Keep every other process from writing into this folder, whatever is in it. It is made where it is missing."""
    folder = OwnFolder(path)
    folder.make()
    try:
        import fcntl
    except ImportError:  # No such locks on this system: nothing is kept out.
        yield
        return
    # A record lock, unlike a lock on the open file, stays with this process and is not inherited by its workers.
    with folder.descriptor_of(LOCK) as descriptor:
        deadline = time.monotonic() + _RELEASE_SECONDS
        while True:
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except (BlockingIOError, PermissionError) as error:
                if time.monotonic() > deadline:
                    raise RunError(f"another process is running '{path}': wait for it or stop it first") from error
                time.sleep(0.05)
        yield


def is_held(path: Path) -> bool:
    """Whether another process is at work in this folder. Not for a process that works there itself: looking would let
    go of its lock."""
    folder = OwnFolder(path)
    try:
        import fcntl

        if not folder.has(LOCK):
            return False
        # Shared, and for a moment: others who look do not see each other, and one who begins tries for longer.
        with folder.reading(LOCK) as descriptor:
            fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return True
    except (ImportError, OSError, RunError):  # No such locks, or nothing there to be locked.
        return False
    return False


def refuse_existing(path: Path) -> None:
    """A new run does not go into a folder that holds one, nor over files it would overwrite or clear away."""
    if (path / CONFIG).exists():
        raise RunError(f"'{path}' already holds a run: continue it with 'fewfed resume {path}' or choose another --out")
    for name in (METRICS, CHECKPOINT, BEFORE, MODEL, SCORES, RESULT, CLIENTS, CHOICES, PACKETS):
        if os.path.lexists(path / name):
            raise RunError(f"'{path}' holds '{name}', which a run would overwrite: choose another --out")


def _lines(text: bytes) -> list[bytes]:
    """Whole lines: a run killed while it wrote leaves at most one without its end."""
    return [line + b"\n" for line in text.split(b"\n")[:-1]]


def _decompressed(content: bytes) -> bytes:
    machine = zlib.decompressobj()
    text = machine.decompress(content, MOST_BYTES)
    if not machine.eof:
        raise ValueError("metrics without an end")
    return text
