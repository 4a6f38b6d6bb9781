"""Answers that are the same for everybody who may ask, kept for a minute."""

import threading
from collections.abc import Callable, Hashable
from datetime import datetime, timedelta
from typing import Any, TypeVar

from core.clock import Clock

T = TypeVar("T")

KEPT_FOR = timedelta(minutes=1)


class MinuteCache:
    """Keeps answers by key. Who asks while another finds the answer out waits for that one."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._answers: dict[Hashable, tuple[datetime, Any]] = {}

    def get(self, key: Hashable, find: Callable[[], T]) -> T:
        """Return the answer of the last minute, or find it out."""
        with self._lock:
            now = self._clock()
            kept = self._answers.get(key)
            if kept is not None and timedelta(0) <= now - kept[0] < KEPT_FOR:
                known: T = kept[1]
                return known
            found = find()
            self._answers = {
                kept_key: answer
                for kept_key, answer in self._answers.items()
                if timedelta(0) <= now - answer[0] < KEPT_FOR
            }
            self._answers[key] = now, found
            return found
