"""Traffic of network interfaces (`/proc/net/dev`)."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

import psutil

from plugins.base import Metric, PluginContext, matches_any, rates
from plugins.rates import CounterRates
from timeseries.points import Point


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
    is_simulated: ClassVar[bool] = False
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
        del context
        self._config = config
        self._rates = CounterRates()

    def gather(self, now: datetime) -> Iterable[Point]:
        """Return a point for each interface that has been read before."""
        return self._rates.points("network", "interface", self._counters(), now=now)

    def close(self) -> None:
        """Release nothing: psutil keeps nothing open."""

    def _counters(self) -> dict[str, dict[str, float]]:
        found = {}
        for interface, io in (psutil.net_io_counters(pernic=True, nowrap=False) or {}).items():
            if not matches_any(interface, self._config.skip_interfaces):
                found[interface] = {
                    "received_bytes_per_second": float(io.bytes_recv),
                    "sent_bytes_per_second": float(io.bytes_sent),
                    "received_packets_per_second": float(io.packets_recv),
                    "sent_packets_per_second": float(io.packets_sent),
                    "errors_per_second": float(io.errin + io.errout),
                    "drops_per_second": float(io.dropin + io.dropout),
                }
        return found
