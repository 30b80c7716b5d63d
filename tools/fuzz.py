"""Feed what comes from outside with bytes nobody would write: packets, signed envelopes, data files, run folders...

    python tools/fuzz.py [--seconds 60] [--targets packet npz ...] [--seed 0]

Each target has so many seconds, in a process of its own. With atheris (`pip install -e '.[fuzz]'`) inputs are guided by
the lines they reach; without it, known good inputs are changed at random. An error that is not a sentence for the
user, a case of over two seconds, or more than two gigabytes of memory ends a target, and the input is kept in
`runs/fuzz`.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import pickle
import random
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

SLOWEST = 2.0
MOST_MEMORY = 2 << 30
KEPT = Path("runs") / "fuzz"

Case = Callable[[bytes], None]


def packet(_scratch: Path) -> tuple[Case, list[bytes]]:
    from fewfed.engine.packet import BadPacket, Packet, decode, encode

    def case(content: bytes) -> None:
        with contextlib.suppress(BadPacket):
            decode(content)

    arrays = {"model": {"w": torch.ones(2, 3), "b": torch.zeros(3)}, "counts": torch.arange(4)}
    return case, [encode(Packet(1, "train", 3, 2.0, arrays, {"steps": 4.0})), encode(Packet(0, "a", 0, 1.0, {}))]


def envelope(_scratch: Path) -> tuple[Case, list[bytes]]:
    from fewfed.deploy.security.envelope import About, Direction, Expected, Refused, seal, unseal
    from fewfed.deploy.security.keys import PublicKey, SigningKey

    class Anybody(PublicKey):
        """A key under which everything is signed, so that what comes after the signature is reached too."""

        def signed(self, signature: bytes, content: bytes) -> bool:  # noqa: ARG002
            return True

    key = SigningKey.new()
    everybody = {"a": Anybody(key.public.content)}

    def case(content: bytes) -> None:
        for keys in ({"a": key.public}, everybody):
            with contextlib.suppress(Refused):
                opened = unseal(content, Expected(recipient="coordinator"), keys, most_bytes=1 << 20)
                assert len(opened.body) <= len(content)

    about = About("run", 1, "train", "work", 0, Direction.REPLY, "a", "coordinator", bytes(16))
    return case, [seal(b"a body", about, key), seal(b"", about, key)]


def secure(_scratch: Path) -> tuple[Case, list[bytes]]:
    """The first byte says which message of secure aggregation the rest is."""
    from fewfed.deploy.secure import messages
    from fewfed.deploy.secure.session import Session
    from fewfed.deploy.security.envelope import Refused

    session, pair = bytes(32), (bytes(32), bytes(32))
    keys = messages.Keys(bytes(32), bytes(32), bytes(64))
    dealt = messages.Dealt(b"box", pair)
    good = (
        keys,
        messages.KeyRing({"a": keys, "b": keys}),
        messages.Deal(bytes(32), {"a": dealt}),
        messages.Boxes({"a": dealt, "b": dealt}),
        messages.Masked(bytes(16), b"extra", ("a",)),
        messages.Survivors(("a", "b")),
        messages.Confirmed(bytes(64)),
        messages.Confirmations({"a": bytes(64)}),
        messages.Revealed({"a": (messages.Secret.SELF, bytes(52)), "b": (messages.Secret.PAIR, bytes(52))}),
    )

    def case(content: bytes) -> None:
        which, rest = (content[0] if content else 0), content[1:]
        with contextlib.suppress(Refused):
            if which % (len(good) + 1) == len(good):
                found = Session.decode(rest)
                assert not (found.problem == "" and len(found.sites) < 3)
                again = found.encode()
            else:
                again = type(good[which % (len(good) + 1)]).decode(rest, session).encode(session)
            assert again == rest, "a message has two encodings"

    invitation = Session("run", 3, "train", 0, ("a", "b", "c"), 2, bytes(32)).encode()
    written = [message.encode(session) for message in good]
    return case, [bytes([number]) + content for number, content in enumerate([*written, invitation])]


def letters(_scratch: Path) -> tuple[Case, list[bytes]]:
    """Bodies of letters between coordinator and sites; the first byte says which. What is in them is used as there."""
    from fewfed.data.raw_inputs import RawInputs
    from fewfed.deploy.coordinator.scores import blank_score, checked_score
    from fewfed.deploy.messages import BadMessage, Offer, Reply, Request, Terms, Verdict
    from fewfed.errors import DataError
    from fewfed.tasks.classification import Classification

    task = Classification(3)
    like = blank_score(task, (4,))
    inputs = {"kind": "table", "columns": [{"name": "sex", "categories": ["f", "m"]}]}
    good = (
        Offer({"method": "fedavg"}, "classification", (4,), ("a", "b", "c"), ("north", "south")),
        Terms(10, 5, 0, False, inputs, "00", "1"),
        Request((Verdict(1, "train", True),), attached="00", content=b"packet"),
        Reply(score={**like.as_json(), "groups": {}}, content=b"packet"),
        Reply("it failed", "policy", inputs=inputs),
    )

    def case(content: bytes) -> None:
        kind = type(good[(content[0] if content else 0) % len(good)])
        with contextlib.suppress(BadMessage, DataError):
            found = kind.read(content[1:])
            if isinstance(found, Reply) and found.score is not None:
                checked_score(found.score, like, 1_000)
            if isinstance(found, Reply | Terms) and found.inputs is not None:
                raw = RawInputs.from_json(found.inputs)
                assert raw.unlike(raw) == ""
                raw.unlike(RawInputs.from_json(inputs))
            kind.read(found.body())

    return case, [bytes([number]) + each.body() for number, each in enumerate(good)]


def parcel(_scratch: Path) -> tuple[Case, list[bytes]]:
    """The objects of one of Flower's messages, one after another behind its length; and a relay's parcel."""
    from fewfed.deploy.flower import wire
    from fewfed.deploy.flower.relay import receive_parcel
    from fewfed.deploy.parcel import Parcel

    good, names = [], []
    for attached in (b"", bytes(250_000)):
        about = {"run": 1, "sender": 2, "to": 3, "created": 1.0, "ttl": 60.0, "answers": ""}
        message = wire.message_of(Parcel(b"letter", attached), **about)
        _, _, objects = wire.objects_of([message])
        parts = {name: each.deflate() for name, each in objects.items()}
        order = [message.object_id, *(name for name in parts if name != message.object_id)]
        names.append(order)
        good.append(b"".join(len(parts[name]).to_bytes(4, "little") + parts[name] for name in order))

    class Line:
        """As a socket that has received some bytes."""

        def __init__(self, content: bytes) -> None:
            self._content = io.BytesIO(content)

        def recv(self, size: int) -> bytes:
            return self._content.read(size)

        def settimeout(self, _: float | None) -> None:
            pass

    def case(content: bytes) -> None:
        came = receive_parcel(Line(content), 1 << 20)  # type: ignore[arg-type]
        assert came is None or len(came[0]) + len(came[1]) + 16 <= len(content)
        blobs, rest = [], content
        while rest and len(blobs) < 20:
            length = int.from_bytes(rest[:4], "little")
            blobs.append(rest[4 : 4 + length])
            rest = rest[4 + length :]
        for order in names:
            with contextlib.suppress(wire.Unreadable):
                wire.parcel_in(order[0], dict(zip(order, blobs, strict=False)))

    return case, [good[0], (6).to_bytes(8, "little") + (3).to_bytes(8, "little") + b"letterxyz", good[1][:20_000]]


def roster(_scratch: Path) -> tuple[Case, list[bytes]]:
    from fewfed.deploy.security.keys import FlowerKey, SigningKey
    from fewfed.deploy.security.roster import Member, Roster, parsed_roster
    from fewfed.errors import ConfigError

    def case(content: bytes) -> None:
        with contextlib.suppress(ConfigError):
            found = parsed_roster(content, "roster.toml")
            assert parsed_roster(found.written(), "roster.toml") == found

    members = [Member(name, SigningKey.new().public, FlowerKey.new().line) for name in ("a", "ward-3")]
    return case, [Roster(SigningKey.new().public, {each.name: each for each in members}).written()]


def cifar(scratch: Path) -> tuple[Case, list[bytes]]:
    from fewfed.data.readers.safe_pickle import load_plain
    from fewfed.errors import DataError

    file = scratch / "batch"

    def case(content: bytes) -> None:
        file.write_bytes(content)
        with contextlib.suppress(DataError):
            load_plain(file)

    batch = {b"data": np.zeros((2, 6), np.uint8), b"labels": [0, 1], b"names": [b"a", "b"], b"more": (None, 1.5, True)}
    return case, [pickle.dumps(batch, protocol) for protocol in range(2, 6)]


def npz(scratch: Path) -> tuple[Case, list[bytes]]:
    def written(save: Callable[..., None], **arrays: np.ndarray) -> bytes:
        buffer = io.BytesIO()
        save(buffer, **arrays)
        return buffer.getvalue()

    x, y = np.arange(24, dtype=np.float32).reshape(6, 4), np.arange(6) % 2
    good = [written(np.savez, x=x, y=y), written(np.savez_compressed, x=x, y=y, x_test=x, y_test=y, client=y)]
    return _file_case(scratch / "d.npz"), good


def csv(scratch: Path) -> tuple[Case, list[bytes]]:
    good = [
        b"a,b,label\n1,2,cat\n3,4,dog\n5,6,cat\n7,8,dog\n",
        "\ufeffé,client,y\n1,0,0\n2,1,1\n3,0,1\n".encode(),
        b'"";a;ward;label\n1;1,5;x;1\n2;NA;y;2\n3;2,5;x;2\n4;0,5;;1\n',
        "site\tdose\ty\nn\t1\tTrue\nn\t\tFalse\ns\t3\tTrue\n".encode("utf-16"),
    ]
    return _file_case(scratch / "d.csv"), good


def new_rows(scratch: Path) -> tuple[Case, list[bytes]]:
    from fewfed.data.raw_inputs import InputColumn, RawInputs
    from fewfed.data.readers.new_rows import inputs_from
    from fewfed.data.readers.options import DataOptions
    from fewfed.errors import FewfedError

    file, raw = scratch / "n.csv", RawInputs("table", (InputColumn("a"), InputColumn("ward", ("x", "y"))))

    def case(content: bytes) -> None:
        file.write_bytes(content)
        with contextlib.suppress(FewfedError):
            inputs_from(file, raw, (3,), DataOptions(most_bytes=1 << 28))

    return case, [b"a,ward\n1,x\n2,y\n", b"ward;id;a\ny;7;1,5\n;8;NA\n", b"b,ward\n1,x\n"]


def blueprint(_scratch: Path) -> tuple[Case, list[bytes]]:
    from fewfed.errors import FewfedError
    from fewfed.runs.blueprint import Blueprint

    def case(content: bytes) -> None:
        with contextlib.suppress(ValueError, RecursionError):
            found = json.loads(content)
            with contextlib.suppress(FewfedError):
                Blueprint.from_json(found)

    return case, [_good_blueprint()]


def _good_blueprint() -> bytes:
    from fewfed import Experiment
    from fewfed.data.readers.options import DataOptions
    from fewfed.runs.experiment import layered
    from fewfed.runs.prepare import prepare

    made = prepare(layered("fedavg", {}, Experiment(network="mlp", clients=4), {}, DataOptions()))
    return json.dumps(made.blueprint.as_json()).encode()


def split(_scratch: Path) -> tuple[Case, list[bytes]]:
    from fewfed.data.splits import make_split
    from fewfed.errors import FewfedError

    labels = torch.arange(60) % 4

    def case(content: bytes) -> None:
        rule, _, rest = content.decode("utf-8", "replace").partition("|")
        numbers = [int(part) for part in rest.split("|") if part.isascii() and part.isdigit() and len(part) < 10]
        clients, seed, least = (*numbers, 5, 0, 0)[:3] if len(numbers) < 3 else numbers[:3]
        with contextlib.suppress(FewfedError):
            make_split(rule, labels, 4, min(clients, 100), seed, min_size=least or None)

    rules = ["iid", "qua:2", "dir:0.5", "dirm:0.1", "exact:3:2", "size:0.3", "subject", "domain", "client"]
    return case, [f"{rule}|5|0|1".encode() for rule in rules]


def settings(scratch: Path) -> tuple[Case, list[bytes]]:
    from fewfed.errors import FewfedError
    from fewfed.runs.config_file import read
    from fewfed.runs.experiment import resolve

    file = scratch / "e.toml"

    def case(content: bytes) -> None:
        file.write_bytes(content)
        with contextlib.suppress(FewfedError):
            found = read(file)
            for method in found.methods:
                if ".py" not in method:  # A file that is named is run.
                    resolve(method, found.values)

    good = (
        'method = "flea:official"\nseed = 3\n[training]\nlr = 0.1\n[executor]\nname = "workers"\nstack = 2\n',
        'methods = ["fedprox", "sem(fedavg)"]\nseeds = 2\nclients = 10\ncohort = 0.5\n[method.fedprox]\nmu = 0.1\n',
    )
    return case, [text.encode() for text in good]


def folder(scratch: Path) -> tuple[Case, list[bytes]]:
    """The first byte says which file of a good run folder is replaced by the rest."""
    from fewfed import Experiment, Training, run
    from fewfed.engine.client_store import ClientStore
    from fewfed.errors import FewfedError
    from fewfed.runs.folder import RunFolder
    from fewfed.runs.verify import verify

    out, copy = scratch / "good", scratch / "copy"
    small = Experiment(network="mlp", clients=4, cohort=2.0, rounds=2, executor="sequential", checkpoint_seconds=0)
    run("local", small, Training(epochs=1), out=out)
    names = sorted(str(file.relative_to(out)) for file in out.rglob("*") if file.is_file())
    kept = {name: (out / name).read_bytes() for name in names}
    shutil.copytree(out, copy)

    def case(content: bytes) -> None:
        name = names[content[0] % len(names)] if content else names[0]
        (copy / name).write_bytes(content[1:])
        try:
            with contextlib.suppress(FewfedError):
                verify(copy)
            with contextlib.suppress(FewfedError):
                opened, _ = RunFolder.open(copy)
                opened.result()
                opened.restore(ClientStore(opened.clients).check, 2)
        finally:
            for other in names:  # Restoring may have mended, renamed or removed some.
                if not (copy / other).exists() or other == name or other.endswith(("jsonl", "safetensors")):
                    (copy / other).write_bytes(kept[other])

    return case, [bytes([number]) + kept[name] for number, name in enumerate(names)]


TARGETS: dict[str, Callable[[Path], tuple[Case, list[bytes]]]] = {
    each.__name__: each
    for each in (
        packet,
        envelope,
        letters,
        parcel,
        secure,
        roster,
        cifar,
        npz,
        csv,
        new_rows,
        split,
        settings,
        blueprint,
        folder,
    )
}


def _file_case(file: Path) -> Case:
    from fewfed.data.readers.options import DataOptions
    from fewfed.data.sources import load
    from fewfed.errors import FewfedError

    ways = [DataOptions(most_bytes=1 << 28, missing=missing) for missing in ("refuse", "mean", "drop")]

    def case(content: bytes) -> None:
        file.write_bytes(content)
        for options in ways:
            with contextlib.suppress(FewfedError):
                load(str(file), options=options)

    return case


class Counted:
    """A case that is timed and counted; the first input that breaks it is kept."""

    def __init__(self, name: str, case: Case) -> None:
        self._name, self._case = name, case
        self.cases = 0

    def __call__(self, content: bytes) -> None:
        self.cases += 1
        began = time.process_time()
        try:
            self._case(content)
        except BaseException as error:
            self._keep(content, f"{type(error).__name__}: {error}")
            raise
        if time.process_time() - began > SLOWEST:
            self._keep(content, f"it took {time.process_time() - began:.1f} s")
            raise TimeoutError

    def _keep(self, content: bytes, why: str) -> None:
        KEPT.mkdir(parents=True, exist_ok=True)
        place = KEPT / f"{self._name}-{time.time_ns()}"
        place.write_bytes(content)
        print(f"FAULT {self._name}: {why}; input: {place}", file=sys.stderr, flush=True)


def mutated(content: bytes, draw: random.Random) -> bytes:
    """A known good input with a few changes."""
    changed = bytearray(content)
    for _ in range(draw.randint(1, 6)):
        place = draw.randrange(len(changed) + 1)
        kind = draw.randrange(5)
        if kind == 0 and changed:
            changed[place % len(changed)] = draw.randrange(256)
        elif kind == 1 and changed:
            changed[place % len(changed)] ^= 1 << draw.randrange(8)
        elif kind == 2:
            del changed[place : place + draw.randint(1, 30)]
        elif kind == 3:
            changed[place:place] = draw.randbytes(draw.randint(1, 20))
        else:
            start = draw.randrange(len(changed) + 1)
            changed[place:place] = changed[start : start + draw.randint(1, 30)]
    return bytes(changed)


def one_target(name: str, seconds: float, seed: int) -> None:
    """Run one target; its number of cases is the last line of standard output."""
    try:
        import atheris  # type: ignore[import-not-found]
    except ImportError:
        atheris = None
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="fewfed-fuzz-") as scratch:
        place = Path(scratch)
        (place / "work").mkdir()
        with atheris.instrument_imports(include=["fewfed"]) if atheris else contextlib.nullcontext():
            case, good = TARGETS[name](place / "work")
        counted = Counted(name, case)
        for content in good:
            counted(content)
        resource.setrlimit(resource.RLIMIT_AS, (_address_space() + MOST_MEMORY,) * 2)
        if atheris is None:
            draw, deadline = random.Random(seed), time.monotonic() + seconds
            while time.monotonic() < deadline:
                counted(mutated(draw.choice(good), draw))
            print(json.dumps({"cases": counted.cases, "guided": False}))
            return
        corpus = place / "corpus"
        corpus.mkdir()
        for number, content in enumerate(good):
            (corpus / str(number)).write_bytes(content)
        # The fuzzer ends the process itself, and says how many cases there were.
        limits = [f"-max_total_time={int(seconds)}", f"-seed={seed + 1}", "-rss_limit_mb=0", "-timeout=20"]
        atheris.Setup([sys.argv[0], *limits, "-print_final_stats=0", "-max_len=20000", str(corpus)], counted)
        atheris.Fuzz()


def _address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="for each target")
    parser.add_argument("--targets", nargs="*", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--one", choices=TARGETS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        one_target(options.one, options.seconds, options.seed)
        return
    lines = ["| target | cases | guided by coverage | faults |", "| --- | ---: | --- | ---: |"]
    total = faults = 0
    for name in options.targets:
        command = [
            sys.executable,
            __file__,
            "--one",
            name,
            "--seconds",
            str(options.seconds),
            "--seed",
            str(options.seed),
        ]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=10 * options.seconds + 120)
        said = [line for line in ended.stdout.splitlines() if line.startswith("{")]
        done = re.findall(r"(?m)^Done (\d+) runs", ended.stderr) or re.findall(r"(?m)^#(\d+)\s", ended.stderr)
        told = json.loads(said[-1]) if said else {"cases": int(done[-1]) if done else 0, "guided": bool(done)}
        bad = [line for line in ended.stderr.splitlines() if line.startswith("FAULT")]
        if not bad and (ended.returncode or not told["cases"]):
            bad.append(f"FAULT {name}: exit code {ended.returncode}: {ended.stderr[-500:]}")
        for line in bad:
            print(line, flush=True)
        total, faults = total + told["cases"], faults + len(bad)
        lines.append(f"| {name} | {told['cases']} | {'yes' if told['guided'] else 'no'} | {len(bad)} |")
    print("\n".join([*lines, f"| all | {total} | | {faults} |"]))
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
