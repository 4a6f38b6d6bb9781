"""Resource use of a container, from cgroups (v1 and v2) and its network.

`/proc/PID/cgroup` has the cgroups of a process: `0::/PATH` in v2, a line for each controller in v1.
If both are mounted, v1 has the controllers.

Source: the kernel's Documentation/admin-guide/cgroup-v1 and cgroup-v2.rst.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

PRESSURES = ("cpu", "memory", "io")
CONTROLLERS = ("cpuacct", "memory", "pids", "blkio")
# cgroup v1 reports "no limit" as a huge number.
UNLIMITED_BYTES = 2**60
_READ_BYTES = 65536


@dataclass(frozen=True, slots=True)
class Use:
    """Resource use of a container; None if unknown or unlimited.

    Attributes:
        waited_seconds: the time in which a process waited for a resource (`cpu`, `memory`, `io`),
            ever, as the kernel's pressure stall information has it; cgroup v2 only.
        cpu_periods: scheduling periods with work, and those in which the CPU limit stopped it.
        node_bytes: memory of processes by NUMA node.
    """

    cpu_seconds: float | None = None
    memory_bytes: int | None = None
    memory_limit_bytes: int | None = None
    processes: int | None = None
    read_bytes: int | None = None
    written_bytes: int | None = None
    page_cache_bytes: int | None = None
    waited_seconds: Mapping[str, float] = field(default_factory=dict)
    cpu_periods: tuple[int, int] | None = None
    node_bytes: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UnifiedGroup:
    """The cgroup of a container in v2."""

    folder: Path

    def read(self) -> Use:
        """Return the current use."""
        used = _integer(self.folder / "memory.current")
        io = _text(self.folder / "io.stat").split()
        cpu, memory = _values(self.folder / "cpu.stat"), _values(self.folder / "memory.stat")
        usage_usec = cpu.get("usage_usec")
        has_periods = "nr_periods" in cpu and "nr_throttled" in cpu
        return Use(
            cpu_seconds=None if usage_usec is None else usage_usec / 1e6,
            memory_bytes=_resident(used, memory.get("inactive_file")),
            page_cache_bytes=memory.get("file"),
            waited_seconds=_waited_seconds(self.folder),
            cpu_periods=(cpu["nr_periods"], cpu["nr_throttled"]) if has_periods else None,
            node_bytes=_node_bytes(self.folder / "memory.numa_stat"),
            memory_limit_bytes=_limit(self.folder / "memory.max"),
            processes=_integer(self.folder / "pids.current"),
            read_bytes=_sum_after(io, "rbytes="),
            written_bytes=_sum_after(io, "wbytes="),
        )


@dataclass(frozen=True, slots=True)
class SplitGroup:
    """The cgroups of a container in v1, a directory for each controller."""

    folders: Mapping[str, Path]

    def read(self) -> Use:
        """Return the current use."""
        memory = self.folders["memory"]
        used = _integer(memory / "memory.usage_in_bytes")
        stat = _values(memory / "memory.stat")
        nanoseconds = _integer(self.folders["cpuacct"] / "cpuacct.usage")
        io = _text(self.folders["blkio"] / "blkio.throttle.io_service_bytes").splitlines()
        return Use(
            cpu_seconds=None if nanoseconds is None else nanoseconds / 1e9,
            memory_bytes=_resident(used, stat.get("total_inactive_file")),
            page_cache_bytes=stat.get("total_cache"),
            memory_limit_bytes=_limit(memory / "memory.limit_in_bytes"),
            processes=_integer(self.folders["pids"] / "pids.current"),
            read_bytes=_sum_of(io, "Read"),
            written_bytes=_sum_of(io, "Write"),
        )


Group = UnifiedGroup | SplitGroup


def find_group(pid: int, container_id: str, *, proc: Path, sys: Path) -> Group | None:
    """Return the cgroups of a container by its process; None if the process belongs to another one.

    The container may have moved the process into a nested cgroup.
    """
    root = sys / "fs" / "cgroup"
    paths: dict[str, str] = {}
    for line in _text(proc / str(pid) / "cgroup").splitlines():
        _, _, controllers_and_path = line.partition(":")
        controllers, _, path = controllers_and_path.partition(":")
        if (own := _up_to(path, container_id)) is not None:
            paths |= dict.fromkeys(controllers.split(","), own.lstrip("/"))
    if "memory" in paths:
        return SplitGroup({name: root / name / paths.get(name, "-") for name in CONTROLLERS})
    if "" in paths:
        return UnifiedGroup(root / paths[""])
    return None


def network_bytes(pid: int, *, proc: Path) -> tuple[int, int] | None:
    """Return bytes received and sent by the network of a process, loopback left out.

    None when the process is gone.
    """
    text = _text(proc / str(pid) / "net" / "dev")
    if not text:
        return None
    received = sent = 0
    for line in text.splitlines()[2:]:
        interface, _, figures = line.partition(":")
        if interface.strip() != "lo":
            columns = figures.split()
            received += int(columns[0])
            sent += int(columns[8])
    return received, sent


def _up_to(path: str, container_id: str) -> str | None:
    parts = path.split("/")
    for index, part in enumerate(parts):
        if container_id in part:
            return "/".join(parts[: index + 1])
    return None


def _text(path: Path) -> str:
    """Return a file of the kernel's, or "" when it is gone or not there."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(descriptor, _READ_BYTES).decode("ascii", "replace")
    except OSError:
        return ""
    finally:
        os.close(descriptor)


def _integer(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdecimal() else None


def _limit(path: Path) -> int | None:
    limit = _integer(path)
    return limit if limit is not None and limit < UNLIMITED_BYTES else None


def _values(path: Path) -> dict[str, int]:
    """Return the numbers of lines of `key number`."""
    pairs = (line.partition(" ") for line in _text(path).splitlines())
    return {name: int(number) for name, _, number in pairs if number.isdecimal()}


def _resident(used: int | None, cache_bytes: int | None) -> int | None:
    """Return memory as `docker stats` counts it: page cache that can be dropped is left out."""
    return None if used is None else max(0, used - (cache_bytes or 0))


def _waited_seconds(folder: Path) -> dict[str, float]:
    """Return the seconds of `some avg10=... total=MICROSECONDS` by resource."""
    waited = {}
    for resource in PRESSURES:
        first_line = _text(folder / f"{resource}.pressure").partition("\n")[0]
        total = first_line.rpartition("total=")[2]
        if first_line.startswith("some ") and total.isdecimal():
            waited[resource] = int(total) / 1e6
    return waited


def _node_bytes(path: Path) -> dict[int, int]:
    """Return the bytes of the line `anon N0=... N1=...` by node."""
    for line in _text(path).splitlines():
        kind, *shares = line.split()
        if kind == "anon":
            pairs = (share.partition("=") for share in shares)
            return {int(node.removeprefix("N")): int(number) for node, _, number in pairs}
    return {}


def _sum_after(words: Iterable[str], prefix: str) -> int | None:
    """Return the sum over devices of `rbytes=N`; None when no device is named."""
    numbers = [int(word.removeprefix(prefix)) for word in words if word.startswith(prefix)]
    return sum(numbers) if numbers else None


def _sum_of(lines: Iterable[str], operation: str) -> int | None:
    """Return the sum over devices of `8:0 Read N`; None when no device is named."""
    rows = [parts for line in lines if len(parts := line.split()) == 3 and parts[1] == operation]  # noqa: PLR2004 - device, operation, bytes
    return sum(int(parts[2]) for parts in rows) if rows else None
