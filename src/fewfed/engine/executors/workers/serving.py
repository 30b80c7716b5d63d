"""What a worker process does: receive a turn or a bundle of turns, run it on one thread, answer, repeat."""

from __future__ import annotations

import dataclasses
import signal
from typing import Any

import torch

from fewfed.engine.executors.workers.channel import Channel, Closed
from fewfed.engine.executors.workers.heap import keep_freed_memory
from fewfed.engine.executors.workers.messages import packed, unpacked, written
from fewfed.engine.executors.workers.stacking import Stacks
from fewfed.engine.executors.workers.trial import Question, tried
from fewfed.engine.job import Job
from fewfed.engine.scoring import evaluate
from fewfed.engine.turn import Member, run_turn
from fewfed.phase import Clock
from fewfed.tree import Tree


def serve(job: Job, channel: Channel) -> None:
    """Answer messages until the main process closes the channel."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    keep_freed_memory()
    stacks = Stacks(job)
    shared: Tree = {}
    while True:
        try:
            message, arrays = channel.receive()
        except Closed:
            return
        if message["kind"] == "share":
            shared = arrays
            continue
        reply, result = _answer(job, stacks, shared, message, arrays)
        channel.send({**reply, "slot": message["slot"]}, result, message["slot"])


def _answer(
    job: Job, stacks: Stacks, shared: Tree, message: dict[str, Any], arrays: Tree
) -> tuple[dict[str, Any], Tree]:
    if message["kind"] == "evaluate":
        score = evaluate(job, arrays["model"], message["first"], message["last"], message["channels_last"])
        return {"part": message["part"], "score": score.as_json()}, {}
    clock = Clock(message["round"], message["rounds"], message["epochs"])
    phase = job.phase(message["phase"], clock)
    if message["kind"] == "run":
        member = _member(message["client"], arrays)
        return written(run_turn(job, phase, clock, shared, member, message["channels_last"]))
    members = [_member(*pair) for pair in zip(message["clients"], unpacked(arrays), strict=True)]
    if message["kind"] == "trial":
        choice = tried(job, phase, clock, shared, members, Question(**message["question"]))
        return {"choice": dataclasses.asdict(choice) if choice else None}, {}
    found, events = stacks.run(phase, clock, shared, members, message["channels_last"])
    each = [written(one) for one in found]
    said = [event.as_json() for event in events]
    return {"messages": [one for one, _ in each], "events": said}, packed([arrays for _, arrays in each])


def _member(client: int, arrays: Tree) -> Member:
    return Member(client, arrays.get("personal", {}), arrays.get("state", {}))
