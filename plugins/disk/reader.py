"""Space and inodes of mounted file systems (`statvfs`)."""

import logging
import os
import select
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, ClassVar

from msgspec import Meta

from core.clock import to_ns
from plugins.base import Metric, PluginContext, PluginTraits, gauges, present
from plugins.disk.mounts import Mount, MountFilter, wanted_mounts
from plugins.disk.remote import RemoteReader
from plugins.procfs import ProcFile
from timeseries.points import FieldValue, Point

log = logging.getLogger(__name__)

MOUNTS_KEPT = timedelta(seconds=60)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskConfig:
    """What to read; what to leave out is given as shell patterns.

    Attributes:
        skip_devices: devices such as `/dev/loop*` (snap images, always full).
        skip_file_systems: types without a disk behind them, and read-only images.
        skip_mounts: mount points.
        has_remote: also read network file systems (NFS, Lustre, CIFS, FUSE and such).
        remote_wait_seconds: how long a reading waits for all of them together.
    """

    skip_devices: tuple[str, ...] = ("/dev/loop*", "/dev/ram*", "/dev/zram*", "/dev/fuse")
    skip_file_systems: tuple[str, ...] = (
        "squashfs", "iso9660", "overlay", "tmpfs", "devtmpfs",
        "fuse.lxcfs", "fuse.portal", "fuse.gvfsd-fuse", "fuse.snapfuse", "fuse.squashfuse",
    )  # fmt: skip
    skip_mounts: tuple[str, ...] = ("/snap/*", "/boot/efi", "/var/lib/docker/*")
    has_remote: bool = True
    remote_wait_seconds: Annotated[float, Meta(gt=0)] = 1.0


class DiskPlugin:
    """One point for each file system; one that is mounted twice is read once."""

    name: ClassVar[str] = "disk"
    config_class: ClassVar[type] = DiskConfig
    traits: ClassVar[PluginTraits] = PluginTraits()
    metrics: ClassVar[tuple[Metric, ...]] = gauges(
        {
            "total_bytes": ("bytes", "size of the file system"),
            "used_bytes": ("bytes", "space in use"),
            "free_bytes": ("bytes", "space that an ordinary user can still fill"),
            "used_percent": ("percent", "used of what an ordinary user can fill, as df shows it"),
            "inodes_total": ("inodes", "files that it can hold; absent where there is no limit"),
            "inodes_used": ("inodes", "files that it holds; likewise"),
            "inodes_free": ("inodes", "files that can still be made; likewise"),
            "inodes_used_percent": ("percent", "inodes_used of inodes_total; likewise"),
        }
    )

    def __init__(self, config: DiskConfig, context: PluginContext) -> None:
        self._table = _MountTable(
            ProcFile(context.proc / "self" / "mountinfo"),
            MountFilter(
                skip_devices=config.skip_devices,
                skip_file_systems=config.skip_file_systems,
                skip_mounts=config.skip_mounts,
                has_remote=config.has_remote,
            ),
        )
        self._remote = RemoteReader(wait_seconds=config.remote_wait_seconds)
        self._stuck: list[bytes] = []

    def gather(self, now: datetime) -> Iterable[Point]:
        """Return a point for each file system, local ones first.

        One that does not answer is left out, and the others are read.
        """
        mounts = self._table.read(now)
        remote = [mount for mount in mounts if mount.is_remote]
        time_ns, points = to_ns(now), []
        for mount in mounts:
            if not mount.is_remote:
                try:
                    points += _points(mount, os.statvfs(mount.path), time_ns)
                except OSError:  # unmounted just now, or not ours to look at
                    continue
        if remote:
            answers = self._remote.read([mount.path for mount in remote])
            self._tell_stuck()
            for mount in remote:
                if mount.path in answers:
                    points += _points(mount, answers[mount.path], time_ns)
        return points

    def close(self) -> None:
        """Close the table of mounts and end the thread of the remote ones."""
        self._table.close()
        self._remote.close()

    def _tell_stuck(self) -> None:
        before, self._stuck = self._stuck, self._remote.stuck
        for path in set(self._stuck) - set(before):
            log.warning("%s does not answer; it is left out until it does", os.fsdecode(path))


def file_system_fields(status: os.statvfs_result) -> dict[str, FieldValue]:
    """Return the fields of one file system, with percent as df counts it."""
    fragment, blocks, inodes = status.f_frsize, status.f_blocks, status.f_files
    used, free = blocks - status.f_bfree, status.f_bavail
    inodes_used = inodes - status.f_ffree
    return present(
        {
            "total_bytes": blocks * fragment,
            "used_bytes": used * fragment,
            "free_bytes": free * fragment,
            "used_percent": round(100 * used / (used + free), 3) if used + free else 0.0,
            "inodes_total": inodes or None,
            "inodes_used": inodes_used if inodes else None,
            "inodes_free": status.f_ffree if inodes else None,
            "inodes_used_percent": round(100 * inodes_used / inodes, 3) if inodes else None,
        }
    )


class _MountTable:
    """Reads the table again when the kernel says that it changed, and every minute."""

    def __init__(self, file: ProcFile, wanted: MountFilter) -> None:
        self._file = file
        self._filter = wanted
        self._read_at: datetime | None = None
        self._mounts: Sequence[Mount] = ()
        self._changes = select.poll()

    def read(self, now: datetime) -> Sequence[Mount]:
        is_fresh = self._read_at is not None and timedelta(0) <= now - self._read_at < MOUNTS_KEPT
        if not is_fresh or self._changes.poll(0):
            self._mounts = wanted_mounts(self._file.read(), self._filter)
            self._changes = select.poll()
            self._changes.register(self._file, select.POLLPRI)
            self._read_at = now
        return self._mounts

    def close(self) -> None:
        self._file.close()
        self._read_at = None


def _points(mount: Mount, status: os.statvfs_result, time_ns: int) -> list[Point]:
    if not status.f_blocks:  # it has no space of its own
        return []
    tags = {"mount": mount.mount, "device": mount.device}
    return [Point("disk", tags, file_system_fields(status), time_ns)]
