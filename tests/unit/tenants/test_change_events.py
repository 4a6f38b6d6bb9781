"""Differences between two heartbeats that make events."""

from typing import Any

import pytest

from protocol.health import ApplianceHealth, GPUHealth, HealthFinding, HealthState
from protocol.inventory import GPUInfo, Inventory
from tenants.fleet.change_events import KnownState, change_events_of
from tenants.fleet.events import EventKind
from tenants.fleet.states import SKEW_LIMIT_SECONDS

GIB = 1024**3


def gpu(index: int, model: str = "H100") -> GPUInfo:
    return GPUInfo(index=index, uuid=f"GPU-{index}", model=model, memory_bytes=80 * GIB)


def inventory(*gpus: GPUInfo, **facts: Any) -> Inventory:  # noqa: ANN401 - fields of Inventory
    values = {"hostname": "gpu-01", "memory_bytes": 512 * GIB, **facts}
    return Inventory(gpus=list(gpus), **values)


def health(state: str, *findings: tuple[str, str]) -> ApplianceHealth:
    """Return health whose findings are all of GPU 3."""
    failed = HealthState.FAILED
    listed = [HealthFinding(reason=why, state=failed, detail=text) for why, text in findings]
    summary = HealthFinding(reason="gpu_failed", state=HealthState(state), detail="a GPU failed")
    gpu3 = GPUHealth(index=3, uuid="GPU-3", state=failed, findings=listed)
    return ApplianceHealth(state=HealthState(state), findings=[summary], gpus=[gpu3])


def known_state(**changes: Any) -> KnownState:  # noqa: ANN401 - the fields of Known
    values: dict[str, Any] = {
        "inventory": inventory(gpu(0)),
        "health": None,
        "agent_version": "1.0",
        "clock_skew_seconds": 0.1,
    }
    return KnownState(**{**values, **changes})


def reported(before: KnownState, after: KnownState) -> list[tuple[EventKind, str]]:
    return [(event.kind, event.message) for event in change_events_of(before, after)]


def test_the_same_again_makes_no_event() -> None:
    same = known_state(health=health("failed", ("xid_fatal", "XID 79")))
    assert change_events_of(same, same) == []


def test_a_first_heartbeat_makes_no_event() -> None:
    blank = KnownState(None, None, "", None)
    assert (
        change_events_of(blank, known_state(health=ApplianceHealth(state=HealthState.HEALTHY)))
        == []
    )


def test_a_missing_and_a_new_gpu_are_named() -> None:
    before = known_state(inventory=inventory(gpu(0), gpu(1)))
    after = known_state(inventory=inventory(gpu(0), gpu(2, "H200")))
    (event,) = change_events_of(before, after)
    assert event.kind is EventKind.INVENTORY
    assert event.message == "Missing: GPU 1 (H100). New: GPU 2 (H200)."
    assert event.details == {"missing_gpus": ["GPU-1"], "new_gpus": ["GPU-2"]}


def test_of_many_missing_gpus_four_are_named() -> None:
    before = known_state(inventory=inventory(*map(gpu, range(8))))
    ((_, message),) = reported(before, known_state(inventory=inventory()))
    assert message.endswith("GPU 3 (H100) and 4 more.")


def test_another_driver_and_less_memory_are_reported() -> None:
    before = known_state(inventory=inventory(driver_version="550.1"))
    after = known_state(inventory=inventory(driver_version="560.2", memory_bytes=256 * GIB))
    ((_, message),) = reported(before, after)
    assert message == "GPU driver: 560.2; was 550.1. Memory: 256 GiB; was 512 GiB."


def test_a_little_less_memory_makes_no_event() -> None:
    after = known_state(inventory=inventory(gpu(0), memory_bytes=511 * GIB))
    assert change_events_of(known_state(), after) == []


def test_an_unknown_inventory_makes_no_event() -> None:
    assert change_events_of(known_state(inventory=None), known_state()) == []


def test_another_boot_id_is_a_reboot() -> None:
    before, after = (
        known_state(inventory=inventory(gpu(0), boot_id=boot_id)) for boot_id in ("a", "b")
    )
    assert reported(before, after) == [(EventKind.REBOOT, "The host was rebooted.")]
    assert change_events_of(known_state(), after) == []


def test_another_version_of_the_agent_is_reported() -> None:
    expected = [(EventKind.AGENT, "Agent version: 1.1; was 1.0.")]
    assert reported(known_state(), known_state(agent_version="1.1")) == expected


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (None, "failed", "Health changed to failed: GPU 3: XID 79."),
        ("healthy", "failed", "Health changed to failed: GPU 3: XID 79."),
        ("failed", "healthy", "Health changed to healthy."),
        ("failed", None, "The agent no longer reports health."),
    ],
)
def test_a_change_of_health_says_which_way_and_why(
    before: str | None, after: str | None, message: str
) -> None:
    def of(state: str | None) -> ApplianceHealth | None:
        findings = [("xid_fatal", "XID 79")] if state == "failed" else []
        return None if state is None else health(state, *findings)

    events = reported(known_state(health=of(before)), known_state(health=of(after)))
    assert events == [(EventKind.HEALTH, message)]


def test_a_new_and_a_resolved_finding_are_reported_in_the_same_state() -> None:
    first = known_state(health=health("failed", ("xid_fatal", "XID 79")))
    second = known_state(
        health=health("failed", ("xid_fatal", "XID 79"), ("remap_failed", "row remap"))
    )
    assert (
        reported(first, second)[0][1] == "Health is still failed, new findings: GPU 3: row remap."
    )
    assert (
        reported(second, first)[0][1]
        == "Health is still failed, resolved findings: GPU 3: row remap."
    )


def test_another_wording_of_the_same_finding_makes_no_event() -> None:
    before = known_state(health=health("failed", ("xid_fatal", "XID 79, 3 s ago")))
    after = known_state(health=health("failed", ("xid_fatal", "XID 79, 13 s ago")))
    assert change_events_of(before, after) == []


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (None, 7.5, "The clock is 7.5 s ahead of the portal's. Check the time service."),
        (1.0, -61.0, "The clock is 61.0 s behind the portal's. Check the time service."),
        (-61.0, 0.2, "The clock is within 2.5 s of the portal's again."),
    ],
)
def test_a_clock_that_goes_wrong_or_right_is_reported_once(
    before: float | None, after: float, message: str
) -> None:
    is_off = before is not None and abs(before) > SKEW_LIMIT_SECONDS
    old = known_state(clock_skew_seconds=before, is_clock_reported_skewed=is_off)
    new = known_state(clock_skew_seconds=after, is_clock_reported_skewed=not is_off)
    assert reported(old, new) == [(EventKind.CLOCK, message)]
    assert change_events_of(new, new) == []


@pytest.mark.parametrize(
    ("before", "after", "is_told_off"),
    [(5.1, 4.9, True), (4.9, 5.1, True), (2.4, 4.9, False), (4.9, 2.4, False)],
)
def test_a_clock_around_the_limit_is_not_reported_repeatedly(
    before: float, after: float, *, is_told_off: bool
) -> None:
    old = known_state(clock_skew_seconds=before, is_clock_reported_skewed=is_told_off)
    assert change_events_of(old, known_state(clock_skew_seconds=after)) == []
