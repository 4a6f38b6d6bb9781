"""Runs unchanged modules for collectd's python plugin.

The plugin runs in its own worker process, so modules may keep global state, start threads and hang.
"""

import importlib
import socket
from collections.abc import Collection, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from core.clock import NS_PER_SECOND, Clock, to_ns, utc_now
from plugins.base import (
    BasePlugin,
    PluginContext,
    PluginError,
    PluginTraits,
    PluginUnavailableError,
)
from plugins.collectd.mapping import NOTIFICATION_METRICS, ErrorLog, PointMapper
from plugins.collectd.types_db import load_types
from plugins.collectd.values import Notification, Severity, ValueList
from plugins.collectd_python.daemon import LOG_WARNING, NAME_PREFIX, Daemon
from plugins.collectd_python.dispatched import DispatchedNotification, DispatchedValues
from plugins.collectd_python.module import build_module, importable, installed, module_node
from plugins.collectd_python.reads import Reads
from timeseries.points import Point

READ_WAIT_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectdPythonConfig:
    """Modules to load, with their configuration.

    Attributes:
        module_paths: directories to search for modules before Python's own.
        imports: modules to import; defaults to those in `modules`.
        modules: configuration of each `<Module NAME>` block.
        types_db: additional types.db files.
        read_interval_seconds: default interval of read callbacks.
        log_traces: log tracebacks of module exceptions.
    """

    module_paths: tuple[Path, ...] = ()
    imports: tuple[str, ...] = ()
    modules: dict[str, dict[str, Any]] = field(default_factory=dict)
    types_db: tuple[Path, ...] = ()
    read_interval_seconds: Annotated[float, Meta(gt=0)] = 10.0
    log_traces: bool = True

    def needs_worker(self, context: PluginContext) -> bool:
        """Return whether modules are configured; without any, no worker process starts."""
        del context
        return bool(self.imports or self.modules)


class CollectdPythonPlugin(BasePlugin):
    """One point for each dispatched `Values`; see README.md."""

    name = "collectd_python"
    config_class = CollectdPythonConfig
    traits = PluginTraits(worker="collectd_python", intervals_to_rates=1)
    metrics = NOTIFICATION_METRICS

    def __init__(
        self, config: CollectdPythonConfig, context: PluginContext, *, clock: Clock = utc_now
    ) -> None:
        del context
        self._config = config
        self._clock = clock
        self._errors = ErrorLog("collectd_python", unit="values")
        self._undo = ExitStack()
        self._daemon: Daemon | None = None
        self._reads: Reads | None = None
        self._mapper: PointMapper | None = None

    def gather(self, now: datetime) -> Iterable[Point]:
        """Call the read callbacks that are due, and return what was dispatched since the last
        reading.

        Raises:
            PluginUnavailableError: no modules are configured.
            PluginError: a types.db file can't be read, or no module could be loaded.
        """
        names = self._config.imports or tuple(self._config.modules)
        if not names:
            raise PluginUnavailableError("no modules are configured")
        if self._daemon is None or self._reads is None or self._mapper is None:
            self._daemon, self._reads, self._mapper = self._start(names)
        if self._daemon.callbacks.is_empty():
            raise PluginError(f"no callbacks registered by {', '.join(names)}; see the log")
        self._reads.run_due(now, wait_seconds=READ_WAIT_SECONDS)
        return self._points(self._daemon, self._mapper, now)

    def close(self) -> None:
        """Call the shutdown callbacks and unload the modules."""
        if self._daemon is not None:
            self._daemon.flush(None, 0, None)
            for callback in list(self._daemon.callbacks.shutdown):
                self._daemon.call(callback, "shutdown")
        self._undo.close()

    def _start(self, names: Collection[str]) -> tuple[Daemon, Reads, PointMapper]:
        """Import, configure and initialize modules, as collectd does at startup."""
        types, hostname = load_types(self._config.types_db), socket.gethostname()
        daemon = Daemon(
            types,
            hostname=hostname,
            interval_seconds=self._config.read_interval_seconds,
            log_traces=self._config.log_traces,
            clock=self._clock,
        )
        self._undo.enter_context(installed(build_module(daemon)))
        folders = self._config.module_paths
        self._undo.enter_context(importable(names, folders=folders))
        for name in names:
            _import(name, daemon)
        for name, table in self._config.modules.items():
            _configure(name, table, daemon)
        for callback in list(daemon.callbacks.init):
            daemon.call(callback, "init")
        return daemon, Reads(daemon), PointMapper(types, host=hostname)

    def _points(self, daemon: Daemon, mapper: PointMapper, now: datetime) -> list[Point]:
        points: list[Point] = []
        for item in daemon.drain():
            if isinstance(item, DispatchedNotification):
                points += _notification_points(item, mapper)
                continue
            try:
                point = mapper.point(
                    _value_list(item), now_ns=to_ns(now), interval_seconds=item.interval
                )
            except PluginError as error:
                self._errors.note(str(error))
            else:
                points += [point] if point is not None else []
        self._errors.drop(daemon.dropped)
        daemon.dropped = 0
        self._errors.flush()
        return points


def _import(name: str, daemon: Daemon) -> None:
    try:
        with daemon.attributed_to(name):
            importlib.import_module(name)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - one must not stop the others
        daemon.log_exception(name, "importing module", error)


def _configure(name: str, table: dict[str, Any], daemon: Daemon) -> None:
    wanted = (NAME_PREFIX + name).lower()
    callback = next(
        (candidate for candidate in daemon.callbacks.config if candidate.name.lower() == wanted),
        None,
    )
    if callback is not None:
        daemon.call(callback, "config", module_node(name, table))
    elif table:
        with daemon.attributed_to(name):
            daemon.log(LOG_WARNING, "has a configuration, but registered no config callback")


def _value_list(item: DispatchedValues) -> ValueList:
    return ValueList(
        identity=item.identity,
        values=item.values,
        time_ns=round(item.time * NS_PER_SECOND),
        interval_seconds=item.interval,
    )


def _notification_points(item: DispatchedNotification, mapper: PointMapper) -> list[Point]:
    if item.severity not in list(Severity):
        return []
    time_ns = round(item.time * NS_PER_SECOND)
    notification = Notification(
        identity=item.identity,
        severity=Severity(item.severity),
        message=item.message,
        time_ns=time_ns,
    )
    return [mapper.notification(notification, now_ns=time_ns)]
