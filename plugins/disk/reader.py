"""Space and inodes of mounted file systems (`statvfs`)."""

import logging
import os
import select
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated

from msgspec import Meta

from core.clock import to_ns
from plugins.base import BasePlugin, PluginContext, gauges, matches_any, present
from plugins.disk.mounts import Mount, RemoteReader, wanted_mounts
from plugins.procfs import ProcFile
from timeseries.points import FieldValue, Point

log = logging.getLogger(__name__)

RELOAD_INTERVAL = timedelta(seconds=60)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskConfig:
    """The file systems to read; the `skip_` settings are shell patterns.

    Attributes:
        skip_devices: devices such as `/dev/loop*` (snap images, always full).
        skip_file_systems: types without a disk, and read-only images.
        skip_mounts: mount points.
        has_remote: also read network file systems (NFS, Lustre, CIFS, FUSE and others).
        remote_wait_seconds: how long a reading waits for all remote mounts together.
    """

    skip_devices: tuple[str, ...] = ("/dev/loop*", "/dev/ram*", "/dev/zram*", "/dev/fuse")
    skip_file_systems: tuple[str, ...] = (
        "squashfs",
        "iso9660",
        "overlay",
        "tmpfs",
        "devtmpfs",
        "fuse.lxcfs",
        "fuse.portal",
        "fuse.gvfsd-fuse",
        "fuse.snapfuse",
        "fuse.squashfuse",
    )
    skip_mounts: tuple[str, ...] = ("/snap/*", "/boot/efi", "/var/lib/docker/*")
    has_remote: bool = True
    remote_wait_seconds: Annotated[float, Meta(gt=0)] = 1.0

    def includes(self, mount: Mount) -> bool:
        """Return whether to read a file system."""
        return not (
            (mount.is_remote and not self.has_remote)
            or matches_any(mount.device, self.skip_devices)
            or matches_any(mount.file_system, self.skip_file_systems)
            or matches_any(mount.mount, self.skip_mounts)
        )


class DiskPlugin(BasePlugin):
    """One point for each file system, even if mounted twice."""

    name = "disk"
    config_class = DiskConfig
    metrics = gauges(
        total_bytes=("bytes", "size of the file system"),
        used_bytes=("bytes", "space in use"),
        free_bytes=("bytes", "space available to unprivileged users"),
        used_percent=("percent", "used space as a percentage, as df shows it"),
        inodes_total=("inodes", "total inodes; absent if unlimited"),
        inodes_used=("inodes", "used inodes; absent if unlimited"),
        inodes_free=("inodes", "free inodes; absent if unlimited"),
        inodes_used_percent=("percent", "inodes_used of inodes_total; absent if unlimited"),
    )

    def __init__(self, config: DiskConfig, context: PluginContext) -> None:
        self._table = _MountTable(ProcFile(context.proc / "self" / "mountinfo"), config)
        self._remote = RemoteReader(wait_seconds=config.remote_wait_seconds)
        self._stuck: list[bytes] = []

    def gather(self, now: datetime) -> Iterable[Point]:
        """Return a point for each file system, local ones first.

        File systems that don't answer are skipped.
        """
        mounts = self._table.read(now)
        remote = [mount for mount in mounts if mount.is_remote]
        time_ns, points = to_ns(now), []
        for mount in mounts:
            if not mount.is_remote:
                try:
                    points += _points(mount, os.statvfs(mount.path), time_ns)
                except OSError:  # unmounted meanwhile, or no permission
                    continue
        if remote:
            answers = self._remote.read([mount.path for mount in remote])
            before, self._stuck = self._stuck, self._remote.stuck
            for path in set(self._stuck) - set(before):
                log.warning("%s does not answer; skipping it until it does", os.fsdecode(path))
            for mount in remote:
                if mount.path in answers:
                    points += _points(mount, answers[mount.path], time_ns)
        return points

    def close(self) -> None:
        """Close the mount table and stop the thread for remote mounts."""
        self._table.close()
        self._remote.close()


def file_system_fields(status: os.statvfs_result) -> dict[str, FieldValue]:
    """Return the fields of one file system, with percentages as in df."""
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
    """Reloads the table when the kernel reports a change, and every minute."""

    def __init__(self, file: ProcFile, config: DiskConfig) -> None:
        self._file = file
        self._config = config
        self._read_at: datetime | None = None
        self._mounts: Sequence[Mount] = ()
        self._changes = select.poll()

    def read(self, now: datetime) -> Sequence[Mount]:
        is_fresh = (
            self._read_at is not None and timedelta(0) <= now - self._read_at < RELOAD_INTERVAL
        )
        if not is_fresh or self._changes.poll(0):
            self._mounts = wanted_mounts(self._file.read(), self._config.includes)
            self._changes = select.poll()
            self._changes.register(self._file, select.POLLPRI)
            self._read_at = now
        return self._mounts

    def close(self) -> None:
        self._file.close()
        self._read_at = None


def _points(mount: Mount, status: os.statvfs_result, time_ns: int) -> list[Point]:
    if not status.f_blocks:  # no space of its own
        return []
    tags = {"mount": mount.mount, "device": mount.device}
    return [Point("disk", tags, file_system_fields(status), time_ns)]
