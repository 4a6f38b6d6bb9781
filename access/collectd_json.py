"""collectd's JSON format: an array of value lists, or of notifications.

Source: format_json.c of collectd 5.12.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import msgspec

from access.collectd_values import Notification, ValueFaultError, ValueList, time_ns_of
from access.errors import BadRequestError
from core.clock import to_ns

_KINDS = frozenset({"gauge", "derive", "counter", "absolute"})
_ALERT_PREFIX = "collectd_"
# Labels that are the same for all plugins; any other is the plugin's name.
_COMMON_LABELS = frozenset({"alertname", "instance", "severity", "service", "type"})


class _Values(msgspec.Struct):
    values: list[float | None]
    dstypes: list[str]
    dsnames: list[str]
    time: float
    plugin: str
    type: str
    host: str = ""
    interval: float = 0.0
    plugin_instance: str = ""
    type_instance: str = ""


class _Alert(msgspec.Struct):
    labels: dict[str, str]
    annotations: dict[str, Any] = {}
    startsAt: datetime | None = None  # noqa: N815 - collectd's spelling


def read_json(
    body: bytes, *, now_ns: int
) -> Iterator[tuple[int, ValueList | Notification | ValueFaultError]]:
    """Yield each item of the array by its position, read or with what is wrong with it.

    Raises:
        BadRequestError: the body is no JSON array.
    """
    try:
        items = msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise BadRequestError(f"The body is not JSON: {error}.", code="bad_json") from error
    if not isinstance(items, list):
        raise BadRequestError(
            "The body is no array of value lists, as collectd's write_http sends with "
            'Format "JSON".',
            code="bad_json",
        )
    for position, item in enumerate(items):
        try:
            yield position, _read(item, now_ns=now_ns)
        except msgspec.ValidationError as error:
            yield position, ValueFaultError(str(error).replace("`", ""))
        except ValueFaultError as error:
            yield position, error


def _read(item: object, *, now_ns: int) -> ValueList | Notification:
    if isinstance(item, dict) and "labels" in item:
        return _notification(msgspec.convert(item, _Alert), now_ns=now_ns)
    found = msgspec.convert(item, _Values)
    if not found.plugin or not found.type:
        raise ValueFaultError("plugin or type is empty")
    if not 0 < len(found.values) == len(found.dsnames) == len(found.dstypes):
        raise ValueFaultError(
            f"there are {len(found.values)} values, {len(found.dsnames)} dsnames and "
            f"{len(found.dstypes)} dstypes; one of each belongs together"
        )
    unknown = set(found.dstypes) - _KINDS
    if unknown:
        raise ValueFaultError(f"dstype {min(unknown)[:50]!r} is not known")
    return ValueList(
        host=found.host,
        plugin=found.plugin,
        plugin_instance=found.plugin_instance,
        type=found.type,
        type_instance=found.type_instance,
        time_ns=time_ns_of(found.time),
        interval_seconds=found.interval,
        sources=tuple(zip(found.dsnames, found.dstypes, strict=True)),
        numbers=tuple(found.values),
    )


def _notification(alert: _Alert, *, now_ns: int) -> Notification:
    """Read an alert: the label named like the plugin holds an instance, `type` the other one."""
    labels, notes = alert.labels, alert.annotations
    plugin = next((name for name in labels if name not in _COMMON_LABELS), "")
    severity = labels.get("severity") or str(notes.get("severity", ""))
    starts_at = alert.startsAt
    is_exact = starts_at is not None and starts_at.tzinfo is not None
    return Notification(
        host=labels.get("instance", ""),
        severity=severity.lower() or "unknown",
        message=str(notes.get("summary", "")),
        time_ns=to_ns(starts_at) if starts_at is not None and is_exact else now_ns,
        tags={
            "alert": labels.get("alertname", "").removeprefix(_ALERT_PREFIX),
            "plugin": plugin,
            "instance": labels.get(plugin, ""),
            "type_instance": labels.get("type", ""),
        },
    )
