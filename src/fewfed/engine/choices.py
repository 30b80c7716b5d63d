"""What timing chose. Choices change how numbers round, so they are made once and kept.

An executor asks before it times anything, and hands in what it found; what comes back is what it must do. Here answers
live as long as the executor; `fewfed.runs` keeps them on disk, for a run that is resumed and for the next run like it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Answer:
    """What was chosen, and what was seen that speaks for it."""

    value: str
    why: str


class Choices:
    """Answers by question. The first answer to a question stays."""

    def __init__(self) -> None:
        self._answers: dict[str, Answer] = {}

    def known(self) -> dict[str, Answer]:
        """Everything that was chosen in this run so far, before it was last taken up included."""
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
