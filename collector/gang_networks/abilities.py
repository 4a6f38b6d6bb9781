"""What this appliance offers to gangs: its addresses, whether it can make networks, and RDMA."""

import logging
import platform
import socket
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from collector.capabilities import has_capability
from collector.gang_networks.settings import NetworkSettings
from protocol.gangs import NetworkAbilities

log = logging.getLogger(__name__)

INFINIBAND = Path("/sys/class/infiniband")
GPUDIRECT_STORAGE = Path("/proc/driver/nvidia-fs")
MAX_DEVICES = 64
MAX_PROBLEM_LENGTH = 300
REFRESH_SECONDS = 60.0
CAPABILITIES = {"CAP_NET_ADMIN": 12, "CAP_SYS_PTRACE": 19, "CAP_SYS_ADMIN": 21}
MACHINES = frozenset({"x86_64", "aarch64"})
_SIMULATED = NetworkAbilities(
    address="192.0.2.10",
    public_address="203.0.113.10",
    wireguard_public_key="c2ltdWxhdGVkIHNpbXVsYXRlZCBzaW11bGF0ZWQgMTI=",
    mtu=1500,
    can_make_networks=True,
    can_use_host=True,
    rdma_devices=["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"],
)
_NO_PORT = 9
# Reserved for documentation: an address to which only the default route leads.
_OUTSIDE = "192.0.2.1"


def simulated_abilities() -> NetworkAbilities:
    """Return those of a simulated appliance, which makes nothing."""
    return _SIMULATED


def permission_problem() -> str:
    """Return what this agent lacks to make networks, as a sentence; "" if it lacks nothing."""
    if find_spec("pyroute2") is None:
        return "The package pyroute2 is not installed: install the agent with its extra `network`."
    if platform.machine() not in MACHINES:
        return f"Networks of gangs are not made on processors of the kind {platform.machine()}."
    missing = [name for name, number in CAPABILITIES.items() if not has_capability(number)]
    if missing:
        return f"The agent lacks {', '.join(missing)}: install it with --privileged."
    return ""


class AbilitiesReader:
    """Reads the abilities of this host.

    Args:
        settings: `[network]`.
        portal_urls: towards which the address is looked up.
        wireguard_public_key: "" where it can't run.
        problem: why networks can't be made.
        can_use_host: whether jobs may get the host's network.
        mtu_of: returns the largest packet of the interface with an address.
    """

    def __init__(
        self,
        settings: NetworkSettings,
        portal_urls: Sequence[str],
        *,
        wireguard_public_key: str,
        problem: str,
        can_use_host: bool,
        mtu_of: Callable[[str], int],
        infiniband: Path = INFINIBAND,
        gpudirect_storage: Path = GPUDIRECT_STORAGE,
    ) -> None:
        self._settings = settings
        self._portal_urls = portal_urls
        self._wireguard_public_key = wireguard_public_key
        self._problem = problem[:MAX_PROBLEM_LENGTH]
        self._can_use_host = can_use_host
        self._mtu_of = mtu_of
        self._infiniband = infiniband
        self._gpudirect_storage = gpudirect_storage
        self._read: NetworkAbilities | None = None
        self._read_at = 0.0

    def __call__(self) -> NetworkAbilities:
        """Return the abilities, read at most a minute ago."""
        now = time.monotonic()
        if self._read is None or now - self._read_at >= REFRESH_SECONDS:
            self._read, self._read_at = self._current(self._read), now
        return self._read

    def _current(self, before: NetworkAbilities | None) -> NetworkAbilities:
        address = self._settings.address or own_address(self._portal_urls)
        address = address or (before.address if before is not None else "")
        problem = self._problem
        if not problem and not address:
            problem = "This host has no IPv4 address towards the portal: set address in [network]."
        fabric = NetworkAbilities(
            can_use_host=self._can_use_host,
            rdma_devices=_names(self._infiniband),
            has_gpudirect_storage=self._gpudirect_storage.exists(),
            problem=problem,
        )
        if problem:
            return fabric
        return msgspec.structs.replace(
            fabric,
            address=address,
            public_address=self._settings.public_address,
            wireguard_public_key=self._wireguard_public_key,
            mtu=self._mtu_of(address),
            can_make_networks=True,
        )


def own_address(portal_urls: Sequence[str]) -> str:
    """Return the IPv4 address from which this host reaches the portal; "" without one.

    Nothing is sent: the kernel chooses it when a UDP socket gets its destination.
    """
    hosts = [urlsplit(url).hostname or "" for url in portal_urls]
    for host in [*hosts, _OUTSIDE]:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((host, _NO_PORT))
                address = str(probe.getsockname()[0])
            except OSError:
                continue
        # A portal on this host says nothing about how others reach it.
        if not address.startswith("127."):
            return address
    return ""


def _names(folder: Path) -> list[str]:
    try:
        return sorted(entry.name[:64] for entry in folder.iterdir())[:MAX_DEVICES]
    except OSError:
        return []
