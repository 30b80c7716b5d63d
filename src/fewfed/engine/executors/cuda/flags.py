"""torch's global flags while the device executor runs. They are the user's again when it is closed."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from fewfed.engine.executors.cuda.options import Options

_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
"""With its value below, matrix products on several streams give the same bits each time."""


@contextmanager
def flags_for(options: Options) -> Iterator[None]:
    """Set torch's flags for a run, and restore them afterwards."""
    with ExitStack() as restored:
        restored.enter_context(_arithmetic(options))
        if options.deterministic and options.device != "cpu":
            restored.enter_context(_same_bits())
        yield


@contextmanager
def _arithmetic(options: Options) -> Iterator[None]:
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    products, before = torch.get_float32_matmul_precision(), (cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic)
    # What the flags above are made of; put back as well, since setting a flag says more than it said before.
    parts = (matmul, torch.backends.mkldnn.matmul, cudnn.conv, cudnn.rnn)  # type: ignore[attr-defined]
    precisions = [part.fp32_precision for part in parts]
    matmul.allow_tf32 = cudnn.allow_tf32 = options.precision != "float32"
    # Shapes are fixed, so the fastest algorithm is worth finding once; which it is may differ from run to run.
    cudnn.benchmark, cudnn.deterministic = not options.deterministic, options.deterministic
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(products)  # Not matmul.allow_tf32, which knows two of its three values.
        cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic = before
        for part, precision in zip(parts, precisions, strict=True):
            part.fp32_precision = precision


@contextmanager
def _same_bits() -> Iterator[None]:
    """Only algorithms that add in the same order each time; where an operation has none, torch warns of it once."""
    memory: Any = torch.utils.deterministic
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    fill, workspace = memory.fill_uninitialized_memory, os.environ.get(_WORKSPACE)
    torch.use_deterministic_algorithms(True, warn_only=True)
    memory.fill_uninitialized_memory = False  # Nothing of ours reads memory before it is written.
    os.environ.setdefault(_WORKSPACE, ":4096:8")
    try:
        with warnings.catch_warnings():
            # Of the variable above, where torch had looked for it before it was set.
            warnings.filterwarnings("ignore", message=f"(?s).*{_WORKSPACE}")
            yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        memory.fill_uninitialized_memory = fill
        if workspace is None:
            os.environ.pop(_WORKSPACE, None)
