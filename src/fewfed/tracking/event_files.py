"""TensorBoard: event files in the run folder, so that `tensorboard --logdir runs` shows every run by its path.

A run that is continued begins a new file in place of the earlier one, which may be cut short, and tells all rounds
again from the metrics in the run folder. The file begins by saying so, for a TensorBoard that has read the earlier one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fewfed.tracking.tracker import FOLDER, About

_TEXT = 200


class Runs:
    """Writes one run."""

    def __init__(self) -> None:
        self._writer: Any = None
        self._settings: dict[str, Any] = {}
        self._last = 0

    def begin(self, about: About) -> tuple[str, int]:
        from torch.utils.tensorboard import SummaryWriter

        folder = about.run / FOLDER / "tensorboard"
        for file in folder.glob("events.out.tfevents.*"):
            file.unlink()
        self._writer = SummaryWriter(str(folder), purge_step=0 if about.known else None)
        self._settings = {name: _plain(value) for name, value in about.settings.items()}
        rows = "\n".join(f"| `{name}` | {str(value)[:_TEXT]} |" for name, value in self._settings.items())
        self._writer.add_text("settings", f"{about.name}\n\n| setting | value |\n|---|---|\n{rows}", 0)
        return folder.name, 0

    def round(self, number: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, number)
        self._writer.flush()  # The run's own checkpoint may come next, which must not know more.
        self._last = number

    def end(self, summary: Mapping[str, float] | None) -> None:
        from torch.utils.tensorboard.summary import hparams

        if summary is not None:
            results = {f"result/{name}": value for name, value in summary.items()}
            for name, value in results.items():
                self._writer.add_scalar(name, value, self._last)
            for part in hparams(self._settings, results):  # type: ignore[no-untyped-call]
                self._writer.file_writer.add_summary(part)
        self._writer.close()


def _plain(value: Any) -> Any:
    """As a table of settings takes it."""
    return value if isinstance(value, (bool, int, float)) else str(value)
