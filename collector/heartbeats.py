"""The heartbeat: this appliance is alive, and this is what it has.

The inventory is what the plugin of that name published last; it is remembered on disk, so that a
restarted agent does not forget a GPU whose driver is away.
"""

import logging
from collections.abc import Callable
from datetime import datetime, timedelta
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from threading import Lock

import msgspec

from collector.buffering.buffer import DiskBuffer
from collector.files import replace_file
from collector.inventory import host_inventory
from collector.sending.link import PortalLink
from core.clock import Clock, to_ns
from core.ids import new_id
from jobqueue.executors.health import ApplianceHealth
from jobqueue.executors.wire import Heartbeat, Inventory

log = logging.getLogger(__name__)

FILE_NAME = "inventory.json"
LOOK_SECONDS = 1.0
FIRST_WAIT = timedelta(seconds=10)


class InventoryMemory:
    """The last inventory that was published. Safe to share by threads."""

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / FILE_NAME
        self._lock = Lock()
        self._published: Inventory | None = None

    @property
    def published(self) -> Inventory | None:
        """What was published since the agent began."""
        return self._published

    def publish(self, inventory: Inventory) -> None:
        """Take what was found, and keep it on disk when it is new."""
        with self._lock:
            if inventory == self._published:
                return
            self._published = inventory
            try:
                replace_file(self._path, msgspec.json.encode(inventory))
            except OSError as error:
                log.warning("%s can't be written: %s", self._path, error.strerror)

    def best(self) -> Inventory:
        """Return what was published, else what was remembered, else the bare host."""
        return self._published or self._remembered() or host_inventory(with_nvidia=False)

    def _remembered(self) -> Inventory | None:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=Inventory)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError) as error:
            log.warning("%s can't be read: %s", self._path, error)
            return None


class Heartbeats:
    """Sends a heartbeat when one is due, or when what can run jobs here has changed.

    Args:
        inventory: what the appliance has, without its executors.
        is_waited_for: whether the inventory is still being read for the first time.
        executors: names what can run jobs at present.
        health: how the appliance is, where somebody judges it.
    """

    def __init__(
        self,
        *,
        inventory: Callable[[], Inventory],
        is_waited_for: Callable[[], bool],
        executors: Callable[[], list[str]],
        buffer: DiskBuffer,
        clock: Clock,
        health: Callable[[], ApplianceHealth | None] = lambda: None,
    ) -> None:
        self._inventory = inventory
        self._is_waited_for = is_waited_for
        self._executors = executors
        self._buffer = buffer
        self._clock = clock
        self._health = health
        self._version = agent_version()
        self._instance_id = new_id()
        self._began_at: datetime | None = None
        self._sent_at: datetime | None = None
        self._sent_executors: list[str] = []

    def step(self, link: PortalLink, *, interval_seconds: float) -> float:
        """Send a heartbeat when it is time; return the seconds until the next look.

        Raises:
            PortalUnreachableError: it is sent again at the next look.
        """
        now, executors = self._clock(), self._executors()
        if not self._is_due(now, executors, interval_seconds):
            return LOOK_SECONDS
        inventory = msgspec.structs.replace(self._inventory(), executors=executors)
        link.heartbeat(
            Heartbeat(
                agent_version=self._version,
                sent_at_ns=to_ns(now),
                inventory=inventory,
                buffered_points=self._buffer.points,
                dropped_points=self._buffer.dropped_points,
                health=self._health(),
                instance_id=self._instance_id,
            )
        )
        self._sent_at, self._sent_executors = now, executors
        return LOOK_SECONDS

    def _is_due(self, now: datetime, executors: list[str], interval_seconds: float) -> bool:
        if self._sent_at is None:
            self._began_at = self._began_at or now
            return not self._is_waited_for() or now - self._began_at >= FIRST_WAIT
        interval = timedelta(seconds=interval_seconds)
        was_set_back = now < self._sent_at
        return now - self._sent_at >= interval or was_set_back or executors != self._sent_executors


def agent_version() -> str:
    """Return the version of the installed package."""
    try:
        return version("vedette")
    except PackageNotFoundError:  # a checkout that is not installed
        return "unknown"
