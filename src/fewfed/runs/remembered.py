"""What timing chose, on disk: in the run's own folder, so that resuming keeps it, and in a folder for all runs alike.

Runs are alike if they agree in machine, network, shapes, method and length. Two of them then compute the same bits,
although no two timings are the same.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fewfed.engine.choices import Answer, Choices
from fewfed.engine.own_folder import File
from fewfed.engine.storage import Damaged
from fewfed.errors import RunError
from fewfed.runs.seals import read_sealed, write_sealed

FOLDER = "choices"


class ChoiceFolder:
    """Answers in a folder, a file each. Whoever writes a file first decides, in however many processes."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self, key: str) -> Answer | None:
        try:
            content = json.loads((self._path / f"{key}.json").read_text())
            return Answer(str(content["answer"]), str(content["why"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None  # Nobody has answered yet, or the file is damaged: then it is written anew.

    def write(self, key: str, content: Mapping[str, Any]) -> Answer:
        """Write an answer unless there is one; the one that is there afterwards."""
        known = self.read(key)
        if known is not None:
            return known
        given = Answer(content["answer"], content["why"])
        target = self._path / f"{key}.json"
        with contextlib.suppress(OSError):  # A folder nobody may write in, or a full disk, only costs the memory.
            self._path.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self._path, suffix=".part")
            with os.fdopen(handle, "w") as file:
                json.dump(content, file, indent=1)
            try:
                if target.exists() and self.read(key) is None:
                    target.unlink(missing_ok=True)
                os.link(name, target)  # Fails where another process was faster.
            except FileExistsError:
                pass
            finally:
                os.unlink(name)
        return self.read(key) or given


class RememberedChoices(Choices):
    """Answers of one run: its own file first, then the folders it shares with runs alike, the narrowest first."""

    def __init__(self, own: File, about: Mapping[str, Any], shared: Sequence[ChoiceFolder] = ()) -> None:
        super().__init__()
        self._own = own
        self._about = dict(about)
        self._shared = tuple(shared)
        if own.folder.has(own.name):
            try:
                recorded, _ = read_sealed(own)
                self._answers = {q: Answer(str(a["answer"]), str(a["why"])) for q, a in recorded.items()}
            except (Damaged, KeyError, TypeError, AttributeError) as error:
                raise RunError(f"'{own.path}' is damaged: remove it to let timing choose again") from error

    def recall(self, question: str) -> Answer | None:
        known = super().recall(question)
        if known is None:
            known = next((found for folder in self._shared if (found := folder.read(self._key(question)))), None)
            if known is not None:
                known = self.keep(question, Answer(known.value, f"as in earlier runs like this one, {known.why}"))
        return known

    def settle(self, question: str, answer: Answer) -> Answer:
        given = {"answer": answer.value, "why": answer.why}
        content: dict[str, Any] = {"question": question, **given, "about": self._about}
        for folder in self._shared:
            decided = folder.write(self._key(question), content)
            content |= {"answer": decided.value, "why": decided.why}
        return self.keep(question, Answer(content["answer"], content["why"]))

    def keep(self, question: str, answer: Answer) -> Answer:
        kept = super().keep(question, answer)
        content = {q: {"answer": a.value, "why": a.why} for q, a in self._answers.items()}
        write_sealed(self._own, content)
        return kept

    def _key(self, question: str) -> str:
        written = json.dumps([self._about, question], sort_keys=True)
        return hashlib.sha256(written.encode()).hexdigest()[:32]
