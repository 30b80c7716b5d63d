"""A trained model that takes rows as they are in a user's files and answers with the names of classes."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fewfed.data.raw_inputs import RawInputs
from fewfed.data.readers.options import DataOptions
from fewfed.engine.scoring import EVALUATION_ROWS, EVALUATION_VALUES
from fewfed.errors import ConfigError
from fewfed.network import Network
from fewfed.runs.blueprint import Blueprint
from fewfed.runs.given import folder_of
from fewfed.trained.given import raw_rows
from fewfed.trained.preprocessing import Scale
from fewfed.tree import Tree


class TrainedModel(nn.Module):
    """Fills and scales inputs as the run did, and applies the network to them.

    `forward` takes raw inputs, rows first, and returns logits. What is inside is what the run's evaluation scored.
    """

    def __init__(
        self,
        net: Network,
        model: Tree,
        blueprint: Blueprint,
        *,
        site: str = "",
        presents: nn.Module | None = None,
        options: DataOptions | None = None,
    ) -> None:
        """`site`: whose model, or whose scaling, it is. `presents`: what the method does to scaled inputs."""
        super().__init__()
        scaling = blueprint.scaling
        self.scale = Scale(scaling.sites[site] if scaling.sites else scaling.common, net.dtype)
        self.presents = presents
        self.network = net.module_with(model)
        """The user's own module, or an `nn.Sequential` of the stages of a network by name."""
        self.blueprint = blueprint
        self.site = site
        self.net, self.model = net, model
        """The network as a list of stages, and the tree of its weights as the run has it."""
        self._options = DataOptions() if options is None else options
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.steps()(x)
        return logits

    def steps(self) -> nn.Sequential:
        """All that happens to an input, one after another, as a module of torch's own."""
        parts = {"scale": self.scale, "presents": self.presents, "network": self.network}
        return nn.Sequential(OrderedDict((name, part) for name, part in parts.items() if part is not None))

    @property
    def classes(self) -> tuple[str, ...] | tuple[int, ...]:
        """The names of the classes, or their numbers where they have none, in the order of the logits."""
        return self.blueprint.class_names or tuple(range(self.blueprint.outputs))

    @property
    def inputs(self) -> RawInputs | None:
        """What an input is made from: kind, and columns of a table with their categories."""
        return self.blueprint.inputs

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one input."""
        return self.blueprint.shape

    @property
    def sites(self) -> tuple[str, ...]:
        """The sites that the run had, by name; empty where its clients have numbers only."""
        return self.blueprint.sites

    def predict(self, given: Any) -> np.ndarray:
        """The class of each row, by name; of segmentation the class number of each pixel.

        `given`: an array or a tensor, rows first; a table with columns (pandas, polars, pyarrow, a dictionary of
        lists); or the path of a file, or of a folder of images.
        """
        return self.named(self.predict_proba(given))

    def named(self, probabilities: np.ndarray) -> np.ndarray:
        """The most probable class of each row, by name; of segmentation the class number of each pixel."""
        found: np.ndarray = probabilities.argmax(1)
        names = np.array(self.classes)
        return found if self.blueprint.task == "segmentation" else names.take(found)

    def predict_proba(self, given: Any) -> np.ndarray:
        """The probability of each class for each row, or for each pixel: (rows, classes) or (rows, classes, height,
        width). `given` as for `predict`."""
        return self.of_raw(raw_rows(given, self.blueprint, self._options))

    def of_raw(self, x: Tensor) -> np.ndarray:
        """The probabilities for inputs that are made already, in pieces that fit into memory."""
        like = next((value for value in (*self.parameters(), *self.buffers())), torch.zeros(0))
        parts = []
        with self._evaluating():
            for rows in torch.split(x, rows_at_once(self.shape)):
                logits = self(rows.to(like.device))
                parts.append(torch.softmax(logits.double(), 1).cpu().numpy())
        return np.concatenate(parts)

    def export(self, to: str, out: Path | str, *, force: bool = False) -> Path:
        """Write it for use without fewfed: `to` is onnx, torchscript, state_dict or safetensors, `out` a folder."""
        from fewfed.trained.export import export

        return export(self, to, folder_of(out, "out"), force=force)

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """In eval mode and without gradients, and then as it was."""
        training = self.training
        self.eval()
        try:
            with torch.no_grad():
                yield
        except (RuntimeError, IndexError) as error:
            if "memory" in str(error):
                raise
            raise ConfigError(f"the network cannot take these inputs: {error!s:.300}") from error
        finally:
            self.train(training)


def rows_at_once(shape: tuple[int, ...]) -> int:
    """As many as evaluation scores at once, so that numbers round as they did there."""
    return max(1, min(EVALUATION_ROWS, EVALUATION_VALUES // max(1, math.prod(shape))))
