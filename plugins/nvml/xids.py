"""XIDs: errors that the driver reports as events, each delivered once.

A thread waits for events, because the driver reports them only to waiting callers; their time is
the time of receipt. Uncollected events are dropped at a limit and counted.
"""

import ctypes
import logging
import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from core.clock import to_ns, utc_now
from plugins.nvml.library import STALE, Device, is_refusal, pynvml
from timeseries.points import Point

log = logging.getLogger(__name__)

WAIT_MILLISECONDS = 250
RETRY_SECONDS = 5.0
QUEUE_LIMIT = 1000


@dataclass(frozen=True, slots=True)
class XidEvent:
    """One event; the device may be unknown."""

    code: int
    device: Device | None
    seen_at: datetime


class XidWatcher:
    """Collects the events of the GPUs that it watches."""

    def __init__(self) -> None:
        self._events: deque[XidEvent] = deque(maxlen=QUEUE_LIMIT)
        self._dropped = 0
        self._devices: dict[int, Device] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._last_ns: dict[tuple[int, str], int] = {}

    def watch(self, devices: Iterable[Device]) -> None:
        """Watch these GPUs, and continue to watch lost ones.

        The last event of a lost GPU may still be waiting.
        """
        by_address = {_address(device.handle): device for device in devices}
        if by_address.keys() <= self._devices.keys():
            return
        self.close()
        self._devices = by_address
        if by_address:
            self._stop = threading.Event()
            self._thread = threading.Thread(
                target=self._run, args=(self._stop,), name="nvml-xids", daemon=True
            )
            self._thread.start()

    def take(self) -> list[Point]:
        """Return the events since the last call, oldest first, with unique times per series."""
        points = []
        while self._events:
            points.append(self._point(self._events.popleft()))
        if self._dropped:
            log.warning("%d XIDs were dropped: there were too many between readings", self._dropped)
            self._dropped = 0
        return points

    def close(self) -> None:
        """Stop the thread; received events can still be taken."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=8 * WAIT_MILLISECONDS / 1000)
        self._thread, self._devices = None, {}

    def _run(self, stop: threading.Event) -> None:
        failures = 0
        while not stop.wait(RETRY_SECONDS if failures > 1 else 0.0):
            try:
                events = self._register()
            except pynvml.NVMLError as error:
                if is_refusal(error) or error.value in STALE:
                    log.info("the driver does not report XIDs: %s", error)
                    return
                failures += 1
                continue
            try:
                failures = self._collect(events, stop, failures)
            finally:
                _free(events)

    def _register(self) -> Any:  # noqa: ANN401 - NVML's own set
        events = pynvml.nvmlEventSetCreate()
        refusals = []
        for device in self._devices.values():
            try:
                pynvml.nvmlDeviceRegisterEvents(
                    device.handle, pynvml.nvmlEventTypeXidCriticalError, events
                )
            except pynvml.NVMLError as error:
                refusals.append(error)
        if len(refusals) == len(self._devices):
            _free(events)
            raise refusals[0]
        return events

    def _collect(self, events: Any, stop: threading.Event, failures: int) -> int:  # noqa: ANN401
        """Receive events until waiting fails; return the number of consecutive failures.

        A lost GPU breaks the event set, so a new one is created for the others.
        """
        while not stop.is_set():
            try:
                data = pynvml.nvmlEventSetWait_v2(events, WAIT_MILLISECONDS)
            except pynvml.NVMLError_Timeout:
                failures = 0
            except pynvml.NVMLError as error:
                if not failures:
                    log.info("restarting to wait for XIDs: %s", error)
                return failures + 1
            else:
                failures = 0
                if data.eventType == pynvml.nvmlEventTypeXidCriticalError:
                    self._dropped += len(self._events) == QUEUE_LIMIT
                    device = self._devices.get(_address(data.device))
                    self._events.append(XidEvent(int(data.eventData), device, utc_now()))
        return failures

    def _point(self, event: XidEvent) -> Point:
        tags = {"xid": str(event.code)}
        if event.device is not None:
            tags |= {"gpu": str(event.device.index), "uuid": event.device.uuid}
        series = (event.code, tags.get("uuid", ""))
        time_ns = max(to_ns(event.seen_at), self._last_ns.get(series, 0) + 1)
        self._last_ns[series] = time_ns
        return Point("gpu_xid", tags, {"events": 1}, time_ns)


def _address(handle: Any) -> int:  # noqa: ANN401 - NVML's own handle
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def _free(events: Any) -> None:  # noqa: ANN401 - NVML's own set
    try:
        pynvml.nvmlEventSetFree(events)
    except pynvml.NVMLError:
        return  # freed with the library
