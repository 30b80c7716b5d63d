"""What executors chose by timing. A choice changes how numbers round, so it is made once and kept.

Before timing anything, an executor asks whether the question is answered (`recall`); after timing, it calls `settle`
and uses what that returns. This class keeps answers in memory; `fewfed.runs.remembered` keeps them on disk, for
resuming and for later runs that are alike.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Answer:
    """What was chosen, and why: the times that were measured."""

    value: str
    why: str


class Choices:
    """Answers by question. The first answer to a question stays."""

    def __init__(self) -> None:
        self._answers: dict[str, Answer] = {}

    def known(self) -> dict[str, Answer]:
        """Everything that was chosen in this run so far, also before it was resumed."""
        return dict(self._answers)

    def recall(self, question: str) -> Answer | None:
        """The answer that is known already."""
        return self._answers.get(question)

    def keep(self, question: str, answer: Answer) -> Answer:
        """Remember an answer for this run alone."""
        return self._answers.setdefault(question, answer)

    def settle(self, question: str, answer: Answer) -> Answer:
        """Hand in an answer; the one that counts is returned, which may be that of another run like this one."""
        return self.keep(question, answer)
