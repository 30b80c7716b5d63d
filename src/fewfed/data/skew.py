"""How few and how skewed the clients of a split are, in numbers and pictures, from clients-by-classes counts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fewfed.errors import ConfigError

SHADES = "·░▒▓█"


@dataclass(frozen=True)
class SizeSummary:
    """Rows per client."""

    smallest: int
    median: float
    mean: float
    largest: int


def sparsity(counts: np.ndarray) -> float:
    """Fraction of client-class pairs without a single row."""
    return float((np.asarray(counts) == 0).mean())


def scarcity(counts: np.ndarray, few: int = 50) -> float:
    """Fraction of clients with fewer than `few` rows: what SEM prints, by its authors' index files."""
    return float((np.asarray(counts).sum(1) < few).mean())


def size_summary(counts: np.ndarray) -> SizeSummary:
    sizes = np.asarray(counts).sum(1)
    return SizeSummary(int(sizes.min()), float(np.median(sizes)), float(sizes.mean()), int(sizes.max()))


def mean_classes(counts: np.ndarray) -> float:
    """Classes a client holds, on average."""
    return float((np.asarray(counts) > 0).sum(1).mean())


def distance(counts: np.ndarray) -> float:
    """How far the classes of a client are from those of all rows: the part of its rows that would have to be of other
    classes, in the mean over rows. 0: all clients are alike."""
    counts = np.asarray(counts, dtype=np.float64)
    everybody = counts.sum(0) / counts.sum()
    return float(np.abs(counts - counts.sum(1, keepdims=True) * everybody).sum() / 2 / counts.sum())


def distance_by_chance(counts: np.ndarray, draws: int = 20) -> float:
    """The same for clients of these sizes whose rows were drawn from all at random: small ones differ by chance."""
    counts = np.asarray(counts)
    everybody = counts.sum(0) / counts.sum()
    random = np.random.default_rng(0)
    drawn = (random.multinomial(counts.sum(1), everybody) for _ in range(draws))
    return float(np.mean([distance(each) for each in drawn]))


def picture(counts: np.ndarray, width: int = 80, clients: int = 20) -> str:
    """A line for each client, a shade for each class: darker is more, the darkest is the fullest cell shown."""
    counts = np.asarray(counts)
    total_clients, total_classes = counts.shape
    name_width = len(str(min(total_clients, clients) - 1))
    size_width = len(str(int(counts.sum(1).max(initial=0))))
    room = max(1, width - name_width - size_width - 4)
    cell = 2 if 2 * total_classes <= room else 1
    shown = counts[:clients, : room // cell]
    darkest = max(1, int(shown.max(initial=0)))
    # Rounding up keeps a single row visible next to a full cell.
    levels = -(-shown * (len(SHADES) - 1) // darkest)
    lines = []
    for client, row in enumerate(levels):
        cells = "".join(SHADES[level] * cell for level in row)
        lines.append(f"{client:>{name_width}} |{cells}| {int(counts[client].sum()):>{size_width}}")
    lines.append(f"{SHADES[-1]} = {darkest} rows")
    for what, total, part in (("clients", total_clients, len(shown)), ("classes", total_classes, shown.shape[1])):
        if total > part:
            lines.append(f"{total - part} more {what} not shown")
    return "\n".join(lines)


def plot_split(counts: np.ndarray, path: str | Path) -> None:
    """Draw clients by classes: dots whose area is the number of rows, or a heat map where there are many clients."""
    try:
        from matplotlib.figure import Figure
    except ImportError as missing:
        raise ConfigError("plotting a split needs matplotlib: install fewfed[plot]") from missing
    counts = np.asarray(counts)
    clients, classes = counts.shape
    figure = Figure(figsize=(min(14.0, 2.0 + 0.22 * clients), min(9.0, 1.6 + 0.3 * classes)), layout="constrained")
    axes = figure.add_subplot()
    if clients <= 60:
        client, label = np.nonzero(counts)
        area = 160.0 * counts[client, label] / max(1, int(counts.max(initial=0)))
        axes.scatter(client, label, s=area, alpha=0.8, linewidths=0)
        axes.set_xlim(-1, clients)
        axes.set_ylim(-1, classes)
    else:
        image = axes.imshow(counts.T, aspect="auto", origin="lower", cmap="Blues", interpolation="nearest")
        figure.colorbar(image, ax=axes, label="rows")
    axes.set_xlabel("client")
    axes.set_ylabel("class")
    axes.set_title(f"{clients} clients, {int(counts.sum())} rows, sparsity {sparsity(counts):.2f}")
    try:
        figure.savefig(path)
    except ValueError as unsupported:
        raise ConfigError(f"cannot draw to '{path}': {unsupported}") from unsupported
