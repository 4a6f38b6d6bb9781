"""WireGuard: the agent's key, and a tunnel for each gang that needs one.

The tunnel's interface is in the gang's switch, and its UDP socket in the host's namespace. Where
the kernel has no WireGuard, the program wireguard-go serves the interface: it has to start in the
namespace of its socket, and its interface is moved from there. It ends with its interface.
"""

import base64
import errno
import os
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from shutil import which

import msgspec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from pyroute2 import IPRoute, WireGuard
from pyroute2.netlink.exceptions import NetlinkError

from collector.gang_networks.errors import NetworkError
from collector.gang_networks.links import index_of
from collector.gang_networks.namespaces import entered
from core.atomic_files import replace_file

KEY_NAME = "wireguard.key"
INTERFACE = "wireguard"
"""Of a gang's tunnel, in its switch."""
PROGRAM = "wireguard-go"
OVERHEAD_BYTES = 60
PREFIX_LENGTH = 10
KEEPALIVE_SECONDS = 25
SOCKETS = Path("/var/run/wireguard")
_KEY_BYTES = 32
_START_SECONDS = 10.0
_POLL_SECONDS = 0.05


class Peer(msgspec.Struct, frozen=True):
    """Another appliance: its public key, the address of its agent, and its own in the tunnel."""

    public_key: str
    address: str
    inner: str


def inner_address(ranks: Sequence[int]) -> str:
    """Return the address of an appliance in a gang's tunnel: a rank is on one appliance only."""
    rank = min(ranks, default=0) + 1
    return f"100.{64 + (rank >> 16)}.{rank >> 8 & 0xFF}.{rank & 0xFF}"


def load_key(data_dir: Path) -> X25519PrivateKey:
    """Return the agent's key; made, and stored for its user alone, if there is none.

    Raises:
        OSError: it can't be stored.
    """
    path = data_dir / KEY_NAME
    try:
        stored = base64.b64decode(path.read_bytes(), validate=True)
    except (FileNotFoundError, ValueError):
        stored = b""
    if len(stored) == _KEY_BYTES:
        return X25519PrivateKey.from_private_bytes(stored)
    key = X25519PrivateKey.generate()
    replace_file(path, base64.b64encode(_private_bytes(key)))
    return key


def public_text(key: X25519PrivateKey) -> str:
    """Return the public key, as WireGuard's tools write it."""
    return base64.b64encode(key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)).decode()


def kernel_has_wireguard(links: IPRoute) -> bool:
    """Return whether the kernel makes such interfaces; tried in a namespace that ends."""
    try:
        links.link("add", ifname=INTERFACE, kind="wireguard")
    except NetlinkError:
        return False
    return True


def program_path() -> str | None:
    """Return the program for kernels without WireGuard."""
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        return None
    return which(PROGRAM, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


class Tunnels:
    """The tunnels of one agent.

    Args:
        owner: the appliance's id.
        key: the agent's.
        underlay: the namespace of the sockets.
        is_in_kernel: whether the kernel has WireGuard.
    """

    def __init__(
        self,
        owner: str,
        key: X25519PrivateKey,
        underlay: Callable[[], int],
        *,
        is_in_kernel: bool,
    ) -> None:
        self._prefix = f"vdw{sha256(owner.encode()).hexdigest()[:4]}"
        self._key = key
        self._underlay = underlay
        self._is_in_kernel = is_in_kernel

    def ensure(
        self,
        underlay: IPRoute,
        links: IPRoute,
        switch: int,
        *,
        gang_id: str,
        port: int,
        inner: str,
        peers: Sequence[Peer],
        mtu: int,
    ) -> None:
        """Make the tunnel of a gang, or change its peers.

        Args:
            underlay: netlink of the sockets' namespace.
            links: netlink of the switch.
            switch: the switch's namespace.
            gang_id: the gang.
            port: the UDP port.
            inner: the own address in it.
            peers: the other appliances.
            mtu: the largest packet in it.

        Raises:
            NetworkError: it can't be made.
        """
        name = f"{self._prefix}{sha256(gang_id.encode()).hexdigest()[:8]}"
        index = index_of(links, INTERFACE)
        if index is None:
            if self._is_in_kernel:
                underlay.link("add", ifname=INTERFACE, kind="wireguard", net_ns_fd=switch)
            else:
                self._start_program(underlay, name, switch)
            index = index_of(links, INTERFACE)
        if index is None:
            raise NetworkError("The WireGuard interface was not made.")
        if self._is_in_kernel:
            self._configure_kernel(switch, port, peers)
        else:
            self._configure_program(name, port, peers)
        try:
            links.addr("add", index=index, address=inner, prefixlen=PREFIX_LENGTH)
        except NetlinkError as error:
            if error.code != errno.EEXIST:
                raise
        for entry in links.get_addr(index=index):
            if entry.get("address") != inner and entry["family"] == socket.AF_INET:
                links.addr(
                    "del", index=index, address=entry.get("address"), prefixlen=PREFIX_LENGTH
                )
        links.link("set", index=index, mtu=mtu, state="up")

    def remove_strays(self, underlay: IPRoute) -> None:
        """Remove interfaces that an agent was killed before it could move them."""
        for link in underlay.get_links():
            if str(link.get("ifname")).startswith(self._prefix):
                underlay.link("del", index=link["index"])

    def _start_program(self, underlay: IPRoute, name: str, switch: int) -> None:
        program = program_path()
        if program is None:
            raise NetworkError(f"{PROGRAM} is not installed, and the kernel has no WireGuard.")
        self.remove_strays(underlay)
        # It would fail if the interface were moved while it starts: its own background mode does
        # not wait for that.
        command = ["/bin/sh", "-c", '"$0" -f "$1" >/dev/null 2>&1 &', program, name]
        with entered(self._underlay()):
            started = subprocess.Popen(  # noqa: S603 - words of this module
                command,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "WG_PROCESS_FOREGROUND": "1"},
                start_new_session=True,
            )
        started.wait()
        _ask(name, ["get=1"])
        index = index_of(underlay, name)
        if index is None:
            raise NetworkError(f"{PROGRAM} made no interface.")
        underlay.link("set", index=index, net_ns_fd=switch, ifname=INTERFACE)

    def _configure_kernel(self, switch: int, port: int, peers: Sequence[Peer]) -> None:
        with entered(switch):
            wireguard = WireGuard()
        try:
            wireguard.set(
                INTERFACE,
                private_key=base64.b64encode(_private_bytes(self._key)).decode(),
                listen_port=port,
                replace_peers=True,
            )
            for peer in peers:
                fields = {
                    "public_key": peer.public_key,
                    "endpoint_addr": peer.address,
                    "endpoint_port": port,
                    "persistent_keepalive": KEEPALIVE_SECONDS,
                    "allowed_ips": [f"{peer.inner}/32"],
                }
                wireguard.set(INTERFACE, peer=fields)
        finally:
            wireguard.close()

    def _configure_program(self, name: str, port: int, peers: Sequence[Peer]) -> None:
        """Set all by the protocol of userspace programs.

        Source: WireGuard, "Cross-platform Userspace Implementation", configuration protocol.
        """
        lines = ["set=1", f"private_key={_private_bytes(self._key).hex()}", f"listen_port={port}"]
        lines.append("replace_peers=true")
        for peer in peers:
            lines += [
                f"public_key={base64.b64decode(peer.public_key).hex()}",
                f"endpoint={peer.address}:{port}",
                f"persistent_keepalive_interval={KEEPALIVE_SECONDS}",
                "replace_allowed_ips=true",
                f"allowed_ip={peer.inner}/32",
            ]
        answer = _ask(name, lines)
        if answer[-1] != "errno=0":
            raise NetworkError(f"{PROGRAM} refused the configuration: {answer[-1]}.")


def _ask(name: str, lines: Sequence[str]) -> Sequence[str]:
    """Return the program's answer, once it has started."""
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            with socket.socket(socket.AF_UNIX) as control:
                control.settimeout(_START_SECONDS)
                control.connect(str(SOCKETS / f"{name}.sock"))
                control.sendall("\n".join([*lines, "", ""]).encode())
                with control.makefile() as answer:
                    return [line.strip() for line in iter(answer.readline, "\n") if line]
        except OSError as error:
            if time.monotonic() > deadline:
                raise NetworkError(f"{PROGRAM} does not answer: {error}.") from error
        time.sleep(_POLL_SECONDS)


def _private_bytes(key: X25519PrivateKey) -> bytes:
    return key.private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption())
