"""The names of metrics and tags as Prometheus writes them, and back.

`gpu.utilization_percent` is `gpu_utilization_percent`, and the field `value` of an ingested series
is left off: `node_load1.value` is `node_load1`. Characters that Prometheus does not have are `_`.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache

VALUE_FIELD = "value"
_UNSAFE_IN_METRICS = re.compile(r"[^A-Za-z0-9_:]")
_UNSAFE_IN_LABELS = re.compile(r"[^A-Za-z0-9_]")


def metric_name(measurement: str, field: str) -> str:
    """Return the name of a field in PromQL."""
    name = measurement if field == VALUE_FIELD else f"{measurement}_{field}"
    return _safe(_UNSAFE_IN_METRICS, name)


@lru_cache(maxsize=4_096)
def label_name(tag: str) -> str:
    """Return the name of a tag in PromQL."""
    return _safe(_UNSAFE_IN_LABELS, tag)


def fields_of_metric(
    name: str,
    measurements: Iterable[str],
    fields_of: Callable[[str], Mapping[str, str]],
) -> Iterator[tuple[str, str]]:
    """Yield the measurements and fields whose name in PromQL is this one.

    Args:
        name: the name, such as `gpu_utilization_percent`.
        measurements: those that exist.
        fields_of: returns the fields of a measurement with their types.
    """
    for measurement in measurements:
        prefix = metric_name(measurement, VALUE_FIELD)
        if name == prefix or name.startswith(f"{prefix}_"):
            for field in fields_of(measurement):
                if metric_name(measurement, field) == name:
                    yield measurement, field


def likely_measurements(name: str) -> list[str]:
    """Return the measurements that a metric of this name is of, if none has other characters."""
    ends = [at for at, character in enumerate(name) if character == "_" and at]
    return [name[:end] for end in [*ends, len(name)]]


def _safe(unsafe: re.Pattern[str], name: str) -> str:
    text = unsafe.sub("_", name)
    return f"_{text}" if text[:1].isdigit() else text
