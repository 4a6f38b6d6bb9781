"""Clients of the amdgpu driver: what each process has open, has allocated, and has run.

A *client* is an open device file of a card. The kernel says in `/proc/PID/fdinfo/FD` how much
memory it has, and for how long its work has run on each engine; copies of a descriptor have the
same client.

Source: the kernel's Documentation/gpu/drm-usage-stats.rst, and amdgpu_fdinfo.c.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from jobqueue.executors.docker.devices import read_text
from plugins.procfs import entries

DRIVER = "amdgpu"
# Without an end, a process with very many files would delay all readings.
MAX_DESCRIPTORS = 100_000
_DEVICES = ("/dev/dri/renderD", "/dev/dri/card")
_UNITS = {"": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}
_ENGINES = ("gfx", "compute")
_KEY = re.compile(r"^([a-z-]+[a-z0-9_-]*):[ \t]*(\S+)(?:[ \t]+(\S+))?", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Client:
    """A client of a card.

    Attributes:
        card: the PCI address of the card.
        number: tells clients apart.
        memory_bytes: its memory on the card; None if the driver does not say.
        busy_ns: for how long its work has run, summed over the engines for graphics and compute
            and divided by how many of a kind there are; None if the driver does not say.
    """

    card: str
    number: str
    memory_bytes: int | None
    busy_ns: float | None


def read_client(text: str) -> Client | None:
    """Return the client in a file of fdinfo; None if it is none of amdgpu."""
    facts = {key: (value, unit) for key, value, unit in _KEY.findall(text)}
    if facts.get("drm-driver", ("", ""))[0] != DRIVER or "drm-pdev" not in facts:
        return None
    memory = facts.get("drm-memory-vram") or facts.get("drm-resident-vram")
    busy = [
        _number(facts[f"drm-engine-{engine}"][0])
        / max(1, _number(facts.get(f"drm-engine-capacity-{engine}", ("1", ""))[0]))
        for engine in _ENGINES
        if f"drm-engine-{engine}" in facts
    ]
    return Client(
        card=facts["drm-pdev"][0],
        number=facts.get("drm-client-id", ("", ""))[0],
        memory_bytes=None if memory is None else _number(memory[0]) * _UNITS.get(memory[1], 1),
        busy_ns=sum(busy) if busy else None,
    )


def processes_with_cards(proc: Path) -> set[int]:
    """Return the processes that have a device file of a GPU open, as far as they may be read."""
    remaining = MAX_DESCRIPTORS
    pids = set()
    for folder in entries(proc):
        if not folder.name.isdecimal() or remaining <= 0:
            continue
        for descriptor in entries(folder / "fd"):
            remaining -= 1
            if _is_card(descriptor):
                pids.add(int(folder.name))
                break
    return pids


def clients_of(proc: Path, pids: Iterable[int]) -> Mapping[int, list[Client]]:
    """Return the clients of some processes, each once."""
    return {
        pid: list({(client.card, client.number): client for client in _clients(proc, pid)}.values())
        for pid in sorted(pids)
    }


def _clients(proc: Path, pid: int) -> Iterator[Client]:
    for descriptor in entries(proc / str(pid) / "fd"):
        if _is_card(descriptor):
            client = read_client(read_text(proc / str(pid) / "fdinfo" / descriptor.name))
            if client is not None:
                yield client


def _is_card(descriptor: Path) -> bool:
    with suppress(OSError):  # it was closed
        return str(descriptor.readlink()).startswith(_DEVICES)
    return False


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0
