"""Names of OpenTelemetry's metrics and attributes as Prometheus writes them.

Source: https://opentelemetry.io/docs/specs/otel/compatibility/prometheus_and_openmetrics/
"""

import re
from collections.abc import Mapping
from functools import lru_cache

_OTHER = re.compile(r"[^a-zA-Z0-9_:]")
_ANNOTATION = re.compile(r"\{[^}]*\}")
_UNITS = {
    "d": "days",
    "h": "hours",
    "min": "minutes",
    "s": "seconds",
    "ms": "milliseconds",
    "us": "microseconds",
    "ns": "nanoseconds",
    "By": "bytes",
    "KiBy": "kibibytes",
    "MiBy": "mebibytes",
    "GiBy": "gibibytes",
    "kBy": "kilobytes",
    "MBy": "megabytes",
    "GBy": "gigabytes",
    "bit": "bits",
    "m": "meters",
    "V": "volts",
    "A": "amperes",
    "J": "joules",
    "W": "watts",
    "Cel": "celsius",
    "Hz": "hertz",
    "%": "percent",
}
# Attributes of a resource that are labels of their own name in Prometheus.
_RENAMED = {"service.name": "job", "service.instance.id": "instance", "host.name": "host"}
# What describes the program rather than the source of samples: each new run would be a series.
_LEFT_OUT = ("telemetry.", "process.", "os.")


@lru_cache(maxsize=10_000)
def metric_name(name: str, unit: str, *, is_total: bool, is_ratio: bool) -> str:
    """Return the name of a metric, with its unit; `_total` for a sum that only grows."""
    words = _OTHER.sub("_", name).strip("_") or "_"
    plain_unit = _ANNOTATION.sub("", unit).strip()
    base, _, per = plain_unit.partition("/")
    suffixes = [_UNITS.get(base, "")]
    if per:
        suffixes.append("per_" + _UNITS.get(per, per).rstrip("s"))
    if is_ratio and plain_unit == "1":
        suffixes.append("ratio")
    words = words.removesuffix("_total") if is_total else words
    for suffix in filter(None, suffixes):
        if not words.endswith(f"_{suffix}"):
            words += f"_{_OTHER.sub('_', suffix)}"
    words += "_total" if is_total else ""
    return f"_{words}" if words[0].isdigit() else words


@lru_cache(maxsize=10_000)
def label_name(name: str) -> str:
    """Return the name of a label."""
    words = _OTHER.sub("_", name).replace(":", "_")
    return f"key_{words}" if words[:1].isdigit() else words


def resource_labels(attributes: Mapping[str, str]) -> dict[str, str]:
    """Return the labels that the attributes of a resource give to each of its samples."""
    labels = {
        _RENAMED.get(name) or label_name(name): value
        for name, value in attributes.items()
        if not name.startswith(_LEFT_OUT)
    }
    namespace = attributes.get("service.namespace")
    if namespace and "job" in labels:
        labels["job"] = f"{namespace}/{labels['job']}"
    return labels
