"""Limits that hold over all processes of a portal.

Each process counts and decides by itself, at once. A few times a second it sends what was used
since to the others through the broker, and they add it to theirs: in between, a key can use its
limit in each of them. What runs concurrently is sent again every few seconds, and forgotten when a
process is silent. Without a broker, or while it is away, each process counts alone.
"""

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from heapq import nlargest
from operator import itemgetter
from threading import Lock
from typing import Annotated

import msgspec
from msgspec import Meta

from core.background import repeated
from core.broker import Broker, BrokerState
from core.db import chunked
from core.ids import ID_LENGTH, new_id
from core.rate_limits import ConcurrencyLimit, RateLimit

log = logging.getLogger(__name__)

CHANNEL = "limits"
INTERVAL_SECONDS = 0.25
REPEAT_SECONDS = 2.0
SILENT_SECONDS = 7.0
# A message is smaller than 64 KiB.
KEYS_PER_MESSAGE, MAX_KEY_LENGTH = 250, 200
# Of a limit, in an interval: those with the largest use. Each process alone counts the others.
MAX_SENT_KEYS = 8 * KEYS_PER_MESSAGE

_Name = Annotated[str, Meta(max_length=64)]
_Key = Annotated[str, Meta(max_length=MAX_KEY_LENGTH)]
_Number = Annotated[int, Meta(ge=0, lt=2**48)]


class LimitMessage(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """What a process has counted of a limit, at most `KEYS_PER_MESSAGE` keys.

    Attributes:
        process: an ID of the process.
        limit: the name of the limit.
        used: by key, what was used since the last message, and the milliseconds left of its window.
        running: by key, how many run.
        has_ended: nothing runs any more.
    """

    process: Annotated[str, Meta(max_length=ID_LENGTH)]
    limit: _Name = ""
    used: Annotated[dict[_Key, tuple[_Number, _Number]], Meta(max_length=KEYS_PER_MESSAGE)] = {}
    running: Annotated[dict[_Key, _Number], Meta(max_length=KEYS_PER_MESSAGE)] = {}
    has_ended: bool = False


class SharedLimits:
    """The limits of this process that all processes count together, by name. Thread-safe.

    Args:
        broker: reaches the other processes.
    """

    def __init__(self, broker: Broker | None = None) -> None:
        self._broker = broker or Broker()
        self._is_alone = self._broker.state is BrokerState.NONE
        self._process = new_id()
        self._lock = Lock()
        self._rates: dict[str, RateLimit] = {}
        self._concurrent: dict[str, ConcurrencyLimit] = {}
        self._sent: dict[str, Mapping[str, int]] = {}
        self._repeat_at = 0.0
        self._broker.listen(CHANNEL, self._receive)

    def rate(self, name: str, per_second: float) -> RateLimit:
        """Return the rate limit of a name; the first caller sets it."""
        with self._lock:
            limit = self._rates.setdefault(name, RateLimit(per_second))
        if limit.per_second and not self._is_alone:
            limit.windows.notes_use = True
        return limit

    def concurrent(self, name: str, max_running: int) -> ConcurrencyLimit:
        """Return the concurrency limit of a name, for blocks that run for seconds or longer.

        Others notice the end of a block an interval later, so a key whose short blocks follow each
        other in different processes would be refused.
        """
        with self._lock:
            return self._concurrent.setdefault(name, ConcurrencyLimit(max_running))

    @contextmanager
    def exchanged_in_background(self) -> Iterator[None]:
        """Tell the other processes during the block, and at its end that nothing runs any more."""
        if self._is_alone:
            yield
            return
        try:
            with repeated(self._try_to_send, every_seconds=INTERVAL_SECONDS, name="shared-limits"):
                yield
        finally:
            self._send(LimitMessage(process=self._process, has_ended=True))

    def send(self) -> None:
        """Send what was counted since the last call."""
        with self._lock:
            rates, concurrent = dict(self._rates), dict(self._concurrent)
        for name, rate in rates.items():
            taken = rate.windows.take_use() if rate.per_second else []
            use = [entry for entry in taken if len(entry[0]) <= MAX_KEY_LENGTH]
            largest = nlargest(MAX_SENT_KEYS, use, key=itemgetter(1))
            for part in chunked(largest, KEYS_PER_MESSAGE):
                used = {key: (amount, int(seconds * 1000)) for key, amount, seconds in part}
                self._send(LimitMessage(process=self._process, limit=name, used=used))
        is_repeated = time.monotonic() >= self._repeat_at
        if is_repeated:
            self._repeat_at = time.monotonic() + REPEAT_SECONDS
        for name, limit in concurrent.items():
            limit.forget_elsewhere()
            changed = self._changed(name, limit.counts(), is_repeated=is_repeated)
            for counts in chunked(changed.items(), KEYS_PER_MESSAGE):
                self._send(LimitMessage(process=self._process, limit=name, running=dict(counts)))

    def _changed(
        self, name: str, counts: Mapping[str, int], *, is_repeated: bool
    ) -> dict[str, int]:
        """Return the counts that others don't have yet, or all; 0 of what has ended."""
        sent = self._sent.get(name, {})
        self._sent[name] = counts
        ended = dict.fromkeys(sent.keys() - counts.keys(), 0)
        return {**(counts if is_repeated else dict(counts.items() - sent.items())), **ended}

    def _try_to_send(self) -> None:
        try:
            self.send()
        except Exception:
            log.exception("other processes were not told of the use of limits")

    def _send(self, message: LimitMessage) -> None:
        self._broker.send(CHANNEL, msgspec.msgpack.encode(message))

    def _receive(self, data: bytes) -> None:
        try:
            message = msgspec.msgpack.decode(data, type=LimitMessage)
        except msgspec.MsgspecError as error:
            log.debug("a message about limits was ignored: %s", error)
            return
        with self._lock:
            rate = self._rates.get(message.limit)
            limit = self._concurrent.get(message.limit)
            ended = tuple(self._concurrent.values()) if message.has_ended else ()
        if rate is not None and rate.per_second:
            for key, (amount, milliseconds) in message.used.items():
                rate.windows.add_use(key, amount, milliseconds / 1000)
        if limit is not None:
            limit.note_elsewhere(message.process, message.running, seconds=SILENT_SECONDS)
        for running in ended:
            running.forget_elsewhere(message.process)
