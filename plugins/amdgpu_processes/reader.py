"""Use of AMD GPUs: processes by the job or container that they belong to, from `/proc`."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from plugins.amdgpu.sysfs import find_cards
from plugins.amdgpu_processes.clients import Client, clients_of, processes_with_cards
from plugins.base import BasePlugin, PluginContext, PluginTraits, PluginUnavailableError
from plugins.gpu_processes.owners import Owners
from plugins.gpu_processes.reader import GPUProcessesConfig, GPUProcessesPlugin
from plugins.gpu_processes.uses import WHOLE_PERCENT, listed, use_points
from protocol.gpu_processes import GPUProcess
from timeseries.points import Point

# To look through the files of all processes takes much longer than to read those that have a GPU.
SEARCH_EVERY = timedelta(seconds=30)
NS_PER_MICROSECOND = 1000


@dataclass(slots=True)
class _OnCard:
    """What a process has on a card."""

    memory_bytes: int | None = None
    busy_ns: float | None = None

    def add(self, client: Client) -> None:
        if client.memory_bytes is not None:
            self.memory_bytes = (self.memory_bytes or 0) + client.memory_bytes
        if client.busy_ns is not None:
            self.busy_ns = (self.busy_ns or 0.0) + client.busy_ns


class AMDGPUProcessesPlugin(BasePlugin):
    """One point for each AMD GPU and owner; none for an idle GPU."""

    name = "amdgpu_processes"
    config_class = GPUProcessesConfig
    metrics = GPUProcessesPlugin.metrics
    traits = PluginTraits(interval_seconds=10)

    def __init__(self, config: GPUProcessesConfig, context: PluginContext) -> None:
        self._config = config
        self._context = context
        self._owners = Owners(context.proc, context.job_of_container)
        self._pids: set[int] = set()
        self._searched_at: datetime | None = None
        self._busy_ns: dict[tuple[str, int], float] = {}
        self._read_at: datetime | None = None

    def gather(self, now: datetime) -> Iterable[Point]:
        """Return a point for each card and owner, and publish the processes.

        Raises:
            PluginUnavailableError: there is no AMD GPU.
        """
        cards = find_cards(proc=self._context.proc, sys=self._context.sys)
        if not cards:
            raise PluginUnavailableError("the kernel has no AMD GPU")
        on_cards = self._read(now)
        owners = self._owners.of({pid for processes in on_cards.values() for pid in processes})
        percents = self._percents(on_cards, now)
        points: list[Point] = []
        published: list[GPUProcess] = []
        for card in cards:
            if card.uuid in self._config.skip_uuids:
                continue
            tags = {"gpu": str(card.index), "uuid": card.uuid}
            processes = on_cards.get(card.pci_address, {})
            memory_of = {pid: own.memory_bytes for pid, own in processes.items()}
            percent_of = percents.get(card.pci_address, {}).get
            points += use_points(tags, memory_of, percent_of, owners, now=now)
            published += listed(tags, memory_of, owners, self._owners.name_of)
        self._context.publish_amd_processes(published)
        return points

    def _read(self, now: datetime) -> Mapping[str, Mapping[int, _OnCard]]:
        """Return by card the processes that use it: a file that is open only is no use."""
        if self._searched_at is None or not timedelta() <= now - self._searched_at < SEARCH_EVERY:
            self._pids, self._searched_at = processes_with_cards(self._context.proc), now
        on_cards: dict[str, dict[int, _OnCard]] = {}
        for pid, clients in clients_of(self._context.proc, self._pids).items():
            for client in clients:
                on_cards.setdefault(client.card, {}).setdefault(pid, _OnCard()).add(client)
        return {
            card: {pid: own for pid, own in processes.items() if own.memory_bytes or own.busy_ns}
            for card, processes in on_cards.items()
        }

    def _percents(
        self, on_cards: Mapping[str, Mapping[int, _OnCard]], now: datetime
    ) -> Mapping[str, Mapping[int, float]]:
        """Return by card the use of each process since the last reading.

        The driver counts nothing for queues that ROCm's programs fill themselves: a process whose
        engines have never run has no use that is known.
        """
        busy_ns = {
            (card, pid): own.busy_ns
            for card, processes in on_cards.items()
            for pid, own in processes.items()
            if own.busy_ns
        }
        before, self._busy_ns = self._busy_ns, busy_ns
        read_at, self._read_at = self._read_at, now
        if read_at is None or now <= read_at:
            return {}
        elapsed_ns = (now - read_at) // timedelta(microseconds=1) * NS_PER_MICROSECOND
        percents: dict[str, dict[int, float]] = {}
        for (card, pid), ns in busy_ns.items():
            if (card, pid) in before:
                percent = WHOLE_PERCENT * (ns - before[card, pid]) / elapsed_ns
                percents.setdefault(card, {})[pid] = min(float(WHOLE_PERCENT), max(0.0, percent))
        return percents
