"""Time per client step of each network: a bare eager loop, the modes `graphs` and `stacked`, on one device.

    python benchmarks/steps.py [--device cuda] [--networks lenet5 harnet ...] [--methods fedavg flea ...] [--json FILE]

Every row is measured in one process, the bare loop right before and after. Batch 32, Adam (SCAFFOLD: SGD), 20 steps a
client. The bare loop is what a tutorial writes (`benchmarks/eager.py`), of the same method and, in brackets, of FedAvg.
Mode `eager` is fewfed's own training loop on the device. The floor is the larger of bytes moved (parameters, gradients,
moments, read and written once a step) over the copy bandwidth and of multiply-adds over the matrix rate, both measured
in the same run.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import cross_entropy

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from eager import METHODS, step_seconds

from fewfed import networks
from fewfed.data.examples import Dataset, Examples
from fewfed.data.federation import SplitFederation
from fewfed.data.splits import Split
from fewfed.engine.client_store import ClientStore
from fewfed.engine.combine import Combiner
from fewfed.engine.executor import Briefing, Invited
from fewfed.engine.executors.cuda.executor import Device
from fewfed.engine.executors.cuda.options import Options
from fewfed.engine.homes import SimulatedHomes
from fewfed.engine.job import Job
from fewfed.engine.outcomes import Failed, Partial
from fewfed.engine.schema import Schemas
from fewfed.methods.registry import choose
from fewfed.phase import Clock
from fewfed.plan import Plan
from fewfed.tasks.classification import Classification
from fewfed.training import Training

SHAPES = {
    "lenet5": ((1, 28, 28), 10),
    "harnet": ((1, 128, 3), 6),
    "audionet": ((2, 64, 344), 10),
    "mobilenetv2": ((3, 32, 32), 10),
    "resnet18": ((3, 32, 32), 10),
}
ROWS, BATCH, EPOCHS = 128, 32, 5


def wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def bare(name: str, method: str, device: str) -> float:
    """Seconds a step of the bare loop, in the arithmetic PyTorch has by default."""
    shape, classes = SHAPES[name]
    net = networks.build(name, shape, classes, 0)
    # As PyTorch sets them; the executor has its own.
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = False, True
    torch.backends.cudnn.benchmark = False
    return step_seconds(
        method, [net.module(stage) for stage in net.stages], shape, classes, net.position(net.cut), device,
        clients=7, rows=ROWS, batch=BATCH, epochs=EPOCHS,
    )  # fmt: skip


def timed(name: str, method: str, options: Options, clients: int) -> tuple[float, list[str]]:
    """Seconds a step of whole phases of a method, warm; and what the executor said."""
    shape, classes = SHAPES[name]
    chosen = choose(method)
    generator = torch.Generator().manual_seed(0)
    train = Examples(
        torch.randn(clients * ROWS, *shape, generator=generator),
        torch.randint(classes, (clients * ROWS,), generator=generator),
    )
    dataset = Dataset("synthetic", train, Examples(train.x[:ROWS], train.y[:ROWS]), classes)
    split = Split.of("synthetic", list(np.arange(clients * ROWS).reshape(clients, ROWS)))
    training = Training(**{"epochs": EPOCHS, "batch": BATCH, **chosen.training})
    federation = SplitFederation(dataset, split)
    net = networks.build(name, shape, classes, 0)
    job = Job(chosen.method, net, Classification(classes), federation, training, Plan(0, BATCH))
    # States stay where they are: this is about steps.
    executor = Device(job, SimulatedHomes(job, ClientStore(memory_bytes=1 << 40)), options)
    schemas = Schemas(job)
    server = executor.place(chosen.method.server_init(job.setup))
    times: list[float] = []
    events: list[str] = []
    steps = 0
    for number in range(5):
        clock = Clock(number, 1000, EPOCHS)
        for phase in chosen.method.phases(clock):
            shared = phase.does.broadcast(server)
            members = [Invited(k, phase.does.personal(server, k)) for k in range(clients)]
            schema = schemas.of(phase, clock, shared, members[0].personal, members[0].client)
            combiner = Combiner(phase, clients)
            wait(options.device)
            began = time.perf_counter()
            taken = 0
            for outcome in executor.run(Briefing(phase, clock, shared, schema), members):
                if isinstance(outcome, Failed):
                    raise SystemExit(f"{method} on {name}: client {outcome.client}: {outcome.reason}")
                if isinstance(outcome, Partial):
                    taken += sum(packet.steps for packet in outcome.packets)
                    combiner.merge(outcome.combined)
                else:
                    taken += outcome.packet.steps
                    combiner.add(outcome.packet)
            combined = combiner.finish()
            wait(options.device)
            if phase.epochs and number >= 2:
                times.append(time.perf_counter() - began)
                steps = taken
            server = phase.does.absorb(server, combined)
        events += map(str, executor.events())
    executor.close()
    return min(times) / steps, events


def ceilings(device: str) -> tuple[float, dict[str, float]]:
    """Bytes a second of a copy, and multiply-adds a second of a matrix product in every precision."""
    wide = torch.empty(1 << 28, device=device)
    other = torch.empty_like(wide)
    size = 4096 if device.startswith("cuda") else 1024
    matrix = torch.randn(size, size, device=device)
    half = matrix.bfloat16()
    bandwidth = 2 * wide.numel() * 4 / seconds_of(lambda: other.copy_(wide), device)
    rates = {}
    for precision, factor in (("float32", matrix), ("tf32", matrix), ("bf16", half)):
        torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
        rates[precision] = size**3 / seconds_of(partial(torch.mm, factor, factor), device)
    return bandwidth, rates


def seconds_of(work: Callable[[], object], device: str) -> float:
    work()
    wait(device)
    began = time.perf_counter()
    for _ in range(5):
        work()
    wait(device)
    return (time.perf_counter() - began) / 5


def floor(name: str, bandwidth: float, rates: dict[str, float]) -> dict[str, float]:
    """Least seconds a client step could take, by precision."""
    from torch.utils.flop_counter import FlopCounterMode

    shape, classes = SHAPES[name]
    net = networks.build(name, shape, classes, 0)
    model = torch.nn.Sequential(*(net.module(stage) for stage in net.stages))
    counter = FlopCounterMode(display=False)
    with counter:
        cross_entropy(model(torch.randn(BATCH, *shape)), torch.zeros(BATCH, dtype=torch.long)).backward()
    moved = net.parameter_count() * 4 * 7  # Weights, gradient and two moments read; weights and moments written.
    work = counter.get_total_flops() / 2
    return {precision: max(moved / bandwidth, work / rate) for precision, rate in rates.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--networks", nargs="*", default=list(SHAPES))
    parser.add_argument("--methods", nargs="*", default=["fedavg"])
    parser.add_argument("--modes", nargs="*", default=["graphs", "stacked"])
    parser.add_argument("--precisions", nargs="*", default=["float32"])
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--compiled", choices=["auto", "none", "parts", "steps"], default="none")
    parser.add_argument("--layout", choices=["auto", "plain", "channels_last"], default="auto")
    parser.add_argument("--kernels", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--deterministic", action="store_true", help="the same bits each time, as runs have by default")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    bandwidth, rates = ceilings(options.device)
    results: list[dict[str, object]] = []
    for name in options.networks:
        plain = bare(name, "fedavg", options.device)
        least = floor(name, bandwidth, rates)
        for method in options.methods:
            own = bare(name, method, options.device) if method in METHODS else plain
            for precision in options.precisions:
                for mode in options.modes:
                    setting = Options(
                        device=options.device, mode=mode, precision=precision, streams=options.streams,
                        stack=options.width, compiled=options.compiled, layout=options.layout, kernels=options.kernels,
                        deterministic=options.deterministic,
                    )  # fmt: skip
                    # Step by step, one client takes as long as any other.
                    clients = min(options.clients, 4) if mode == "eager" else options.clients
                    try:
                        seconds, events = timed(name, method, setting, clients)
                    except Exception as error:
                        print(
                            f"{name} {method} {mode} {precision}: {type(error).__name__}: {str(error)[:200]}",
                            flush=True,
                        )
                        continue
                    row = {
                        "network": name, "method": method, "mode": mode, "precision": precision,
                        "compiled": options.compiled, "layout": options.layout, "kernels": options.kernels,
                        "bare_fedavg_ms": 1e3 * plain, "bare_ms": 1e3 * own, "ms": 1e3 * seconds,
                        "times_faster_than_fedavg": plain / seconds, "times_faster": own / seconds,
                        "floor_ms": 1e3 * least[precision], "events": events,
                    }  # fmt: skip
                    results.append(row)
                    print(
                        f"{name:12} {method:10} {mode:8} {precision:8} {options.compiled:6} "
                        f"bare {1e3 * own:7.3f} ms (fedavg {1e3 * plain:7.3f})  fewfed {1e3 * seconds:7.4f} ms  "
                        f"{own / seconds:6.1f} x ({plain / seconds:6.1f} x)  floor {1e3 * least[precision]:.4f} ms  "
                        f"{'; '.join(events)[:160]}",
                        flush=True,
                    )
                    if options.json:
                        save(options.json, options.device, results)
        after = bare(name, "fedavg", options.device)
        print(f"{name:12} bare loop before {1e3 * plain:.3f} ms, after {1e3 * after:.3f} ms a step", flush=True)


def save(path: Path, device: str, rows: list[dict[str, object]]) -> None:
    machine = torch.cuda.get_device_name() if device.startswith("cuda") else "CPU"
    path.write_text(json.dumps({"device": machine, "torch": torch.__version__, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
