"""Clocks that are wrong: by hours everything goes on as if they were not; by years the certificate says no.

The clock of one process is shifted below everything that could ask for the time, by a small library in front of the
C library. It is compiled here: where there is no compiler these tests cannot run, and say so.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from disturbed import Disturbed, assert_equals, assert_worked, missing, reference

HOUR = 3600
SHIFT = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static long shift(void) {
    const char *text = getenv("CLOCK_AHEAD");
    return text ? atol(text) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *found) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int code = real(clock, found);
    if (!code && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) found->tv_sec += shift();
    return code;
}

int gettimeofday(struct timeval *restrict found, void *restrict zone) {
    static int (*real)(struct timeval *, void *);
    if (!real) real = dlsym(RTLD_NEXT, "gettimeofday");
    int code = real(found, zone);
    if (!code) found->tv_sec += shift();
    return code;
}

time_t time(time_t *found) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (found) *found = now.tv_sec;
    return now.tv_sec;
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("shifting the clock of a process needs a C compiler")
    folder = tmp_path_factory.mktemp("clock")
    (folder / "shift.c").write_text(SHIFT)
    made = folder / "shift.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", made, folder / "shift.c", "-ldl"], check=True)
    return made


@contextmanager
def clocks(real: Disturbed, library: Path, **ahead: float) -> Iterator[None]:
    """Processes that are started inside have clocks that are so many seconds ahead."""
    for who, seconds in ahead.items():
        real.settings[who] = {"LD_PRELOAD": str(library), "CLOCK_AHEAD": str(int(seconds))}
    try:
        yield
    finally:
        for who in ahead:
            real.settings.pop(who)


def test_the_coordinator_is_hours_ahead(trio: Disturbed, library: Path, tmp_path: Path) -> None:
    with clocks(trio, library, ahead=7 * HOUR):
        trio.serve("ahead")
    found = trio.finished("ahead")
    assert_equals(found, reference(tmp_path / "reference"))
    assert_worked(trio, "ahead", twice=0)
    assert shifted(trio.log("ahead")) != shifted(trio.log("amber").split(trio.run_of("ahead"))[0]), "it was"


@pytest.mark.thorough
def test_sites_are_hours_ahead_and_behind(trio: Disturbed, library: Path, tmp_path: Path) -> None:
    trio.kill("amber")
    trio.kill("birch")
    try:
        with clocks(trio, library, amber=-9 * HOUR, birch=9 * HOUR):
            trio.start_site("amber")
            trio.start_site("birch")
        trio.serve("apart")
        found = trio.finished("apart")
        assert_equals(found, reference(tmp_path / "reference"))
        assert_worked(trio, "apart", twice=0)
    finally:
        for name in ("amber", "birch"):
            trio.end(name)


@pytest.mark.thorough
@pytest.mark.parametrize(("years", "said"), [(4, "certificate has expired"), (-1, "certificate is not yet valid")])
def test_a_site_that_is_years_off_does_not_trust_the_certificate(
    trio: Disturbed, library: Path, years: int, said: str
) -> None:
    trio.kill("cedar")
    out = f"years-{abs(years)}"
    try:
        with clocks(trio, library, cedar=years * 365 * 24 * HOUR):
            trio.start_site("cedar")
        trio.serve(out, quorum=2, wait=0.0)
        found = trio.finished(out)
        trio.wait_log("cedar", said)
        assert {site for _, _, site in missing(found)} == {"cedar"}
        assert "cedar: no answer" in trio.log(out)
    finally:
        trio.end("cedar")


def shifted(log: str) -> str:
    """Day and hour of the last line that has a time."""
    lines = [line[:13] for line in log.splitlines() if line[:2] == "20"]
    return lines[-1]
