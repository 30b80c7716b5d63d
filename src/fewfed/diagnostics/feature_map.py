"""The t-SNE picture of FLea's Fig. 3: penultimate features of several models, coloured by class."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fewfed.data.examples import Examples
from fewfed.diagnostics.davies_bouldin import davies_bouldin
from fewfed.diagnostics.feature_quality import penultimate_features
from fewfed.errors import ConfigError, DataError
from fewfed.network import Network
from fewfed.tree import Tree

_LEAST_ROWS = 4


def embed(features: np.ndarray, seed: int = 0) -> np.ndarray:
    """Two coordinates a row, the same for the same seed."""
    from sklearn.manifold import TSNE

    if len(features) < _LEAST_ROWS:
        raise DataError(f"a t-SNE picture of {len(features)} rows: expected at least {_LEAST_ROWS}")
    perplexity = min(30.0, (len(features) - 1) / 3)
    placed: np.ndarray = TSNE(2, perplexity=perplexity, init="pca", random_state=seed).fit_transform(features)
    return placed


def plot_features(net: Network, models: Mapping[str, Tree], examples: Examples, path: Path, seed: int = 0) -> None:
    """Draw one panel a model into a PNG, SVG or PDF; its title has the Davies-Bouldin score of the rows shown."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("drawing needs matplotlib: install fewfed[plot], or leave --plot out")
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(models), figsize=(4 * len(models), 4), constrained_layout=True, squeeze=False)
    for panel, (name, model) in zip(axes[0], models.items(), strict=True):
        features = penultimate_features(net, model, examples.x)
        placed = embed(features.numpy(), seed)
        panel.scatter(placed[:, 0], placed[:, 1], c=examples.y.numpy(), cmap="tab10", s=6)
        separation = davies_bouldin(features, examples.y)
        panel.set_title(name if separation is None else f"{name}, DB {separation:.2f}")
        panel.set_xticks([])
        panel.set_yticks([])
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot draw into '{path}': {error}") from error
    finally:
        pyplot.close(figure)
