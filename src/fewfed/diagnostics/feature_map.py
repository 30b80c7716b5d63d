"""The t-SNE picture of FLea's Fig. 3: penultimate features of several models, coloured by class."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fewfed.data.examples import Examples
from fewfed.diagnostics.davies_bouldin import davies_bouldin
from fewfed.diagnostics.feature_quality import penultimate_features
from fewfed.errors import ConfigError, DataError
from fewfed.network import Network
from fewfed.tree import Tree

FILE = "feature_map.json"
"""In a run folder: what `feature_map` found."""
_LEAST_ROWS = 4


def embed(features: np.ndarray, seed: int = 0) -> np.ndarray:
    """Two coordinates a row, the same for the same seed."""
    from sklearn.manifold import TSNE

    if len(features) < _LEAST_ROWS:
        raise DataError(f"a t-SNE picture of {len(features)} rows: expected at least {_LEAST_ROWS}")
    perplexity = min(30.0, (len(features) - 1) / 3)
    placed: np.ndarray = TSNE(2, perplexity=perplexity, init="pca", random_state=seed).fit_transform(features)
    return placed


def feature_map(net: Network, models: Mapping[str, Tree], examples: Examples, seed: int = 0) -> dict[str, Any]:
    """Features of several models, laid out on a plane each, with the Davies-Bouldin score of the rows shown. JSON-able,
    and what a report draws."""
    panels = []
    for name, model in models.items():
        features = penultimate_features(net, model, examples.x)
        placed = embed(features.numpy(), seed).astype(float).round(2)
        score = davies_bouldin(features, examples.y)
        panels.append({"name": name, "x": placed[:, 0].tolist(), "y": placed[:, 1].tolist(), "davies_bouldin": score})
    return {"labels": examples.y.tolist(), "panels": panels}


def plot_features(found: Mapping[str, Any], path: Path) -> None:
    """Draw one panel a model into a PNG, SVG or PDF: what `feature_map` found."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("drawing needs matplotlib: install fewfed[plot], or leave --plot out")
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = found["panels"]
    figure, axes = pyplot.subplots(1, len(panels), figsize=(4 * len(panels), 4), constrained_layout=True, squeeze=False)
    for panel, drawn in zip(axes[0], panels, strict=True):
        panel.scatter(drawn["x"], drawn["y"], c=found["labels"], cmap="tab10", s=6)
        score = drawn["davies_bouldin"]
        panel.set_title(drawn["name"] if score is None else f"{drawn['name']}, DB {score:.2f}")
        panel.set_xticks([])
        panel.set_yticks([])
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot draw into '{path}': {error}") from error
    finally:
        pyplot.close(figure)
