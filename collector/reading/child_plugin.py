"""A plugin that is read in a child process, and in the agent itself where it needs no child."""

from collections.abc import Iterable
from datetime import datetime
from typing import cast

import msgspec

from collector.reading.child_process import ChildProcess
from collector.reading.child_wire import (
    Close,
    Configure,
    Failed,
    Gather,
    Gathered,
    Reply,
    Request,
    Restart,
    Unavailable,
)
from collector.reading.readers import CHILD_START_SECONDS, PluginPlan
from core.clock import to_ns
from plugins.base import (
    ChoosesChild,
    Plugin,
    PluginContext,
    PluginError,
    PluginUnavailableError,
)
from timeseries.points import Point

CLOSE_SECONDS = 3.0


class ChildPlugin:
    """Stands in the agent for a plugin of a child process.

    Args:
        child: shared by all plugins of that child, and by one thread.
        start_limit_seconds: how long a fresh child may take until the plugin is ready in it; the
            plugin's own time limit is for readings alone.
    """

    def __init__(
        self,
        plan: PluginPlan,
        context: PluginContext,
        child: ChildProcess,
        *,
        start_limit_seconds: float = CHILD_START_SECONDS,
    ) -> None:
        self.name = plan.name
        self.config_class = plan.plugin_class.config_class
        self.traits = plan.plugin_class.traits
        self.metrics = plan.plugin_class.metrics
        self._plan = plan
        self._context = context
        self._child = child
        self._start_limit_seconds = start_limit_seconds
        self._incarnation = 0
        self._local: Plugin | None = None

    def gather(self, now: datetime) -> Iterable[Point]:
        """Return the readings, and pass on what the plugin published.

        Raises:
            PluginUnavailableError: there is nothing to read here.
            ReadingTimedOutError: the start or the reading took too long; the child was killed.
            PluginError: the reading failed, or the child died.
        """
        if not self._child.is_running and not self._needs_child():
            return self._read_here(now)
        self._child.start()
        if self._incarnation != self._child.incarnation:
            self._close_local()
            self._ask(self._configuration(), timeout_seconds=self._start_limit_seconds)
            self._incarnation = self._child.incarnation
        context = self._context
        request = Gather(
            plugin=self.name,
            now_ns=to_ns(now),
            job_of_gpu=dict(context.job_of_gpu()),
            job_of_container=dict(context.job_of_container()),
        )
        reply = self._ask(request, timeout_seconds=self._plan.time_limit_seconds)
        if not isinstance(reply, Gathered):
            raise PluginError("its child process gave an answer to another question")
        if reply.inventory is not None:
            context.publish_inventory(reply.inventory)
        return reply.points

    def close(self) -> None:
        """Close it where it is open."""
        self._close_local()
        if self._incarnation == self._child.incarnation and self._child.is_running:
            self._incarnation = 0
            try:
                self._ask(Close(plugin=self.name), timeout_seconds=CLOSE_SECONDS)
            except PluginError:
                return  # the child is gone: nothing is open any more

    def _needs_child(self) -> bool:
        choosers: tuple[object, ...] = (self._plan.config, self._plan.plugin_class)
        for chooser in choosers:
            if isinstance(chooser, ChoosesChild):
                return chooser.needs_child(self._context)
        return True

    def _read_here(self, now: datetime) -> Iterable[Point]:
        if self._local is None:
            self._local = self._plan.plugin_class(self._plan.config, self._context)
        return self._local.gather(now)

    def _close_local(self) -> None:
        local, self._local = self._local, None
        if local is not None:
            local.close()

    def _configuration(self) -> Configure:
        plugin_class = cast("type", self._plan.plugin_class)
        return Configure(
            plugin=self.name,
            address=f"{plugin_class.__module__}:{plugin_class.__qualname__}",
            config=msgspec.to_builtins(self._plan.config, enc_hook=str),
            proc=str(self._context.proc),
            sys=str(self._context.sys),
            docker_url=self._context.docker_url,
        )

    def _ask(self, request: Request, *, timeout_seconds: float) -> Reply:
        reply = self._child.ask(request, timeout_seconds=timeout_seconds)
        match reply:
            case Unavailable(message=message):
                raise PluginUnavailableError(message)
            case Restart(message=message):
                self._child.discard()
                raise PluginError(message)
            case Failed(message=message):
                raise PluginError(message)
        return reply
