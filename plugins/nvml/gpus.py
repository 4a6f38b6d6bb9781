"""The GPUs of this host over time: what each supports is learned, then each is read.

What was learned is forgotten when the GPU was lost, when its MIG mode changed, and every hour.
"""

from datetime import datetime, timedelta
from pathlib import Path

from core.clock import to_ns
from plugins.base import present
from plugins.nvml.calls import Calls, FieldBatch
from plugins.nvml.config import NVMLConfig
from plugins.nvml.facts import link_count, read_facts
from plugins.nvml.kernel_names import name_of_gpu
from plugins.nvml.library import Device, GPULostError, NVMLLibrary
from plugins.nvml.links import (
    PCIE_RECEIVED,
    PCIE_SENT,
    Growth,
    link_keys,
    link_totals,
    read_links,
    read_pcie,
)
from plugins.nvml.readings import BATCH_KEYS, Fields, read_gpu
from plugins.nvml.slices import find_slices, is_mig_enabled, slice_fields
from timeseries.points import Point

LEARN_AGAIN = timedelta(hours=1)


class GPUs:
    """Reads all GPUs.

    Args:
        proc: the kernel's process files, which name a GPU that NVML can't name any more.
    """

    def __init__(self, library: NVMLLibrary, config: NVMLConfig, *, proc: Path) -> None:
        self._library = library
        self._config = config
        self._skip_uuids = config.skip_uuids
        self._proc = proc
        self._gpus: dict[int, GPU] = {}

    def read(self, now: datetime) -> list[Point]:
        """Return the points of every GPU; a lost one has a single point that says so.

        Raises:
            LibraryStaleError: NVML must be opened again; call `forget` then.
            PluginError: NVML does not answer.
        """
        points: list[Point] = []
        count = self._library.count()
        for index in range(count):
            gpu = self._gpus.setdefault(index, GPU(index, self._config, proc=self._proc))
            if gpu.tags.get("uuid") in self._skip_uuids:
                continue
            found = gpu.read(self._library, now)
            points += [] if gpu.tags.get("uuid") in self._skip_uuids else found
        for index in self._gpus.keys() - set(range(count)):
            del self._gpus[index]
        return points

    def devices(self) -> list[Device]:
        """Return the GPUs that answered last time and are not left out."""
        found = [gpu.device for gpu in self._gpus.values()]
        return [one for one in found if one is not None and one.uuid not in self._skip_uuids]

    def forget(self) -> None:
        """Forget handles and what was learned, but not which GPUs there were."""
        for gpu in self._gpus.values():
            gpu.forget()


class GPU:
    """One GPU, by its index; `tags` are those that it had when it answered last.

    One that was lost before it ever answered is named as far as the kernel module can.
    """

    def __init__(self, index: int, config: NVMLConfig, *, proc: Path) -> None:
        self.tags: dict[str, str] = {"gpu": str(index)}
        self.device: Device | None = None
        self._index = index
        self._config = config
        self._proc = proc
        self._learned: _Learned | None = None
        self._growth = Growth()

    def read(self, library: NVMLLibrary, now: datetime) -> list[Point]:
        """Return the GPU's points, none where this process may not see it."""
        try:
            learned = self._learn(library, now)
            return [] if learned is None else self._points(learned, now)
        except GPULostError:
            self.forget()
            self._growth = Growth()
            if "uuid" not in self.tags:
                self.tags |= name_of_gpu(self._proc, self._index, count=library.count())
            return [Point("gpu", self.tags, {"lost": 1}, to_ns(now))]

    def forget(self) -> None:
        """Forget the handle and what was learned with it."""
        self.device, self._learned = None, None

    def _learn(self, library: NVMLLibrary, now: datetime) -> "_Learned | None":
        learned = self._learned
        if learned is not None and now - learned.learned_at < LEARN_AGAIN:
            is_mig = is_mig_enabled(learned.calls)
            if is_mig == learned.is_mig:
                return learned
        device = library.device(self._index)
        if device is None:
            self.forget()
            return None
        if device.uuid != self.tags.get("uuid"):
            self._growth = Growth()
        self.device = device
        self.tags = {"gpu": str(self._index), "uuid": device.uuid, "model": device.model}
        self._learned = _Learned(device, now, with_pcie=self._config.pcie_throughput)
        return self._learned

    def _points(self, learned: "_Learned", now: datetime) -> list[Point]:
        batch, time_ns = learned.batch.read(), to_ns(now)
        links = read_links(learned.calls, batch, self._growth, links=learned.links, now=now)
        fields: Fields = {
            "lost": 0,
            "mig_enabled": None if learned.is_mig is None else int(learned.is_mig),
            **read_gpu(learned.calls, batch),
            **learned.facts,
            **link_totals(links),
        }
        if self._config.pcie_throughput:
            fields |= read_pcie(learned.calls, batch, self._growth, now=now)
        points = [Point("gpu", self.tags, present(fields), time_ns)]
        for one in find_slices(learned.calls) if learned.is_mig else ():
            tags = {**self.tags, "uuid": one.uuid, "slice": str(one.index), "model": one.model}
            points.append(Point("gpu_slice", tags, present(slice_fields(one)), time_ns))
        own = {name: self.tags[name] for name in ("gpu", "uuid")}
        for link, link_fields in enumerate(links if self._config.per_link else []):
            kept = present(link_fields)
            if kept:
                points.append(Point("gpu_link", {**own, "link": str(link)}, kept, time_ns))
        return [point for point in points if point.fields]


class _Learned:
    """What one GPU supports and what of it does not change."""

    def __init__(self, device: Device, now: datetime, *, with_pcie: bool) -> None:
        self.learned_at = now
        self.calls = Calls(device.handle)
        self.is_mig = is_mig_enabled(self.calls)
        self.facts = read_facts(self.calls)
        self.links = range(link_count(self.calls))
        pcie = (PCIE_RECEIVED, PCIE_SENT) if with_pcie else ()
        self.batch = FieldBatch(self.calls, [*BATCH_KEYS, *pcie, *link_keys(self.links)])
