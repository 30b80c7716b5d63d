"""A trained model as the bytes of a file that is read without fewfed, compared with the model before it is kept."""

from __future__ import annotations

import copy
import io
import logging
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from fewfed import tree
from fewfed.data.readers.extras import need
from fewfed.errors import FewfedError, RunError, told
from fewfed.trained.model import TrainedModel

INPUT, OUTPUT = "x", "logits"
FAR = 1e-4
"""How far from the model's a file's answers may be, in parts of the largest."""
TRIED = (3, 1)
"""Numbers of rows that files are tried with."""
_SAID_BY = "torch.onnx"


@dataclass(frozen=True)
class Format:
    """A kind of file that a model can be written as."""

    file: str
    whole: bool
    """Whether filling, scaling and the network are inside; otherwise weights alone."""
    written: Callable[[TrainedModel], bytes]


def onnx(model: TrainedModel) -> bytes:
    """ONNX, for any number of rows."""
    for package in ("onnx", "onnxscript"):
        need(package, "onnx", "writing ONNX files")
    runtime = need("onnxruntime", "onnx", "checking ONNX files")
    steps = _steps(model)
    with _written("onnx", "torchscript"), _quiet():
        program = torch.onnx.export(
            steps,
            (example(model, 2),),
            dynamo=True,
            input_names=[INPUT],
            output_names=[OUTPUT],
            dynamic_shapes=({0: torch.export.Dim("rows")},),
            verbose=False,
        )
        assert program is not None
        content: bytes = program.model_proto.SerializeToString()
    session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
    with _written("onnx", "torchscript"):
        _refuse_other(model, steps, "onnx", lambda x: session.run(None, {INPUT: x.numpy()})[0])
    return content


def torchscript(model: TrainedModel) -> bytes:
    """TorchScript, traced with one input: what the network decides by values or by the number of rows is noticed."""
    content = io.BytesIO()
    steps = _steps(model)
    with _written("torchscript", "state_dict"), _quiet(), torch.no_grad():
        torch.jit.save(torch.jit.trace(steps, example(model, 2)), content)  # type: ignore[no-untyped-call]
        content.seek(0)
        loaded = torch.jit.load(content)  # type: ignore[no-untyped-call]
        _refuse_other(model, steps, "torchscript", lambda x: loaded(x).numpy())
    return content.getvalue()


def state_dict(model: TrainedModel) -> bytes:
    """The weights under the names of the user's own module."""
    return _safetensors(model.network.state_dict())


def safetensors(model: TrainedModel) -> bytes:
    """The weights as a run folder has them: a tree whose names are joined by /."""
    return _safetensors(dict(tree.leaves(model.model)))


FORMATS = {
    "onnx": Format("model.onnx", True, onnx),
    "torchscript": Format("model.pt", True, torchscript),
    "state_dict": Format("state_dict.safetensors", False, state_dict),
    "safetensors": Format("model.safetensors", False, safetensors),
}


def example(model: TrainedModel, rows: int) -> Tensor:
    """Raw inputs of the size that the run's were, with a missing value where they may be missing."""
    drawn = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, *model.shape, generator=drawn, dtype=model.net.dtype)
    scale, each = model.scale, (-1, *[1] * (len(model.shape) - 1))
    if scale.mean is not None and scale.std is not None:
        x = x * scale.std.cpu().view(each) + scale.mean.cpu().view(each)
    if scale.fill is not None:
        x.view(rows, -1)[0, 0] = float("nan")
    return x


def _safetensors(weights: dict[str, Tensor]) -> bytes:
    from safetensors.torch import save

    # Copies, since tensors that share memory are refused.
    content: bytes = save({name: value.detach().cpu().contiguous().clone() for name, value in weights.items()})
    return content


def _steps(model: TrainedModel) -> nn.Module:
    """A copy of all that happens to an input, in eval mode, where the exporters want it."""
    return copy.deepcopy(model.steps()).cpu().eval()


def _refuse_other(model: TrainedModel, steps: nn.Module, to: str, answers: Callable[[Tensor], np.ndarray]) -> None:
    """Raise where a file gives other answers than the model."""
    for rows in TRIED:
        x = example(model, rows)
        with torch.no_grad():
            expected = steps(x).numpy()
        found = answers(x)
        near = FAR * max(1.0, float(np.abs(expected).max()))
        if found.shape != expected.shape or not float(np.abs(found - expected).max()) <= near:
            raise RunError(
                f"the model as {to} gives other answers than itself, as happens where a network decides by values or "
                "by the number of rows: export it as state_dict instead"
            )


@contextmanager
def _written(to: str, instead: str) -> Iterator[None]:
    """What an exporter cannot do, in one sentence."""
    try:
        yield
    except (FewfedError, KeyboardInterrupt, MemoryError):
        raise
    except Exception as error:
        cause: BaseException = error
        while cause.__cause__ is not None:  # Exporters wrap what went wrong in advice for their own authors.
            cause = cause.__cause__
        said = re.sub(r"\x1b\[[0-9;]*m", "", told(cause))
        raise RunError(
            f"the model cannot be written as {to} ({said:.200}): its network, or what its method does to inputs, uses "
            f"something that the format does not have; export it as {instead} instead"
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Exporters warn of what is their own affair: packages that are not there, functions they will drop."""
    log = logging.getLogger(_SAID_BY)
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(before)
