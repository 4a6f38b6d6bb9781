"""Host inventory from sysfs and procfs: vendor, CPUs, memory, disks, network cards.

Source: the kernel's Documentation/ABI (sysfs-class-net, sysfs-block, sysfs-devices-system-cpu,
sysfs-class-infiniband).
"""

import os
import platform
from collections.abc import Iterator
from pathlib import Path

from plugins.base import PluginError, matches_any
from plugins.procfs import ProcFile, entries, kibibytes
from protocol.inventory import DiskInfo, Inventory, NICInfo

SECTOR_BYTES = 512
MEGABIT = 1_000_000
GIGABIT = 1_000_000_000
# These are no disks: optical and floppy drives, boot partitions of flash cards, network devices.
NOT_DISKS = ("sr*", "fd*", "mmcblk*boot*", "nbd*", "zd*")
# Placeholders in DMI fields.
PLACEHOLDERS = frozenset(
    {
        "default string",
        "none",
        "not applicable",
        "not available",
        "not specified",
        "o.e.m.",
        "system manufacturer",
        "system product name",
        "system serial number",
        "to be filled by o.e.m.",
        "0",
        "0123456789",
        "123456789",
    }
)


def read_facts(*, proc: Path, sys: Path) -> Inventory:
    """Return what doesn't change until a reboot; on most hosts only root can read the serial."""
    kernel = proc / "sys" / "kernel"
    threads = list(_topologies(sys))
    # A core's number is unique within its socket only.
    cores = {(socket, core) for socket, core in threads if core}
    return Inventory(
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
    """Return physical disks: no partitions, loop devices, RAM disks or mappings."""
    return [
        DiskInfo(
            name=block.name,
            size_bytes=size_bytes,
            model=read_text(block / "device" / "model"),
            is_rotational=read_text(block / "queue" / "rotational") == "1",
        )
        for block in entries(sys / "block")
        if (block / "device").exists()
        and not matches_any(block.name, NOT_DISKS)
        and read_text(block / "hidden") != "1"  # one of the paths to an NVMe disk
        and (size_bytes := _integer(block / "size") * SECTOR_BYTES)
    ]


def read_nics(sys: Path) -> list[NICInfo]:
    """Return the network cards, including InfiniBand-only ones."""
    nics = [
        NICInfo(
            name=interface.name,
            address=read_text(interface / "address"),
            driver=_driver(interface),
            speed_bits_per_second=max(0, _integer(interface / "speed")) * MEGABIT,
        )
        for interface in entries(sys / "class" / "net")
        if _is_card(interface)
    ]
    return nics + [
        NICInfo(
            name=card.name,
            address=read_text(card / "node_guid"),
            driver=_driver(card),
            speed_bits_per_second=_infiniband_speed(card),
        )
        for card in entries(sys / "class" / "infiniband")
        if _is_card(card) and not entries(card / "device" / "net")
    ]


def read_text(path: Path) -> str:
    """Return the content of a small file; "" if missing or unreadable."""
    try:
        return path.read_bytes().decode("utf-8", "replace").strip(" \t\n\0")
    except OSError:
        return ""


def _topologies(sys: Path) -> Iterator[tuple[str, str]]:
    """Yield socket and core of each online hardware thread."""
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
    """Return whether it is physical, not a virtual function."""
    device = interface / "device"
    return device.exists() and not (device / "physfn").exists()


def _driver(interface: Path) -> str:
    driver = interface / "device" / "driver"
    return driver.resolve().name if driver.exists() else ""


def _infiniband_speed(card: Path) -> int:
    """Return the total speed of the active ports, each such as `400 Gb/sec (4X NDR)`."""
    total = 0.0
    for port in entries(card / "ports"):
        if "ACTIVE" in read_text(port / "state"):
            total += float(read_text(port / "rate").partition(" ")[0] or 0)
    return int(total * GIGABIT)


def _integer(path: Path) -> int:
    try:
        return int(read_text(path))
    except ValueError:
        return 0
