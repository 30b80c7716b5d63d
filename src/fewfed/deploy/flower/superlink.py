"""Starts the SuperLink as a process of its own, sees that it is there, and starts it again where it died."""

from __future__ import annotations

import os
import secrets
import ssl
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from fewfed.deploy.flower import link
from fewfed.deploy.flower.installed import keep_to_itself
from fewfed.deploy.flower.link import HEADER, PARENT, SECRET
from fewfed.errors import ConfigError, RunError

_START_SECONDS = 60.0
_LOG = "superlink.log"
_ONLY_OURS = "/fewfed"
"""A path behind the door: whoever does not know our secret gets no further."""


@dataclass(frozen=True)
class Tls:
    """The server's certificate and key, and the authority that signed it."""

    authority: Path
    certificate: Path
    key: Path


class SuperLink:
    """The process, and how it is reached from here."""

    def __init__(self, address: str, tls: Tls, folder: Path) -> None:
        """`folder`: for Flower's own files and its log."""
        self._host, self._port = parsed_address(address)
        self._tls, self._folder = tls, folder
        self.secret = secrets.token_hex(32)
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = 0
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    @property
    def url(self) -> str:
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self._host, self._host)
        return f"https://{f'[{host}]' if ':' in host else host}:{self._port}"

    @property
    def pid(self) -> int:
        return 0 if self._process is None else self._process.pid

    def tls_context(self) -> ssl.SSLContext:
        """For connections from here to our own process: its certificate must be ours, whatever name it is for."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.load_verify_locations(cafile=str(self._tls.authority))
        return context

    @property
    def headers(self) -> dict[str, str]:
        """What lets the coordinator through the door."""
        return {HEADER: self.secret}

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the process and wait until it answers."""
        self.stop()
        environment = dict(os.environ)
        keep_to_itself(self._folder, environment)
        environment |= {SECRET: self.secret, PARENT: str(os.getpid())}
        command = [
            # The option only names the process in a list of processes.
            sys.executable, "-P", "-X", link.__name__, str(link.__file__),
            "--host", self._host, "--port", str(self._port),
            "--ssl-ca-certfile", str(self._tls.authority),
            "--ssl-certfile", str(self._tls.certificate),
            "--ssl-keyfile", str(self._tls.key),
            "--enable-supernode-auth",
            "--isolation", "process",
            "--disable-runtime-dependency-installation",
        ]  # fmt: skip
        with (self._folder / _LOG).open("ab") as log:
            self._process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self.starts += 1
        self._wait()

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()  # All it knows is in memory, and is made anew with the next one.
            self._process.wait()
            self._process = None

    def _wait(self) -> None:
        """Until our own process answers, and not another one that has the port."""
        import httpx

        deadline, why = time.monotonic() + _START_SECONDS, "it gave no answer"
        with httpx.Client(verify=self.tls_context(), headers=self.headers) as client:
            while True:
                try:
                    if client.get(self.url + _ONLY_OURS).status_code != httpx.codes.FORBIDDEN and self.alive():
                        return
                    why = "another server answers there"
                except httpx.TransportError as error:
                    why = str(error)
                if not self.alive() or time.monotonic() > deadline:
                    self.stop()
                    raise RunError(
                        f"Flower's SuperLink did not start on {self._host}:{self._port} ({why}): see "
                        f"'{self._folder / _LOG}'; is the port free, and do certificate and key fit?"
                    )
                time.sleep(0.05)


def parsed_address(text: str) -> tuple[str, int]:
    """Host and port of HOST:PORT."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigError(f"address = '{text[:80]}': expected HOST:PORT, as in 0.0.0.0:9092", key="address")
    return host, int(port)
