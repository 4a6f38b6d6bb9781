"""Throughput between two members of a gang: VXLAN, and VXLAN in WireGuard, beside a bare veth.

Two namespaces with a pair of interfaces are the hosts; the same pair is the peer. A TCP connection
of plain sockets fills each path for some seconds, in turns, so that what else the machine does hits
all of them.
"""

import multiprocessing
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from ipaddress import IPv4Interface
from pathlib import Path
from secrets import token_hex

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from pyroute2 import IPRoute

from benchmarks.shared.document import Outcome, compared
from collector.gang_networks import links as interfaces
from collector.gang_networks.host import host_abilities
from collector.gang_networks.namespaces import entered, opened
from collector.gang_networks.wireguard import Peer, Tunnels, inner_address, public_text
from tests.servers import require_program

BARE, VXLAN, WIREGUARD = "bare_veth", "vxlan", "vxlan_in_wireguard"
PORT = 7000
CHUNK_BYTES = 256 * 1024
START_SECONDS = 20.0
MEGABIT = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How long a connection is filled, and how often."""

    seconds: float = 5.0
    repetitions: int = 5


FULL = Plan()
QUICK = Plan(seconds=1.0, repetitions=2)


def measure(plan: Plan, folder: Path) -> Outcome:
    """Fill each path in turns."""
    del folder
    host = host_abilities()
    with _paths(is_in_kernel=host.has_kernel_wireguard) as paths:
        readings = [
            {
                name: {"megabits_per_second": _throughput(*path, plan.seconds) / MEGABIT}
                for name, path in paths.items()
            }
            for _ in range(plan.repetitions)
        ]
    wireguard = "kernel" if host.has_kernel_wireguard else "wireguard-go"
    return Outcome(compared(readings, BARE), settings={"wireguard": wireguard})


@contextmanager
def _paths(*, is_in_kernel: bool) -> Iterator[dict[str, tuple[str, str, str]]]:
    """Yield the paths: the namespaces of sender and receiver, and the receiver's address."""
    mark = token_hex(3)
    hosts = [f"vdb{mark}h{number}" for number in (0, 1)]
    made = [*hosts, *(f"vdb{mark}{kind}{number}" for kind in "sten" for number in (0, 1))]
    with ExitStack() as stack:
        for name in made:
            _ip("netns", "add", name)
            stack.callback(_ip, "netns", "del", name)
        peer = ("type", "veth", "peer", "name", "eth0", "netns", hosts[1])
        _ip("-n", hosts[0], "link", "add", "eth0", *peer)
        for number, name in enumerate(hosts):
            _ip("-n", name, "addr", "add", f"192.0.2.{number + 1}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
        keys = [X25519PrivateKey.generate() for _ in hosts]
        for number in (0, 1):
            _connect(mark, number, keys, is_in_kernel=is_in_kernel)
        yield {
            BARE: (hosts[0], hosts[1], "192.0.2.2"),
            VXLAN: (f"vdb{mark}t0", f"vdb{mark}t1", "10.96.0.2"),
            WIREGUARD: (f"vdb{mark}n0", f"vdb{mark}n1", "10.96.0.2"),
        }


def _connect(mark: str, number: int, keys: list[X25519PrivateKey], *, is_in_kernel: bool) -> None:
    """Make both networks on a host.

    Its switch and member without a tunnel are the namespaces s and t, those with one e and n.
    """
    other = 1 - number
    with ExitStack() as stack:

        def at(kind: str) -> tuple[int, IPRoute]:
            path = Path("/run/netns") / f"vdb{mark}{kind}{number}"
            namespace = stack.enter_context(opened(path))
            return namespace, stack.enter_context(interfaces.links_of(namespace))

        host, underlay = at("h")
        for vni, (switch_kind, member_kind, name, mtu) in enumerate(
            (("s", "t", interfaces.PLAIN, 1450), ("e", "n", interfaces.ENCRYPTED, 1390)), 1
        ):
            (switch, links), (member, member_links) = at(switch_kind), at(member_kind)
            local, remote, below = f"192.0.2.{number + 1}", f"192.0.2.{other + 1}", underlay
            if name == interfaces.ENCRYPTED:
                inner = [inner_address([0]), inner_address([1])]
                tunnels = Tunnels(
                    f"{mark}{number}", keys[number], lambda: host, is_in_kernel=is_in_kernel
                )
                tunnels.ensure(
                    underlay,
                    links,
                    switch,
                    gang_id=mark,
                    port=24600,
                    inner=inner[number],
                    peers=[Peer(public_text(keys[other]), remote, inner[other])],
                    mtu=mtu + 50,
                )
                local, remote, below = inner[number], inner[other], links
            index = interfaces.add_vxlan(
                below, links, switch, name=name, vni=vni, port=20480 + vni, local=local, mtu=mtu
            )
            interfaces.set_forwarding(links, index, {remote: [other]})
            interfaces.add_member(
                links,
                member_links,
                member,
                port="member",
                rank=number,
                address=IPv4Interface(f"10.96.0.{number + 1}/16"),
                mtu=mtu,
            )


def _throughput(sender: str, receiver: str, address: str, seconds: float) -> float:
    """Return the bits a second of one connection, as the receiver counts them."""
    processes = multiprocessing.get_context("spawn")
    results: multiprocessing.Queue[float] = processes.Queue()
    receiving = processes.Process(target=_receive, args=(receiver, results))
    sending = processes.Process(target=_send, args=(sender, address, seconds))
    receiving.start()
    sending.start()
    bits_per_second = results.get(timeout=START_SECONDS + seconds + 30)
    sending.join()
    receiving.join()
    return bits_per_second


def _receive(namespace: str, results: "multiprocessing.Queue[float]") -> None:
    with opened(Path("/run/netns") / namespace) as descriptor, entered(descriptor):
        listener = socket.create_server(("", PORT))
    with listener:
        connection, _ = listener.accept()
    count, buffer = 0, bytearray(CHUNK_BYTES)
    began = time.perf_counter()
    with connection:
        while received := connection.recv_into(buffer):
            count += received
    results.put(8 * count / (time.perf_counter() - began))


def _send(namespace: str, address: str, seconds: float) -> None:
    data, deadline = bytes(CHUNK_BYTES), time.monotonic() + START_SECONDS
    while True:
        with opened(Path("/run/netns") / namespace) as descriptor, entered(descriptor):
            connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            connection.connect((address, PORT))
            break
        except OSError:
            connection.close()
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
    until = time.monotonic() + seconds
    with connection:
        while time.monotonic() < until:
            connection.sendall(data)


def _ip(*arguments: str) -> None:
    program = require_program("ip", package="iproute2")
    subprocess.run([program, *arguments], check=True)
