"""Change events: what differs between two heartbeats of an appliance."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from core.quantities import format_size
from protocol.health import ApplianceHealth, HealthState
from protocol.inventory import GPUInfo, Inventory
from tenants.fleet.events import EventKind
from tenants.fleet.states import SKEW_RIGHT_SECONDS, is_clock_right, is_skewed

# These count the findings of the GPUs, which are listed one by one.
_SUMMARIES: Final = frozenset({"gpu_failed", "gpu_degraded"})
_RANKS: Final = {state: rank for rank, state in enumerate(HealthState)}
_COMPARED: Final = {
    "hostname": "Host name",
    "os": "System",
    "kernel": "Kernel",
    "driver_version": "GPU driver",
    "cuda_version": "CUDA",
    "serial": "Serial number",
}
# The memory that the kernel reserves differs a little from boot to boot.
_MEMORY_CHANGE_RATIO: Final = 0.02
_MAX_LISTED: Final = 4


@dataclass(frozen=True, slots=True)
class KnownState:
    """The state of an appliance as of one heartbeat; None is unknown.

    `is_clock_reported_skewed`: whether the newest clock event reports a skewed clock.
    """

    inventory: Inventory | None
    health: ApplianceHealth | None
    agent_version: str
    clock_skew_seconds: float | None
    is_clock_reported_skewed: bool = False


@dataclass(frozen=True, slots=True)
class ChangeEvent:
    """An event to record."""

    kind: EventKind
    message: str
    details: dict[str, Any] = field(default_factory=dict)


def change_events_of(before: KnownState, after: KnownState) -> list[ChangeEvent]:
    """Return one event for each kind of change from one heartbeat to the next."""
    events = []
    was, now = before.agent_version, after.agent_version
    if was and now and was != now:
        details = {"before": was, "after": now}
        events.append(ChangeEvent(EventKind.AGENT, f"Agent version: {now}; was {was}.", details))
    old, new = before.inventory, after.inventory
    if old is not None and new is not None:
        if old.boot_id and new.boot_id and old.boot_id != new.boot_id:
            events.append(ChangeEvent(EventKind.REBOOT, "The host was rebooted."))
        events += _inventory(old, new)
    return [*events, *_health(before.health, after.health), *_clock(before, after)]


def may_report_clock(before: float | None, after: float | None) -> bool:
    """Return whether a clock event is possible, so that the last one must be read."""
    return (is_skewed(before), is_clock_right(before)) != (is_skewed(after), is_clock_right(after))


def _inventory(before: Inventory, after: Inventory) -> Iterator[ChangeEvent]:
    old = {gpu.uuid: gpu for gpu in before.gpus if gpu.uuid}
    new = {gpu.uuid: gpu for gpu in after.gpus if gpu.uuid}
    missing = [gpu for uuid, gpu in old.items() if uuid not in new]
    added = [gpu for uuid, gpu in new.items() if uuid not in old]
    parts = [f"Missing: {_gpu_names(missing)}."] if missing else []
    parts += [f"New: {_gpu_names(added)}."] if added else []
    parts += _other_changes(before, after)
    if parts:
        details = {
            "missing_gpus": [gpu.uuid for gpu in missing],
            "new_gpus": [gpu.uuid for gpu in added],
        }
        yield ChangeEvent(EventKind.INVENTORY, " ".join(parts), details)


def _other_changes(before: Inventory, after: Inventory) -> Iterator[str]:
    for name, label in _COMPARED.items():
        old, new = getattr(before, name), getattr(after, name)
        if old and new and old != new:
            yield f"{label}: {new}; was {old}."
    old_bytes, new_bytes = before.memory_bytes, after.memory_bytes
    if old_bytes and abs(new_bytes - old_bytes) > _MEMORY_CHANGE_RATIO * old_bytes:
        yield f"Memory: {format_size(new_bytes)}; was {format_size(old_bytes)}."


def _gpu_names(gpus: list[GPUInfo]) -> str:
    named = [f"GPU {gpu.index} ({gpu.model or gpu.uuid})" for gpu in gpus[:_MAX_LISTED]]
    unlisted_count = len(gpus) - len(named)
    return ", ".join(named) + (f" and {unlisted_count} more" if unlisted_count else "")


def _health(before: ApplianceHealth | None, after: ApplianceHealth | None) -> Iterator[ChangeEvent]:
    old, new = _findings(before), _findings(after)
    started = [text for key, text in new.items() if key not in old]
    resolved = [text for key, text in old.items() if key not in new]
    old_state = None if before is None else before.state
    new_state = None if after is None else after.state
    is_first_healthy = before is None and new_state is HealthState.HEALTHY
    if is_first_healthy or (old_state == new_state and not started and not resolved):
        return
    message = _health_message(old_state, new_state, started=started, resolved=resolved)
    details = {"before": old_state, "after": new_state, "reasons": started}
    yield ChangeEvent(EventKind.HEALTH, message, details)


def _health_message(
    before: HealthState | None,
    after: HealthState | None,
    *,
    started: list[str],
    resolved: list[str],
) -> str:
    if after is None:
        return "The agent no longer reports health."
    rank, former = _RANKS[after], _RANKS[before or HealthState.HEALTHY]
    if rank != former:
        return _listed(f"Health changed to {after}", started)
    if started:
        return _listed(f"Health is still {after}, new findings", started)
    return _listed(f"Health is still {after}, resolved findings", resolved)


def _listed(head: str, texts: list[str]) -> str:
    named = [text.rstrip(".") for text in texts[:_MAX_LISTED]]
    unlisted_count = len(texts) - len(named)
    suffix = f"; and {unlisted_count} more" if unlisted_count else ""
    return f"{head}: {'; '.join(named)}{suffix}." if named else f"{head}."


def _findings(health: ApplianceHealth | None) -> dict[tuple[str, str, str], str]:
    """Return the text of each finding by GPU, reason and state."""
    if health is None:
        return {}
    findings = {
        ("", finding.reason, finding.state.value): finding.detail
        for finding in health.findings
        if finding.reason not in _SUMMARIES
    }
    for gpu in health.gpus:
        place = f"GPU {gpu.index}: " if gpu.index >= 0 else ""
        for finding in gpu.findings:
            findings[gpu.uuid, finding.reason, finding.state.value] = f"{place}{finding.detail}"
    return findings


def _clock(before: KnownState, after: KnownState) -> Iterator[ChangeEvent]:
    skew = after.clock_skew_seconds
    if skew is None or not may_report_clock(before.clock_skew_seconds, skew):
        return
    if before.is_clock_reported_skewed and is_clock_right(skew):
        message = f"The clock is within {SKEW_RIGHT_SECONDS:g} s of the portal's again."
    elif not before.is_clock_reported_skewed and is_skewed(skew):
        where = "ahead of" if skew > 0 else "behind"
        message = f"The clock is {abs(skew):.1f} s {where} the portal's. Check the time service."
    else:
        return
    details = {"skew_seconds": round(skew, 3), "is_off": is_skewed(skew)}
    yield ChangeEvent(EventKind.CLOCK, message, details)
