"""Lines that a coordinator and a site write about what happens, with the time, on standard error."""

from __future__ import annotations

import logging
import sys


def log_to_stderr(name: str, who: str) -> logging.Logger:
    """A log whose lines say who writes. Lines of libraries about every request are for nobody."""
    log = logging.getLogger(name)
    log.setLevel(logging.INFO)
    log.propagate = False
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(f"%(asctime)s {who}: %(message)s"))
    log.handlers[:] = [handler]
    for noisy in ("httpx", "httpcore", "flwr"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    return log
