"""Traffic of network interfaces (`/proc/net/dev`), and whether their links are up."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from plugins.base import PluginContext, flags, rates
from plugins.procfs import NameFilter, ProcPlugin
from timeseries.points import FieldValue, Point

HEADER_LINES = 2
# Source: the kernel's Documentation/networking/operstates.rst. Others say nothing, such as the
# `unknown` of tunnels.
_LINK_STATES = {"up": 1, "down": 0, "lowerlayerdown": 0, "notpresent": 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkConfig:
    """The interfaces to skip.

    Attributes:
        skip_interfaces: shell patterns; the defaults exclude container interfaces.
    """

    skip_interfaces: tuple[str, ...] = ("lo", "veth*", "cali*", "br-*", "docker0", "virbr*")


class NetworkPlugin(ProcPlugin):
    """Rates of each interface since the last reading, and its link; none at the first."""

    name = "network"
    paths = ("net/dev",)  # of the network namespace of the reader, which is the host's
    config_class = NetworkConfig
    metrics = (
        *flags(link_up="the link is up; absent where the kernel does not know"),
        *rates(
            received_bytes_per_second=("bytes per second", "bytes received"),
            sent_bytes_per_second=("bytes per second", "bytes sent"),
            received_packets_per_second=("per second", "packets received"),
            sent_packets_per_second=("per second", "packets sent"),
            errors_per_second=("per second", "receive and transmit errors"),
            drops_per_second=("per second", "dropped packets, both directions"),
        ),
    )

    def __init__(self, config: NetworkConfig, context: PluginContext) -> None:
        super().__init__(config, context)
        self._filter = NameFilter(config.skip_interfaces)
        self._folder = context.sys / "class/net"

    def gather(self, now: datetime) -> Iterable[Point]:
        """Return a point for each interface that has been read before."""
        points = self._rates.points("network", "interface", self._counters(), now=now)
        return [
            replace(point, fields={**self._link(point.tags["interface"]), **point.fields})
            for point in points
        ]

    def _link(self, interface: str) -> dict[str, FieldValue]:
        try:
            state = (self._folder / interface / "operstate").read_text("ascii").strip()
        except (OSError, ValueError):
            return {}
        return {"link_up": _LINK_STATES[state]} if state in _LINK_STATES else {}

    def _counters(self) -> dict[str, dict[str, float]]:
        counters = {}
        for line in self.read("net/dev").split(b"\n")[HEADER_LINES:-1]:
            name, _, columns = line.rpartition(b":")
            if interface := self._filter.tag(name.lstrip()):
                counters[interface] = _interface_counters(columns.split())
        return counters


def _interface_counters(columns: list[bytes]) -> dict[str, float]:
    """Return the counters of one interface.

    Source: the kernel's net/core/net-procfs.c, `dev_seq_printf_stats`.
    """
    received_bytes, received_packets, receive_errors, receive_drops = map(int, columns[:4])
    sent_bytes, sent_packets, send_errors, send_drops = map(int, columns[8:12])
    return {
        "received_bytes_per_second": received_bytes,
        "sent_bytes_per_second": sent_bytes,
        "received_packets_per_second": received_packets,
        "sent_packets_per_second": sent_packets,
        "errors_per_second": receive_errors + send_errors,
        "drops_per_second": receive_drops + send_drops,
    }
