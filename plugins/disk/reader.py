"""Space and inodes of mounted file systems (`statvfs`)."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

import psutil

from core.clock import to_ns
from plugins.base import Metric, PluginContext, gauges, matches_any, present
from timeseries.points import Point


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskConfig:
    """What to leave out, as shell patterns.

    Attributes:
        skip_devices: devices such as `/dev/loop*` (snap images, always full).
        skip_file_systems: types without a disk behind them, and read-only images.
        skip_mounts: mount points.
    """

    skip_devices: tuple[str, ...] = ("/dev/loop*", "/dev/ram*", "/dev/zram*")
    skip_file_systems: tuple[str, ...] = ("squashfs", "iso9660", "overlay", "tmpfs", "devtmpfs")
    skip_mounts: tuple[str, ...] = ("/snap/*", "/boot/efi", "/var/lib/docker/*")


class DiskPlugin:
    """One point for each file system on a disk; a device mounted twice is read once."""

    name: ClassVar[str] = "disk"
    config_class: ClassVar[type] = DiskConfig
    is_simulated: ClassVar[bool] = False
    metrics: ClassVar[tuple[Metric, ...]] = gauges(
        {
            "total_bytes": ("bytes", "size of the file system"),
            "used_bytes": ("bytes", "space in use"),
            "free_bytes": ("bytes", "space that an ordinary user can still fill"),
            "used_percent": ("percent", "used of what an ordinary user can fill, as df shows it"),
            "inodes_used_percent": ("percent", "inodes in use; absent where there is no limit"),
        }
    )

    def __init__(self, config: DiskConfig, context: PluginContext) -> None:
        del context
        self._config = config

    def gather(self, now: datetime) -> Iterable[Point]:
        """Return a point for each file system; one that does not answer is left out."""
        points = []
        for mount, device in sorted(self._mounts().items()):
            try:
                status = os.statvfs(mount)
            except OSError:  # unmounted just now, or not ours to look at
                continue
            if status.f_blocks:
                tags = {"mount": mount, "device": device}
                points.append(Point("disk", tags, file_system_fields(status), to_ns(now)))
        return points

    def close(self) -> None:
        """Release nothing: psutil keeps nothing open."""

    def _mounts(self) -> dict[str, str]:
        """Return mount point to device: the shortest mount point of each device."""
        mount_of: dict[str, str] = {}
        for partition in psutil.disk_partitions(all=False):
            skipped = (
                matches_any(partition.device, self._config.skip_devices)
                or matches_any(partition.fstype, self._config.skip_file_systems)
                or matches_any(partition.mountpoint, self._config.skip_mounts)
            )
            known = mount_of.get(partition.device, partition.mountpoint)
            if not skipped:
                mount_of[partition.device] = min(known, partition.mountpoint, key=len)
        return {mount: device for device, mount in mount_of.items()}


def file_system_fields(status: os.statvfs_result) -> dict[str, float | int | bool | str]:
    """Return the fields of one file system, with percent as df counts it."""
    used = (status.f_blocks - status.f_bfree) * status.f_frsize
    free = status.f_bavail * status.f_frsize
    inodes_used = status.f_files - status.f_ffree
    return present(
        {
            "total_bytes": status.f_blocks * status.f_frsize,
            "used_bytes": used,
            "free_bytes": free,
            "used_percent": 100.0 * used / (used + free) if used + free else 0.0,
            "inodes_used_percent": 100.0 * inodes_used / status.f_files if status.f_files else None,
        }
    )
