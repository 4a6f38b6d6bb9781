"""Traffic of network interfaces (`/proc/net/dev`)."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from plugins.base import Metric, PluginContext, PluginTraits, rates
from plugins.procfs import NameFilter, ProcFile
from plugins.rates import CounterRates
from timeseries.points import Point

HEADER_LINES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkConfig:
    """What to leave out.

    Attributes:
        skip_interfaces: shell patterns; containers' virtual pairs come and go by the hundred.
    """

    skip_interfaces: tuple[str, ...] = ("lo", "veth*", "cali*", "br-*", "docker0", "virbr*")


class NetworkPlugin:
    """Rates of each interface since the last reading; the first reading gives none."""

    name: ClassVar[str] = "network"
    config_class: ClassVar[type] = NetworkConfig
    traits: ClassVar[PluginTraits] = PluginTraits()
    metrics: ClassVar[tuple[Metric, ...]] = rates(
        {
            "received_bytes_per_second": ("bytes per second", "bytes received"),
            "sent_bytes_per_second": ("bytes per second", "bytes sent"),
            "received_packets_per_second": ("per second", "packets received"),
            "sent_packets_per_second": ("per second", "packets sent"),
            "errors_per_second": ("per second", "packets damaged, both ways"),
            "drops_per_second": ("per second", "packets dropped, both ways"),
        }
    )

    def __init__(self, config: NetworkConfig, context: PluginContext) -> None:
        # A link to the reader's own network namespace, which is the host's.
        self._dev = ProcFile(context.proc / "net" / "dev")
        self._filter = NameFilter(config.skip_interfaces)
        self._rates = CounterRates()

    def gather(self, now: datetime) -> Iterable[Point]:
        """Return a point for each interface that has been read before."""
        return self._rates.points("network", "interface", self._counters(), now=now)

    def close(self) -> None:
        """Close `/proc/net/dev`."""
        self._dev.close()

    def _counters(self) -> dict[str, dict[str, float]]:
        found = {}
        for line in self._dev.read().split(b"\n")[HEADER_LINES:-1]:
            name, _, columns = line.rpartition(b":")
            if interface := self._filter.tag(name.lstrip()):
                found[interface] = _interface_counters(columns.split())
        return found


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
