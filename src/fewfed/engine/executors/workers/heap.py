"""Lets a worker process keep freed memory for its next step."""

from __future__ import annotations

import ctypes

# Names of <malloc.h>, which Python does not know.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGEST_FROM_HEAP = 1 << 25
_KEPT = 1 << 30


def keep_freed_memory() -> bool:
    """Have the C library keep what a step frees for the next one instead of giving it back to the system.

    Gradients and activations of a step are megabytes that are freed and asked for again thousands of times; taking
    them from the system each time costs a tenth of a step where layers are wide. The peak stays what it is. False
    where the C library has no such setting.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGEST_FROM_HEAP)) and bool(mallopt(_M_TRIM_THRESHOLD, _KEPT))
