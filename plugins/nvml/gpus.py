"""Reads all GPUs of this host, with cached capabilities of each.

The cache is cleared when a GPU is lost, when its MIG mode changes, and every hour.
"""

from datetime import datetime, timedelta
from pathlib import Path

from core.clock import to_ns
from plugins.nvml.calls import Calls, FieldBatch, read_reopening
from plugins.nvml.config import NVMLConfig
from plugins.nvml.ecc import read_ecc
from plugins.nvml.facts import link_count, name_of_gpu, read_facts
from plugins.nvml.library import Device, GPULostError, NVMLLibrary, QueryFailedError
from plugins.nvml.links import (
    PCIE_RECEIVED,
    PCIE_SENT,
    c2c_keys,
    c2c_link_count,
    link_keys,
    link_totals,
    read_c2c,
    read_fabric,
    read_links,
    read_pcie,
)
from plugins.nvml.profiling import Profile, can_profile
from plugins.nvml.readings import BATCH_KEYS, Fields, present, read_gpu
from plugins.nvml.slices import SliceProfiles, find_slices, is_mig_enabled, slice_fields
from plugins.nvml.xids import XidWatcher
from plugins.procfs import CounterRates
from timeseries.points import Point


class Gathering:
    """Reads NVML, which stays open between readings."""

    def __init__(self, config: NVMLConfig, *, proc: Path) -> None:
        self._library = NVMLLibrary()
        self._xids = XidWatcher()
        self._gpus = GPUs(self._library, config, proc=proc)
        self._gave_events = False

    def points(self, now: datetime) -> list[Point]:
        """Return new events if there are any, else the readings of all GPUs.

        After an event the driver may hang, and the calling process is killed. So events are
        returned before the GPUs are read, and the next call reads the GPUs in any case.
        """
        events = [] if self._gave_events else self._xids.take()
        self._gave_events = bool(events)
        return events or self._read(now)

    def close(self) -> None:
        """Close the library and stop the event thread."""
        self._xids.close()
        self._gpus.forget()
        self._library.close()

    def _read(self, now: datetime) -> list[Point]:
        points = read_reopening(lambda: self._gpus.read(now), close=self.close)
        self._xids.watch(self._gpus.devices())
        return points


CACHE_LIFETIME = timedelta(hours=1)
# A GPU that answered before is lost after so many readings in a row.
LOST_READINGS = 2


class GPUs:
    """Reads all GPUs.

    Args:
        proc: where `/proc` is, which names lost GPUs.
    """

    def __init__(self, library: NVMLLibrary, config: NVMLConfig, *, proc: Path) -> None:
        self._library = library
        self._config = config
        self._skip_uuids = config.skip_uuids
        self._proc = proc
        self._gpus: dict[int, GPU] = {}

    def read(self, now: datetime) -> list[Point]:
        """Return the points of all GPUs; a lost one has a single point with `lost`.

        Raises:
            LibraryStaleError: NVML must be reopened; call `forget`.
            PluginError: NVML does not answer.
        """
        points: list[Point] = []
        count = self._library.count()
        for index in range(count):
            gpu = self._gpus.setdefault(index, GPU(index, self._config, proc=self._proc))
            if gpu.tags.get("uuid") in self._skip_uuids:
                continue
            gpu_points = gpu.read(self._library, now)
            points += [] if gpu.tags.get("uuid") in self._skip_uuids else gpu_points
        for index in self._gpus.keys() - set(range(count)):
            del self._gpus[index]
        return points

    def devices(self) -> list[Device]:
        """Return the GPUs that answered last time and are not skipped."""
        devices = [gpu.device for gpu in self._gpus.values()]
        return [
            device
            for device in devices
            if device is not None and device.uuid not in self._skip_uuids
        ]

    def forget(self) -> None:
        """Clear handles and capabilities, but not the GPU identities."""
        for gpu in self._gpus.values():
            gpu.forget()


class GPU:
    """One GPU, by index; `tags` are its last known ones.

    A GPU that was lost before its first reading is identified by the kernel module.
    """

    def __init__(self, index: int, config: NVMLConfig, *, proc: Path) -> None:
        self.tags: dict[str, str] = {"gpu": str(index)}
        self.device: Device | None = None
        self._index = index
        self._config = config
        self._proc = proc
        self._learned: _Capabilities | None = None
        self._rates = CounterRates()
        self._profile = Profile(with_pcie=config.pcie_throughput)
        self._slice_profiles = SliceProfiles()
        # A GPU that never answered has nothing that speaks against its being lost.
        self._failed_readings = LOST_READINGS - 1

    def read(self, library: NVMLLibrary, now: datetime) -> list[Point]:
        """Return the points of the GPU; none without permission, or if it can't be read now."""
        try:
            learned = self._learn(library, now)
            points = [] if learned is None else self._points(learned, now)
        except QueryFailedError:
            return []
        except GPULostError:
            self.forget()
            self._failed_readings += 1
            if self._failed_readings < LOST_READINGS:
                return []
            self._rates = CounterRates()
            if "uuid" not in self.tags:
                self.tags |= name_of_gpu(self._proc, self._index, count=library.count())
            return [Point("gpu", self.tags, {"lost": 1}, to_ns(now))]
        self._failed_readings = 0
        return points

    def forget(self) -> None:
        """Clear the handle and the capabilities."""
        self._profile.close()
        self._slice_profiles.close()
        self.device, self._learned = None, None

    def _learn(self, library: NVMLLibrary, now: datetime) -> "_Capabilities | None":
        learned = self._learned
        if learned is not None and now - learned.learned_at < CACHE_LIFETIME:
            is_mig = is_mig_enabled(learned.calls)
            # After a failed query, ask whether the GPU is still there.
            if is_mig == learned.is_mig and not learned.calls.failures:
                return learned
        device = library.device(self._index)
        if device is None:
            self.forget()
            return None
        if device.uuid != self.tags.get("uuid"):
            self._rates = CounterRates()
            self._profile.close()
        self.device = device
        self.tags = {"gpu": str(self._index), "uuid": device.uuid, "model": device.model}
        self._learned = _Capabilities(device, now, with_pcie=self._config.pcie_throughput)
        return self._learned

    def _points(self, learned: "_Capabilities", now: datetime) -> list[Point]:
        batch, time_ns = learned.batch.read(), to_ns(now)
        sram, errors_by_place = read_ecc(learned.calls)
        links = read_links(learned.calls, batch, self._rates, links=learned.links, now=now)
        fields: Fields = {
            "lost": 0,
            "mig_enabled": None if learned.is_mig is None else int(learned.is_mig),
            **read_gpu(learned.calls, batch),
            **learned.facts,
            **link_totals(links),
            **read_fabric(learned.calls),
            **read_c2c(batch, learned.c2c_links),
            **sram,
        }
        if learned.can_profile and not learned.is_mig:
            fields |= self._profile.read(learned.calls)
        elif self._config.pcie_throughput:
            fields |= read_pcie(learned.calls, batch, self._rates, now=now)
        points = [Point("gpu", self.tags, present(fields), time_ns)]
        points += self._slice_points(learned, time_ns)
        own = {name: self.tags[name] for name in ("gpu", "uuid")}
        for place, counts in errors_by_place.items():
            points.append(Point("gpu_ecc", {**own, "place": place}, present(counts), time_ns))
        for link, link_fields in enumerate(links if self._config.per_link else []):
            values = present(link_fields)
            if values:
                points.append(Point("gpu_link", {**own, "link": str(link)}, values, time_ns))
        return [point for point in points if point.fields]

    def _slice_points(self, learned: "_Capabilities", time_ns: int) -> list[Point]:
        if not learned.is_mig:
            self._slice_profiles.close()
            return []
        # The units of the whole GPU aren't counted meanwhile.
        self._profile.close()
        slices = find_slices(learned.calls)
        profiles = self._slice_profiles.read(learned.calls, slices if learned.can_profile else [])
        points = []
        for mig_slice in slices:
            tags = {
                **self.tags,
                "uuid": mig_slice.uuid,
                "slice": str(mig_slice.index),
                "model": mig_slice.model,
                "profile": mig_slice.profile,
            }
            fields = slice_fields(mig_slice) | profiles.get(mig_slice.uuid, {})
            points.append(Point("gpu_slice", tags, present(fields), time_ns))
        return points


class _Capabilities:
    """Cached capabilities and facts of one GPU."""

    def __init__(self, device: Device, now: datetime, *, with_pcie: bool) -> None:
        self.learned_at = now
        self.calls = Calls(device.handle)
        self.is_mig = is_mig_enabled(self.calls)
        self.facts = read_facts(self.calls)
        self.links = range(link_count(self.calls))
        # In MIG mode the units belong to slices.
        self.can_profile = bool(self.calls.ask(can_profile))
        has_counters = not self.can_profile or self.is_mig
        pcie = (PCIE_RECEIVED, PCIE_SENT) if with_pcie and has_counters else ()
        self.c2c_links = c2c_link_count(self.calls)
        keys = (*BATCH_KEYS, *pcie, *c2c_keys(self.c2c_links), *link_keys(self.links))
        self.batch = FieldBatch(self.calls, keys)
