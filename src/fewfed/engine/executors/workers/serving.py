"""What a worker process does: receive a turn or a bundle of turns, run it on one thread, answer, repeat."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from fewfed import tree
from fewfed.engine.executors.workers.channel import Channel, Closed
from fewfed.engine.executors.workers.heap import keep_freed_memory
from fewfed.engine.executors.workers.messages import packed, unpacked, written
from fewfed.engine.executors.workers.stacking import Stacks
from fewfed.engine.executors.workers.trial import Question, tried
from fewfed.engine.job import Job
from fewfed.engine.lending import Lender
from fewfed.engine.scoring import answers, evaluate
from fewfed.engine.turn import Member
from fewfed.errors import FewfedError, told
from fewfed.phase import Clock, Phase
from fewfed.tree import Tree

Answer = tuple[dict[str, Any], Tree]


def serve(job: Job, channel: Channel) -> None:
    """Answer messages until the main process closes the channel."""
    torch.set_num_threads(1)
    keep_freed_memory()
    server = _Server(job)
    try:
        while True:
            message, arrays = channel.receive()
            if message["kind"] == "share":
                server.lender.share(arrays)
            else:
                _reply(channel, message["slot"], *server.answer(message, arrays))
    except Closed:
        return


def _reply(channel: Channel, slot: str, message: dict[str, Any], arrays: Tree) -> None:
    try:
        channel.send({**message, "slot": slot}, arrays, slot)
    except Closed:
        raise
    except Exception as error:  # There is no room for its arrays, say.
        channel.send({**_failed(error), "slot": slot})


def _failed(error: BaseException) -> dict[str, Any]:
    return {"failed": str(error) if isinstance(error, FewfedError) else told(error), "cause": "worker"}


class _Server:
    """Does what the main process asks for."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._stacks = Stacks(job)
        # What is received cannot be written to, so views of it are enough.
        self.lender = Lender(job, tree.detach)

    def answer(self, message: dict[str, Any], arrays: Tree) -> Answer:
        """The answer to a message; for an error inside, one that says which."""
        try:
            if message["kind"] == "evaluate":
                return self._score(message, arrays["model"])
            if message["kind"] == "answer":
                return self._answer(message, arrays["model"])
            clock = Clock(message["round"], message["rounds"], message["epochs"])
            phase = self._job.phase(message["phase"], clock)
            if message["kind"] == "run":
                return self._turn(phase, clock, message, arrays)
            members = [_member(*pair) for pair in zip(message["clients"], unpacked(arrays), strict=True)]
            if message["kind"] == "trial":
                return self._trial(phase, clock, members, Question(**message["question"]))
            return self._bundle(phase, clock, members, message["channels_last"])
        except BaseException as error:  # Also what ends a process elsewhere, such as `sys.exit()` in a user's network.
            return _failed(error), {}

    def _score(self, message: dict[str, Any], model: Tree) -> Answer:
        # A copy, since there are networks that note something in their buffers, and what was received is read-only.
        wanted = (message[name] for name in ("on", "first", "last", "channels_last"))
        score = evaluate(self._job, tree.clone(model), *wanted)
        return {"part": message["part"], "score": score.as_json()}, {}

    def _answer(self, message: dict[str, Any], model: Tree) -> Answer:
        wanted = (message[name] for name in ("on", "first", "last", "channels_last"))
        (found,) = answers(self._job, tree.clone(model), *wanted)
        return {"part": message["part"]}, {"output": found.output}

    def _turn(self, phase: Phase, clock: Clock, message: dict[str, Any], arrays: Tree) -> Answer:
        member, careful = _member(message["client"], arrays), message.get("careful", False)
        said, result = written(self.lender.turn(phase, clock, member, message["channels_last"], careful))
        return ({**said, "careful": True} if self.lender.spoils(phase) else said), result

    def _trial(self, phase: Phase, clock: Clock, members: list[Member], question: Question) -> Answer:
        choice = tried(self._job, phase, clock, self.lender.shared, members, question)
        self.lender.unchanged(phase)
        return {"choice": dataclasses.asdict(choice) if choice else None}, {}

    def _bundle(self, phase: Phase, clock: Clock, members: list[Member], channels_last: bool) -> Answer:
        found, events = self._stacks.run(phase, clock, self.lender, members, channels_last)
        each = [written(one) for one in found]
        said = [event.as_json() for event in events]
        return {"messages": [one for one, _ in each], "events": said}, packed([arrays for _, arrays in each])


def _member(client: int, arrays: Tree) -> Member:
    return Member(client, *(arrays.get(name, {}) for name in ("personal", "state", "moments", "book")))
