"""The roll-ups that each declared metric has."""

from collections.abc import Mapping

from timeseries.declared import DECLARED
from timeseries.store import Detail

_PERCENTILES: Mapping[str, frozenset[str]] = {
    "gpu": frozenset({"power_watts"}),
}
_MEANS: Mapping[str, frozenset[str]] = {
    "cpu": frozenset({"usage_percent"}),
    "disk": frozenset({"used_percent"}),
    "diskio": frozenset({"read_bytes_per_second", "written_bytes_per_second"}),
    "gpu": frozenset({"memory_used_percent", "temperature_celsius", "utilization_percent"}),
    "memory": frozenset({"used_percent"}),
    "network": frozenset({"received_bytes_per_second", "sent_bytes_per_second"}),
}


def detail_of(measurement: str, field: str) -> Detail:
    """Return how much of a field is rolled up, whether or not a rule reads it.

    What pages chart for all appliances at once has means by five minutes; samples of one appliance
    answer as fast as roll-ups.
    """
    if field in _PERCENTILES.get(measurement, ()):
        return Detail.PERCENTILES
    if field in _MEANS.get(measurement, ()):
        return Detail.MEANS
    declared = DECLARED.get(measurement)
    return Detail.HOURS if declared and field in declared.fields else Detail.NONE
