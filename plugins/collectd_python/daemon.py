"""The implementation behind the module `collectd`: callbacks, and the queue of dispatched data.

Modules may call it from their own threads; the plugin drains the queue at its next reading.
"""

import contextlib
import logging
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from core.clock import NS_PER_SECOND, Clock, to_ns
from plugins.collectd.types_db import Types
from plugins.collectd_python.dispatched import (
    Dispatched,
    DispatchedNotification,
    DispatchedValues,
)
from plugins.collectd_python.objects import (
    CollectdError,
    Notification,
    PluginData,
    Values,
    bound,
)

log = logging.getLogger(__name__)

MAX_QUEUED = 20_000
LOG_ERROR, LOG_WARNING, LOG_NOTICE, LOG_INFO, LOG_DEBUG = 3, 4, 5, 6, 7
LEVELS = {
    LOG_ERROR: logging.ERROR,
    LOG_WARNING: logging.WARNING,
    LOG_NOTICE: logging.INFO,
    LOG_INFO: logging.INFO,
    LOG_DEBUG: logging.DEBUG,
}
NAME_PREFIX = "python."
NO_DATA = object()  # no data, distinct from None


@dataclass(frozen=True, slots=True)
class Callback:
    """A registered function; `data` is passed only if it was given."""

    name: str
    function: Callable[..., Any]
    data: object = NO_DATA

    def __call__(self, *args: object) -> object:
        """Call the function as collectd does."""
        data_arguments = () if self.data is NO_DATA else (self.data,)
        return self.function(*args, *data_arguments)


@dataclass(slots=True)
class Callbacks:
    """All registered callbacks; those called once are lists, newest first as in collectd."""

    config: list[Callback] = field(default_factory=list)
    init: list[Callback] = field(default_factory=list)
    shutdown: list[Callback] = field(default_factory=list)
    read: dict[str, tuple[Callback, float]] = field(default_factory=dict)
    write: dict[str, Callback] = field(default_factory=dict)
    flush: dict[str, Callback] = field(default_factory=dict)
    log: dict[str, Callback] = field(default_factory=dict)
    notification: dict[str, Callback] = field(default_factory=dict)

    def is_empty(self) -> bool:
        """Return whether no callback would ever be called."""
        return not any((self.init, self.read, self.write, self.notification, self.log))


class Daemon:
    """Calls callbacks, and queues what modules dispatch.

    Args:
        interval_seconds: default interval.
        log_traces: whether an exception of a module is logged with its traceback.
    """

    def __init__(
        self,
        types: Types,
        *,
        hostname: str,
        interval_seconds: float,
        log_traces: bool,
        clock: Clock,
    ) -> None:
        self.types = types
        self.hostname = hostname
        self.interval_seconds = interval_seconds
        self.callbacks = Callbacks()
        self.dropped = 0
        self._log_traces = log_traces
        self._clock = clock
        self._queue: deque[Dispatched] = deque()
        self._current = threading.local()
        self.values_class = bound(Values, self)
        self.notification_class = bound(Notification, self)

    def take_values(self, values: DispatchedValues) -> None:
        """Queue values; fill in a missing time and interval."""
        self._put(self._completed(values))

    def write_values(self, values: DispatchedValues, destination: str | None) -> None:
        """Call one write callback at once, or queue for all.

        Raises:
            RuntimeError: there is no such write callback.
        """
        if destination is None:
            self.take_values(values)
            return
        writer = self.callbacks.write.get(destination)
        if writer is None:
            raise RuntimeError("error dispatching values, read the logs")
        self.call(writer, "write", self._values_for(self._completed(values)))

    def take_notification(self, notification: DispatchedNotification) -> None:
        """Queue a notification and call the notification callbacks."""
        if not notification.time:
            notification = replace(notification, time=self._now())
        self._put(notification)
        for callback in list(self.callbacks.notification.values()):
            sent: Any = self.notification_class()
            _fill(sent, notification, severity=notification.severity, message=notification.message)
            self.call(callback, "notification", sent)

    def drain(self) -> Iterator[Dispatched]:
        """Yield the queued items, after calling the write callbacks with each."""
        for _ in range(len(self._queue)):
            item = self._queue.popleft()
            if isinstance(item, DispatchedValues):
                for callback in list(self.callbacks.write.values()):
                    self.call(callback, "write", self._values_for(item))
            yield item

    def flush(self, plugin: str | None, timeout: int, identifier: str | None) -> None:
        """Call the flush callback of this name, or all."""
        for callback in list(self.callbacks.flush.values()):
            if plugin in {None, callback.name}:
                self.call(callback, "flush", timeout, identifier)

    def call(self, callback: Callback, kind: str, *args: object) -> bool:
        """Call a callback and return whether it succeeded; log what it raises."""
        try:
            with self.attributed_to(callback.name.removeprefix(NAME_PREFIX)):
                callback(*args)
        except BaseException as error:  # noqa: BLE001 - one module must not stop the others
            self.log_exception(callback.name, f"{kind} callback", error)
            return False
        return True

    def log_exception(self, name: str, context: str, error: BaseException) -> None:
        """Log an exception of a module as collectd does."""
        kind = type(error).__name__
        with self.attributed_to(name.removeprefix(NAME_PREFIX)):
            if isinstance(error, CollectdError):
                self.log(LOG_WARNING, f"{kind} in {context}: {error}")
                return
            text = f"Unhandled python exception in {context}: {kind}: {error}"
            if self._log_traces:
                text = f"{text}\n{''.join(traceback.format_exception(error)).rstrip()}"
            self.log(LOG_ERROR, text)

    def log(self, severity: int, message: str) -> None:
        """Log for the current module, and call the log callbacks."""
        name = getattr(self._current, "name", "")
        level = LEVELS.get(severity, logging.INFO)
        log.log(level, "collectd_python: %s%s", f"{name}: " if name else "", message)
        if getattr(self._current, "is_logging", False):
            return  # prevents endless recursion of a log callback that logs
        self._current.is_logging = True
        try:
            for callback in list(self.callbacks.log.values()):
                with contextlib.suppress(Exception):
                    callback(severity, message)
        finally:
            self._current.is_logging = False

    @contextmanager
    def attributed_to(self, name: str, interval_seconds: float | None = None) -> Iterator[None]:
        """Attribute what this thread logs and dispatches to a module."""
        before: Mapping[str, object] = dict(vars(self._current))
        self._current.name = name
        if interval_seconds is not None:
            self._current.interval_seconds = interval_seconds
        try:
            yield
        finally:
            vars(self._current).clear()
            vars(self._current).update(before)

    def _put(self, item: Dispatched) -> None:
        if len(self._queue) >= MAX_QUEUED:
            self.dropped += 1
        else:
            self._queue.append(item)

    def _now(self) -> float:
        return to_ns(self._clock()) / NS_PER_SECOND

    def _completed(self, values: DispatchedValues) -> DispatchedValues:
        interval = getattr(self._current, "interval_seconds", self.interval_seconds)
        return replace(
            values,
            time=values.time if values.time > 0 else self._now(),
            interval=values.interval if values.interval > 0 else interval,
        )

    def _values_for(self, sent: DispatchedValues) -> Values:
        values = self.values_class()
        _fill(values, sent, values=list(sent.values), interval=sent.interval)
        return values


def _fill(target: PluginData, sent: Dispatched, **extra: object) -> None:
    names = sent.identity
    attributes = {
        "host": names.host,
        "plugin": names.plugin,
        "plugin_instance": names.plugin_instance,
        "type": names.type,
        "type_instance": names.type_instance,
        "time": sent.time,
        "meta": dict(sent.meta),
        **extra,
    }
    for name, value in attributes.items():
        setattr(target, name, value)
