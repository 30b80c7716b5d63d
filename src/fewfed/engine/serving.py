"""A worker process's life: take a turn or a bundle of them, do it on one thread, answer."""

from __future__ import annotations

import dataclasses
import signal
from typing import Any

import torch

from fewfed.engine.channel import Channel, Closed
from fewfed.engine.client import evaluate, run_member
from fewfed.engine.heap import keep_freed_memory
from fewfed.engine.job import Job, Member
from fewfed.engine.messages import packed, report_of, unpacked
from fewfed.engine.stacking import Stacks
from fewfed.engine.trial import Question, tried
from fewfed.phase import Clock
from fewfed.tree import Tree


def serve(job: Job, channel: Channel) -> None:
    """Answer until the other side is gone."""
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
        return report_of(run_member(job, phase, clock, shared, member, message["channels_last"]))
    members = [_member(*pair) for pair in zip(message["clients"], unpacked(arrays), strict=True)]
    if message["kind"] == "trial":
        choice = tried(job, phase, clock, shared, members, Question(**message["question"]))
        return {"choice": dataclasses.asdict(choice) if choice else None}, {}
    outcomes, events = stacks.run(phase, clock, shared, members, message["channels_last"])
    reports = [report_of(outcome) for outcome in outcomes]
    return {"reports": [report for report, _ in reports], "events": events}, packed([tree for _, tree in reports])


def _member(client: int, arrays: Tree) -> Member:
    return Member(client, arrays.get("personal", {}), arrays.get("state", {}))
