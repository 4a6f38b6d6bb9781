"""What a host is made of, from the files of its kernel: maker, CPUs, memory, disks, network cards.

Source: the kernel's Documentation/ABI (sysfs-class-net, sysfs-block, sysfs-devices-system-cpu,
sysfs-class-infiniband).
"""

import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from jobqueue.executors.wire import DiskInfo, NICInfo
from plugins.base import PluginError, matches_any
from plugins.procfs import ProcFile, kibibytes

SECTOR_BYTES = 512
MEGABIT = 1_000_000
GIGABIT = 1_000_000_000
# No disks: optical and floppy drives, boot partitions of flash cards, network block devices.
NOT_DISKS = ("sr*", "fd*", "mmcblk*boot*", "nbd*", "zd*")
# What makers leave in a field that nobody filled.
PLACEHOLDERS = frozenset(
    {
        "default string", "none", "not applicable", "not available", "not specified", "o.e.m.",
        "system manufacturer", "system product name", "system serial number",
        "to be filled by o.e.m.", "0", "0123456789", "123456789",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """What stays as it is until the host is started again; what is not said is empty or 0."""

    hostname: str
    os: str
    kernel: str
    boot_id: str
    vendor: str
    product: str
    serial: str
    cpu_model: str
    cpu_count: int
    cpu_core_count: int
    cpu_socket_count: int
    memory_bytes: int


def read_facts(*, proc: Path, sys: Path) -> HostFacts:
    """Return the facts of this host; the serial number is root's to read on most hosts."""
    kernel = proc / "sys" / "kernel"
    threads = list(_topologies(sys))
    # A core's number is unique within its socket only.
    cores = {(socket, core) for socket, core in threads if core}
    return HostFacts(
        hostname=read_text(kernel / "hostname") or platform.node(),
        os=_os_name(),
        kernel=read_text(kernel / "osrelease"),
        boot_id=read_text(kernel / "random" / "boot_id"),
        vendor=_dmi(sys, "sys_vendor"),
        product=_dmi(sys, "product_name") or _device_tree_model(sys),
        serial=_dmi(sys, "product_serial"),
        cpu_model=_cpu_model(proc),
        cpu_count=len(threads) or os.cpu_count() or 1,
        cpu_core_count=len(cores),
        cpu_socket_count=len({socket for socket, _ in threads if socket not in {"", "-1"}}),
        memory_bytes=_memory_bytes(proc),
    )


def read_disks(sys: Path) -> list[DiskInfo]:
    """Return the disks that are devices of their own: no partition, loop, RAM disk or mapping."""
    return [
        DiskInfo(
            name=block.name,
            size_bytes=size_bytes,
            model=read_text(block / "device" / "model"),
            is_rotational=read_text(block / "queue" / "rotational") == "1",
        )
        for block in _entries(sys / "block")
        if (block / "device").exists()
        and not matches_any(block.name, NOT_DISKS)
        and read_text(block / "hidden") != "1"  # one of the paths to an NVMe disk
        and (size_bytes := _integer(block / "size") * SECTOR_BYTES)
    ]


def read_nics(sys: Path) -> list[NICInfo]:
    """Return the network cards, those that speak InfiniBand alone included."""
    nics = [
        NICInfo(
            name=interface.name,
            address=read_text(interface / "address"),
            driver=_driver(interface),
            speed_bits_per_second=max(0, _integer(interface / "speed")) * MEGABIT,
        )
        for interface in _entries(sys / "class" / "net")
        if _is_card(interface)
    ]
    return nics + [
        NICInfo(
            name=card.name,
            address=read_text(card / "node_guid"),
            driver=_driver(card),
            speed_bits_per_second=_infiniband_speed(card),
        )
        for card in _entries(sys / "class" / "infiniband")
        if _is_card(card) and not _entries(card / "device" / "net")
    ]


def read_text(path: Path) -> str:
    """Return what a small file says; "" where it is missing or this user may not read it."""
    try:
        return path.read_bytes().decode("utf-8", "replace").strip(" \t\n\0")
    except OSError:
        return ""


def _topologies(sys: Path) -> Iterator[tuple[str, str]]:
    """Yield the socket and the core of each hardware thread that is switched on."""
    for cpu in (sys / "devices" / "system" / "cpu").glob("cpu[0-9]*"):
        topology = cpu / "topology"
        if topology.is_dir():
            yield read_text(topology / "physical_package_id"), read_text(topology / "core_id")


def _dmi(sys: Path, name: str) -> str:
    text = read_text(sys / "class" / "dmi" / "id" / name)
    return "" if text.lower() in PLACEHOLDERS else text


def _device_tree_model(sys: Path) -> str:
    """Return the product's name on boards without DMI, such as Jetson."""
    return read_text(sys / "firmware" / "devicetree" / "base" / "model")


def _os_name() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    except OSError:
        return platform.system()


def _cpu_model(proc: Path) -> str:
    for line in read_text(proc / "cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip() in {"model name", "Model"}:
            return value.strip()
    return platform.machine()


def _memory_bytes(proc: Path) -> int:
    meminfo = ProcFile(proc / "meminfo")
    try:
        return kibibytes(meminfo.read(), b"MemTotal:") or 0
    except PluginError:
        return 0
    finally:
        meminfo.close()


def _is_card(interface: Path) -> bool:
    """Return whether there is hardware behind it, and not a part that a card lends to a guest."""
    device = interface / "device"
    return device.exists() and not (device / "physfn").exists()


def _driver(interface: Path) -> str:
    driver = interface / "device" / "driver"
    return driver.resolve().name if driver.exists() else ""


def _infiniband_speed(card: Path) -> int:
    """Return the speed of its active ports together; a port says `400 Gb/sec (4X NDR)`."""
    total = 0.0
    for port in _entries(card / "ports"):
        if "ACTIVE" in read_text(port / "state"):
            total += float(read_text(port / "rate").partition(" ")[0] or 0)
    return int(total * GIGABIT)


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _integer(path: Path) -> int:
    try:
        return int(read_text(path))
    except ValueError:
        return 0
