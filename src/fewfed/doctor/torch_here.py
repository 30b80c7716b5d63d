"""Python, torch, and which GPUs it can use, or why none."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Iterator

import torch

from fewfed.doctor.finding import Finding, size_of
from fewfed.errors import in_one_line
from fewfed.version import __version__


def look() -> Iterator[Finding]:
    yield Finding("machine", "fewfed", "fine", f"{__version__}, Python {platform.python_version()} ({sys.executable})")
    capability = torch.backends.cpu.get_cpu_capability()
    yield Finding("machine", "torch", "fine", f"{torch.__version__}, {capability}, {torch.get_num_threads()} threads")


def gpus() -> Iterator[Finding]:
    """One finding a GPU, or why there is none. Starts CUDA in this process: to be asked last."""
    try:
        count = torch.cuda.device_count()
        for number in range(count):
            told = torch.cuda.get_device_properties(number)
            free, total = torch.cuda.mem_get_info(number)
            says = (
                f"{told.name}, {size_of(free)} of {size_of(total)} free, compute capability {told.major}.{told.minor}"
            )
            yield Finding("GPU", f"GPU {number}", "fine", says)
    except (RuntimeError, AssertionError) as error:  # A driver that is too old, a GPU that has fallen off its bus.
        says = f"there is one, but CUDA cannot use it: {in_one_line(error)}"
        yield Finding("GPU", "none", "absent", says, "nvidia-smi says more")
        return
    if not count:
        yield _no_gpu()


def _no_gpu() -> Finding:
    """Why there is no GPU to use, the nearest cause first."""
    if shutil.which("nvidia-smi") is None:
        return Finding("GPU", "none", "absent", "there is no NVIDIA driver here", "--executor cuda needs one")
    if torch.version.cuda is None:
        says = f"this torch ({torch.__version__}) was built without CUDA"
        return Finding("GPU", "none", "absent", says, "install a CUDA build of torch: pytorch.org says how")
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if hidden is not None:
        return Finding("GPU", "none", "absent", f"CUDA_VISIBLE_DEVICES is '{hidden}'", "unset it")
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (RuntimeError, AssertionError) as error:
        return Finding("GPU", "none", "absent", f"CUDA finds none: {in_one_line(error)}", "nvidia-smi says more")
    return Finding("GPU", "none", "absent", "CUDA finds none", "nvidia-smi says more")
