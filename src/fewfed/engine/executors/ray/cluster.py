"""A Ray cluster: one that is running already, or one of this machine that lives as long as the run.

Ray's own reports are switched off: no dashboard, no statistics of use, no logs of other processes on the terminal. What
it must write goes to a temporary folder, which is removed with the cluster.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import secrets
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from fewfed.engine.executors.ray.scratch import Scratch
from fewfed.errors import ConfigError, RunError, in_one_line

_STORE_BYTES = 1 << 29
"""Memory of a local cluster's object store, which holds broadcasts and answers; more goes to the temporary folder."""
_SETTINGS = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
_CONNECT_SECONDS = 10.0
_TOKEN = "RAY_AUTH_TOKEN"
_LEFT = ("RAY_AUTH_MODE", "RAY_CLIENT_MODE", "PYTHONBREAKPOINT")
"""Variables that Ray sets in the program that uses it, and leaves there."""


class Cluster:
    """The connection of this process to a cluster."""

    def __init__(self, address: str, cores: int) -> None:
        """`cores`: how many a cluster that is started here has."""
        with _environment({}):
            self.ray: Any = importlib.import_module("ray")
        self._scratch: Scratch | None = None
        self._is_ours = not self.ray.is_initialized()
        if self._is_ours and address:
            self._connect(address)
        elif self._is_ours:
            self._start(cores)

    def free_cores(self) -> int:
        """Cores that nobody has taken."""
        return int(self.ray.available_resources().get("CPU", 0))

    def close(self) -> None:
        """Disconnect; a cluster that was started here ends."""
        if self._is_ours:
            with _environment({}), _own_signals():
                self.ray.shutdown()
        if self._scratch is not None:
            _look_again(self.ray)
            self._scratch.remove()
            self._scratch = None

    def _connect(self, address: str) -> None:
        if "://" in address:
            raise ConfigError(
                f"ray.address = '{address}': expected host:port of the cluster's head, or auto; a run must itself be "
                "started on a machine of the cluster",
                key="ray.address",
            )
        try:
            _refuse_silence(address)
            with _environment({}), _own_signals():
                self.ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        except (OSError, OverflowError, RuntimeError, ValueError, self.ray.exceptions.RayError) as error:
            raise ConfigError(
                f"ray.address = '{address}': no cluster answers there ({in_one_line(error)}): expected host:port of "
                "its head, or auto, on a machine of the cluster; leave it out to start one",
                key="ray.address",
            ) from error
        _silence(self.ray)

    def _start(self, cores: int) -> None:
        self._scratch = Scratch()
        try:
            with _environment({**_SETTINGS, _TOKEN: os.environ.get(_TOKEN) or _token()}), _own_signals():
                _look_again(self.ray)
                self.ray.init(
                    address="local",
                    num_cpus=cores,
                    num_gpus=0,
                    include_dashboard=False,
                    object_store_memory=_STORE_BYTES,
                    log_to_driver=False,
                    logging_level="ERROR",
                    _temp_dir=str(self._scratch.path),
                    _node_ip_address="127.0.0.1",
                )
        except BaseException as error:
            self.close()
            if isinstance(error, (OSError, RuntimeError, ValueError, self.ray.exceptions.RayError)):
                raise RunError(f"Ray could not be started: {in_one_line(error)}; use --executor workers") from error
            raise
        _silence(self.ray)


def _refuse_silence(address: str) -> None:
    """Raise `OSError` where nobody listens: Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()


@cache
def _token() -> str:
    """What processes of a cluster show each other, so that nobody else on the machine can give them work. One for all
    clusters of this process, since Ray reads it once. Without it Ray would leave one in the user's home."""
    return secrets.token_hex(32)


def _look_again(ray: Any) -> None:
    """Have Ray look at its variables again, which it remembers: this process may connect to several clusters."""
    with contextlib.suppress(AttributeError):  # Nothing of Ray's public interface.
        ray._raylet.Config.initialize("")
        ray._raylet.AuthenticationTokenLoader.instance().reset_cache()


def _silence(ray: Any) -> None:
    """End the thread that prints what Ray finds wrong with actors: the run tells it in its own words."""
    with contextlib.suppress(AttributeError):  # Nothing of Ray's public interface; without it there is more to read.
        worker = ray._private.worker.global_worker
        worker.threads_stopped.set()
        worker.gcs_error_subscriber.close()


@contextmanager
def _environment(settings: dict[str, str]) -> Iterator[None]:
    """Variables that processes started meanwhile have; those that Ray sets itself are not left either."""
    before = {name: os.environ.get(name) for name in (*settings, *_LEFT)}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _own_signals() -> Iterator[None]:
    """Leave it to this program what it does at signals, which Ray would decide for it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
