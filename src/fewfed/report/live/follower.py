"""A thread that looks while somebody asks, so that no answer waits for long and nothing is read for nobody."""

from __future__ import annotations

import gzip
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from fewfed.errors import told
from fewfed.report.live.watcher import Snapshot, Watcher

_READING = 0.4
"""Seconds that one look may read before it is shown what there is."""
_BETWEEN = 3.0
"""Seconds between two reports while there is much to read."""
_FRESH = 0.3
"""Seconds for which a look counts as one of now."""
_PATIENCE = 0.6
"""Seconds that somebody who asks waits for a new look; then the last one has to do."""
_REST = 1.0
"""For so many times as long as it was at work the thread rests: runs on this machine need its cores as well."""


@dataclass(frozen=True)
class Answer:
    """A snapshot as it is sent."""

    snapshot: Snapshot

    @cached_property
    def body(self) -> bytes:
        head = f'{{"live":{self.snapshot.live}'
        rest = self.snapshot.contents.strip()[1:]
        return (head + (", " if rest != "}" else "") + rest).encode()

    @cached_property
    def packed(self) -> bytes:
        return gzip.compress(self.body, compresslevel=3, mtime=0)

    @cached_property
    def tag(self) -> str:
        return f'W/"{self.snapshot.tag}"'


class Follower:
    """Looks whenever it is asked, in a thread of its own."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._changed = threading.Condition()
        self._answer = Answer(Snapshot("{}", "{}"))
        self._begun = self._ended = 0
        self._when = -_FRESH
        self._composed, self._composing = -_BETWEEN, 0.0
        """When the report was last composed, and how long that took."""
        self._asked, self._closed = True, False
        self._thread = threading.Thread(target=self._work, daemon=True, name="fewfed-watch")

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def answer(self) -> Answer:
        """What there is now, or was a moment ago; nothing at all before the first look is done."""
        with self._changed:
            if time.monotonic() - self._when > _FRESH:
                # One that has begun already may have missed what has just been written.
                wanted = self._begun + 1
                self._asked = True
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._ended >= wanted or self._closed, _PATIENCE)
            return self._answer

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._asked or self._closed)
                if self._closed:
                    return
                self._asked = False
                self._begun += 1
            began = time.monotonic()
            self._publish(lambda: self._watcher.look(_READING))
            behind = self._watcher.is_behind
            pause = max(_REST * self._composing, _BETWEEN if behind else 0.0)
            if self._watcher.is_stale and began >= self._composed + pause:
                before = time.monotonic()
                self._publish(self._watcher.catch_up)
                self._composed = time.monotonic()
                self._composing = self._composed - before
            with self._changed:
                self._ended, self._when = self._begun, time.monotonic()
                self._asked = self._asked or behind  # What there is to read is read, also if nobody asks again.
                self._changed.notify_all()
                if not behind:
                    self._changed.wait_for(lambda: self._closed, _REST * (time.monotonic() - began))

    def _publish(self, look: Callable[[], Snapshot]) -> None:
        answer = self._looked(look)
        with self._changed:
            self._answer = answer

    def _looked(self, look: Callable[[], Snapshot]) -> Answer:
        try:
            found = look()
        except Exception as error:  # No folder, whatever it holds, may end the page; what is wrong is told there.
            last = self._answer.snapshot
            found = Snapshot(last.contents, json.dumps({**json.loads(last.live), "fault": told(error)}))
        return self._answer if self._answer.snapshot == found else Answer(found)  # Packed once.
