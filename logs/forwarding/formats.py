"""Lines as the bodies that targets take.

Sources: OTLP 1.x over HTTP with JSON (opentelemetry-proto, logs/v1); Loki's push API; the bulk API
of Elasticsearch and OpenSearch, with fields of the Elastic Common Schema; RFC 5424 with the octet
counting of RFC 6587.
"""

import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import groupby
from operator import itemgetter
from typing import Any

from protocol.lines import LogLevel

Line = dict[str, Any]
JSON_TYPE = "application/json"
NDJSON_TYPE = "application/x-ndjson"
# Severity numbers of OpenTelemetry's log data model.
_OTLP_NUMBERS = {
    LogLevel.DEBUG: 5,
    LogLevel.INFO: 9,
    LogLevel.WARNING: 13,
    LogLevel.ERROR: 17,
    LogLevel.CRITICAL: 21,
}
_SYSLOG_SEVERITIES = {
    LogLevel.DEBUG: 7,
    LogLevel.INFO: 6,
    LogLevel.WARNING: 4,
    LogLevel.ERROR: 3,
    LogLevel.CRITICAL: 2,
}
_USER_FACILITY, _KERNEL_FACILITY = 1, 0
# An enterprise number of the documentation (RFC 5612): there is no registered one.
_SD_ID = "vedette@32473"
_NOT_PRINTABLE = re.compile(r"[^\x21-\x7e]")


def otlp_body(lines: Sequence[Line]) -> bytes:
    """Return an ExportLogsServiceRequest in JSON, a resource for each host and service."""
    resources = []
    key = itemgetter("appliance_name", "service")
    for (host, service), group in groupby(sorted(lines, key=key), key=key):
        attributes = _attributes({"host.name": host, "service.name": service or "vedette"})
        records = [_otlp_record(line) for line in group]
        scope = {"scope": {"name": "vedette"}, "logRecords": records}
        resources.append({"resource": {"attributes": attributes}, "scopeLogs": [scope]})
    return json.dumps({"resourceLogs": resources}, ensure_ascii=False).encode()


def loki_body(lines: Sequence[Line]) -> bytes:
    """Return a push request, a stream for each set of labels."""
    streams: dict[tuple[str, ...], list[list[str]]] = {}
    for line in lines:
        labels = (line["source"], line["level"], line["appliance_name"], line["service"])
        streams.setdefault(labels, []).append([str(line["at_ns"]), line["text"]])
    names = ("source", "level", "appliance", "service_name")
    body = [
        {
            "stream": {name: text for name, text in zip(names, labels, strict=True) if text},
            "values": sorted(values),
        }
        for labels, values in streams.items()
    ]
    return json.dumps({"streams": body}, ensure_ascii=False).encode()


def bulk_body(lines: Sequence[Line]) -> bytes:
    """Return a bulk request; a line that is sent again has the same id, and is refused as there."""
    rows: list[dict[str, Any]] = []
    for line in lines:
        rows.append({"create": {"_id": line["id"]}})
        document = {
            "@timestamp": _rfc3339(line["at_ns"]),
            "message": line["text"],
            "log.level": line["level"],
            "host.name": line["appliance_name"],
            "service.name": line["service"],
            "event.kind": line["event"],
            "labels": {name: line[name] for name in ("source", "job_id", "subject") if line[name]},
        }
        rows.append({name: value for name, value in document.items() if value})
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def syslog_frames(lines: Sequence[Line]) -> bytes:
    """Return messages, each after its length in bytes."""
    frames = []
    for line in lines:
        message = _syslog_message(line)
        frames.append(b"%d %s" % (len(message), message))
    return b"".join(frames)


def _syslog_message(line: Line) -> bytes:
    facility = _KERNEL_FACILITY if line["unit"] == "kernel" else _USER_FACILITY
    priority = facility * 8 + _SYSLOG_SEVERITIES[LogLevel(line["level"])]
    head = (
        f"<{priority}>1 {_rfc3339(line['at_ns'])} {_header(line['appliance_name'], 255)} "
        f"{_header(line['service'], 48)} - {_header(line['event'], 32)} "
    )
    data = "".join(
        f' {name}="{_escaped(line[name])}"'
        for name in ("source", "job_id", "unit", "subject")
        if line[name]
    )
    text = line["text"].replace("\n", " ")
    return f"{head}[{_SD_ID}{data}] {text}".encode()


def _header(text: str, limit: int) -> str:
    return _NOT_PRINTABLE.sub("_", text)[:limit] or "-"


def _escaped(text: str) -> str:
    return re.sub(r'(["\\\]])', r"\\\1", text)


def _otlp_record(line: Line) -> dict[str, Any]:
    level = LogLevel(line["level"])
    names = ("source", "unit", "job_id", "event", "subject")
    return {
        "timeUnixNano": str(line["at_ns"]),
        "severityNumber": _OTLP_NUMBERS[level],
        "severityText": level.value.upper(),
        "body": {"stringValue": line["text"]},
        "attributes": _attributes({f"vedette.{name}": line[name] for name in names}),
    }


def _attributes(values: dict[str, str]) -> list[dict[str, Any]]:
    return [{"key": key, "value": {"stringValue": text}} for key, text in values.items() if text]


def _rfc3339(at_ns: int) -> str:
    seconds, nanoseconds = divmod(at_ns, 10**9)
    at = datetime.fromtimestamp(seconds, UTC)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{nanoseconds // 1000:06}Z"
