"""What somebody needs to know to use an exported model: the README beside it."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Iterator

from fewfed.data.raw_inputs import RawInputs
from fewfed.runs.blueprint import NetworkRecipe
from fewfed.trained.formats import FORMATS, INPUT, OUTPUT
from fewfed.trained.model import TrainedModel
from fewfed.version import __version__

MOST_ROWS = 1000
"""Columns and classes that are listed; blueprint.json has them all."""
_PACKAGES = {"onnx": ("torch", "onnx", "onnxruntime"), "torchscript": ("torch",)}


def readme(model: TrainedModel, to: str) -> str:
    """The text, in Markdown."""
    format = FORMATS[to]
    whose = f", of site '{model.site}'" if model.site else ""
    parts = [
        f"# {format.file}",
        f"A model trained with fewfed {__version__}{whose}, as {to}: network '{model.blueprint.network.name}', "
        f"{model.blueprint.task}.",
        "## In",
        *_inputs(model, format.whole),
        "## Out",
        *_outputs(model),
        "## Load it",
        f"```python\n{_LOADERS[to](model)}\n```",
        "## Made with",
        ", ".join([f"fewfed {__version__}", *(_version(name) for name in _PACKAGES.get(to, ("torch", "safetensors")))])
        + ". `blueprint.json` has everything above for programs.",
    ]
    return "\n\n".join(parts) + "\n"


def _inputs(model: TrainedModel, whole: bool) -> Iterator[str]:
    kind = str(model.net.dtype).removeprefix("torch.")
    yield f"`{INPUT}`, {kind}, shape {_shape(model)}: {_made_from(model.inputs, model.shape)}."
    if model.inputs is not None and model.inputs.columns:
        yield _columns(model.inputs)
    if whole:
        yield f"**Scaling is inside**: give numbers as they are. {_missing(model)}"
        return
    constants = "under `scaling` in blueprint.json" if model.scale.mean is not None else "none, inputs stay as they are"
    order = (
        "A missing value becomes `fill`, then `mean` is subtracted and `std` divided by, channel by channel or column"
    )
    yield f"**Scaling is not inside** ({constants}). {order} by column."
    if model.presents is not None:
        yield "The method changes scaled inputs before the network sees them; that is **not inside** either."


def _shape(model: TrainedModel) -> str:
    return f"(rows, {', '.join(map(str, model.shape))})"


def _made_from(raw: RawInputs | None, shape: tuple[int, ...]) -> str:
    if raw is None or raw.kind == "array":
        return "arrays as the run's data had them"
    if raw.kind == "table":
        return "the columns below, in this order"
    colours = {1: "grey", 3: "red, green, blue"}.get(shape[0], f"{shape[0]} channels")
    return f"images, channels first ({colours}), {shape[1]} pixels high and {shape[2]} wide, each pixel in [0, 1]"


def _columns(raw: RawInputs) -> str:
    lines = ["| numbers | column | is |", "|---|---|---|"]
    place = 0
    for column in raw.columns[:MOST_ROWS]:
        last = place + column.width - 1
        numbers = f"{place}" if column.width == 1 else f"{place} to {last}"
        texts = ", ".join(map(_cell, column.categories))
        what = f"1 for the one that it is, 0 for the others: {texts}" if column.categories else "a number"
        lines.append(f"| {numbers} | {_cell(column.name)} | {what} |")
        place = last + 1
    more = len(raw.columns) - MOST_ROWS
    return "\n".join([*lines, *([f"| ... | and {more} more | in blueprint.json |"] if more > 0 else [])])


def _cell(text: str) -> str:
    """A text that cannot end a cell, or a line, of a table."""
    return "`" + " ".join(text.replace("|", "\\|").replace("`", "'").split()) + "`"


def _missing(model: TrainedModel) -> str:
    if model.scale.fill is None:
        return "No value may be missing."
    return "A missing value is NaN; of a column of categories, zeros for all of them."


def _outputs(model: TrainedModel) -> Iterator[str]:
    pixels = ", height, width" if model.blueprint.task == "segmentation" else ""
    each = "pixel" if pixels else "row"
    yield (
        f"`{OUTPUT}`, shape (rows, {model.blueprint.outputs}{pixels}): the largest is the class of a {each}; softmax "
        "over the second axis gives probabilities. Classes, in order:"
    )
    shown = [f"{number}. {_cell(str(name))}" for number, name in enumerate(model.classes[:MOST_ROWS])]
    yield "\n".join(shown + ["- ..."] * (len(model.classes) > MOST_ROWS))


def _onnx(model: TrainedModel) -> str:
    kind = str(model.net.dtype).removeprefix("torch.")
    return (
        "import numpy as np, onnxruntime\n\n"
        'session = onnxruntime.InferenceSession("model.onnx")\n'
        f"{INPUT} = np.zeros({(1, *model.shape)}, np.{kind})  # your rows\n"
        f'({OUTPUT},) = session.run(None, {{"{INPUT}": {INPUT}}})\n'
        f"print({OUTPUT}.argmax(1))"
    )


def _torchscript(model: TrainedModel) -> str:
    return (
        "import torch\n\n"
        'model = torch.jit.load("model.pt")\n'
        f"{INPUT} = torch.zeros({(1, *model.shape)}, dtype={model.net.dtype})  # your rows\n"
        f"print(model({INPUT}).argmax(1))"
    )


def _state_dict(model: TrainedModel) -> str:
    return (
        "from safetensors.torch import load_file\n\n"
        f"{_module(model.blueprint.network, model)}"
        'module.load_state_dict(load_file("state_dict.safetensors"))\n'
        "module.eval()"
    )


def _module(recipe: NetworkRecipe, model: TrainedModel) -> str:
    if recipe.origin != "built-in":
        what = f"made as by {recipe.name}" if recipe.origin == "file" else "the module that the run was given"
        return f"module = ...  # {what}\n"
    name = json.dumps(recipe.name)
    return (
        "from fewfed import networks\n\n"
        f"net = networks.build({name}, {model.shape}, {model.blueprint.outputs}, seed=0)\n"
        "module = net.module_with(net.model())\n"
    )


def _safetensors(model: TrainedModel) -> str:  # noqa: ARG001
    return (
        "from safetensors.torch import load_file\n\n"
        'weights = load_file("model.safetensors")  # "params/...", "buffers/..."\n'
        "print({name: tuple(value.shape) for name, value in weights.items()})"
    )


_LOADERS = {"onnx": _onnx, "torchscript": _torchscript, "state_dict": _state_dict, "safetensors": _safetensors}


def _version(package: str) -> str:
    return f"{package} {importlib.metadata.version(package)}"
