"""News: what a heartbeat tells of an appliance that was otherwise before.

Inventory and health come as the JSON that is stored (`jobqueue.executors.wire.Inventory` and
`jobqueue.executors.health.ApplianceHealth`), of this agent's age or another: every key may be
missing.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from core.units import format_value
from tenants.fleet.events import EventKind
from tenants.fleet.life import SKEW_RIGHT_SECONDS, is_clock_right, is_skewed
from tenants.models import HealthState

# They count what the findings of the GPUs say one by one.
_SUMMARIES: Final = frozenset({"gpu_failed", "gpu_degraded"})
_RANKS: Final = {state.value: rank for rank, state in enumerate(HealthState)}
_TOLD_CHANGES: Final = (
    ("hostname", "Host name"), ("os", "System"), ("kernel", "Kernel"),
    ("driver_version", "GPU driver"), ("serial", "Serial number"),
)  # fmt: skip
# What the kernel keeps for itself differs a little from boot to boot.
_MEMORY_CHANGE_RATIO: Final = 0.02
_MOST_NAMED: Final = 4


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of an appliance by one heartbeat.

    `is_clock_told_off` says whether the last that was told of its clock is that it is off.
    """

    inventory: Mapping[str, Any]
    health: Mapping[str, Any] | None
    agent_version: str
    clock_skew_seconds: float | None
    is_clock_told_off: bool = False


@dataclass(frozen=True, slots=True)
class News:
    """One event to come."""

    kind: EventKind
    message: str
    details: dict[str, Any] = field(default_factory=dict)


def news_of(before: Known, after: Known) -> list[News]:
    """Return what changed from one heartbeat to the next, apart from the silence between."""
    return [
        *_reboot(before.inventory, after.inventory),
        *_agent(before.agent_version, after.agent_version),
        *_inventory(before.inventory, after.inventory),
        *_health(before.health, after.health),
        *_clock(before, after.clock_skew_seconds),
    ]


def may_tell_of_clock(before: float | None, after: float | None) -> bool:
    """Whether news of the clock are possible, for which it must be known what was told last."""
    return (is_skewed(before), is_clock_right(before)) != (is_skewed(after), is_clock_right(after))


def span_words(span: timedelta) -> str:
    """Return a length of time in its largest unit, such as `12 min`."""
    seconds = max(0, int(span.total_seconds()))
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def _reboot(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[News]:
    old, new = before.get("boot_id"), after.get("boot_id")
    if old and new and old != new:
        yield News(EventKind.REBOOT, "The host was started anew.")


def _agent(before: str, after: str) -> Iterator[News]:
    if before and after and before != after:
        message = f"Its agent is version {after} now; it was {before}."
        yield News(EventKind.AGENT, message, {"before": before, "after": after})


def _inventory(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[News]:
    if not before or not after:
        return
    old, new = _gpus(before), _gpus(after)
    missing = [gpu for uuid, gpu in old.items() if uuid not in new]
    added = [gpu for uuid, gpu in new.items() if uuid not in old]
    parts = [f"Missing: {_gpu_names(missing)}."] if missing else []
    parts += [f"New: {_gpu_names(added)}."] if added else []
    parts += _told_changes(before, after)
    if parts:
        details = {
            "missing_gpus": [gpu["uuid"] for gpu in missing],
            "new_gpus": [gpu["uuid"] for gpu in added],
        }
        yield News(EventKind.INVENTORY, " ".join(parts), details)


def _told_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    for key, name in _TOLD_CHANGES:
        old, new = before.get(key), after.get(key)
        if old and new and old != new:
            yield f"{name}: {new}; was {old}."
    old_bytes, new_bytes = before.get("memory_bytes") or 0, after.get("memory_bytes") or 0
    if old_bytes and abs(new_bytes - old_bytes) > _MEMORY_CHANGE_RATIO * old_bytes:
        yield f"Memory: {_size(new_bytes)}; was {_size(old_bytes)}."


def _size(size_bytes: float) -> str:
    return format_value("size_bytes", size_bytes)


def _gpus(inventory: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    told = inventory.get("gpus")
    gpus = [gpu for gpu in told if isinstance(gpu, Mapping)] if isinstance(told, list) else []
    return {gpu["uuid"]: gpu for gpu in gpus if gpu.get("uuid")}


def _gpu_names(gpus: list[Mapping[str, Any]]) -> str:
    named = [
        f"GPU {gpu.get('index', '?')} ({gpu.get('model') or gpu['uuid']})"
        for gpu in gpus[:_MOST_NAMED]
    ]
    rest = len(gpus) - len(named)
    return ", ".join(named) + (f" and {rest} more" if rest else "")


def _health(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> Iterator[News]:
    old, new = _findings(before), _findings(after)
    came = [text for key, text in new.items() if key not in old]
    went = [text for key, text in old.items() if key not in new]
    old_state, new_state = _state(before), _state(after)
    is_first_good = before is None and new_state == HealthState.HEALTHY
    if is_first_good or (old_state == new_state and not came and not went):
        return
    message = _health_words(old_state, new_state, came=came, went=went)
    details = {"before": old_state, "after": new_state, "reasons": came}
    yield News(EventKind.HEALTH, message, details)


def _health_words(
    before: str | None, after: str | None, *, came: list[str], went: list[str]
) -> str:
    if after is None:
        return "Its agent tells its health no more."
    rank, former = _RANKS.get(after, 0), _RANKS.get(before or "", 0)
    if rank > former:
        return _listed(f"Worse: {after} now", came)
    if rank < former:
        return _listed(f"Better: {after} now", came)
    if came:
        return _listed(f"Worse: still {after}, and now", came)
    return _listed(f"Better: still {after}, but no more", went)


def _listed(head: str, texts: list[str]) -> str:
    named = [text.rstrip(".") for text in texts[:_MOST_NAMED]]
    rest = len(texts) - len(named)
    more = f"; and {rest} more" if rest else ""
    return f"{head}: {'; '.join(named)}{more}." if named else f"{head}."


def _state(health: Mapping[str, Any] | None) -> str | None:
    return None if health is None else str(health["state"])


def _findings(health: Mapping[str, Any] | None) -> dict[tuple[str, str, str], str]:
    """Return the findings' texts by place, reason and state."""
    told = health or {}
    found = {
        ("", one["reason"], one["state"]): str(one["detail"])
        for one in told.get("findings", ())
        if one["reason"] not in _SUMMARIES
    }
    for gpu in told.get("gpus", ()):
        place = f"GPU {gpu['index']}: " if gpu["index"] >= 0 else ""
        for one in gpu.get("findings", ()):
            found[gpu["uuid"], one["reason"], one["state"]] = f"{place}{one['detail']}"
    return found


def _clock(before: Known, after: float | None) -> Iterator[News]:
    if after is None or not may_tell_of_clock(before.clock_skew_seconds, after):
        return
    if before.is_clock_told_off and is_clock_right(after):
        message = f"Its clock is within {SKEW_RIGHT_SECONDS:g} s of the portal's again."
    elif not before.is_clock_told_off and is_skewed(after):
        where = "ahead of" if after > 0 else "behind"
        message = f"Its clock is {abs(after):.1f} s {where} the portal's. Check its time service."
    else:
        return
    details = {"skew_seconds": round(after, 3), "is_off": is_skewed(after)}
    yield News(EventKind.CLOCK, message, details)
