"""What a heartbeat tells that is news."""

from datetime import timedelta
from typing import Any

import pytest

from tenants.fleet.events import EventKind
from tenants.fleet.life import SKEW_LIMIT_SECONDS
from tenants.fleet.news import Known, news_of, span_words

GIB = 1024**3


def gpu(index: int, model: str = "H100") -> dict[str, Any]:
    return {"index": index, "uuid": f"GPU-{index}", "model": model}


def inventory(*gpus: dict[str, Any], **facts: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    return {"hostname": "gpu-01", "memory_bytes": 512 * GIB, "gpus": list(gpus), **facts}


def health(state: str, *findings: tuple[str, str], gpu_state: str = "failed") -> dict[str, Any]:
    """Return health whose findings are all of GPU 3."""
    told = [{"reason": why, "state": gpu_state, "detail": text} for why, text in findings]
    return {
        "state": state,
        "findings": [{"reason": "gpu_failed", "state": state, "detail": "a GPU failed"}],
        "gpus": [{"index": 3, "uuid": "GPU-3", "state": gpu_state, "findings": told}],
    }


def known(**changes: Any) -> Known:  # noqa: ANN401 - the fields of Known
    values: dict[str, Any] = {
        "inventory": inventory(gpu(0)), "health": None, "agent_version": "1.0",
        "clock_skew_seconds": 0.1,
    }  # fmt: skip
    return Known(**{**values, **changes})


def told(before: Known, after: Known) -> list[tuple[EventKind, str]]:
    return [(news.kind, news.message) for news in news_of(before, after)]


def test_the_same_again_is_no_news() -> None:
    same = known(health=health("failed", ("xid_fatal", "XID 79")))
    assert news_of(same, same) == []


def test_a_first_heartbeat_is_no_news() -> None:
    blank = Known({}, None, "", None)
    assert news_of(blank, known(health={"state": "healthy"})) == []


def test_a_missing_and_a_new_gpu_are_named() -> None:
    before = known(inventory=inventory(gpu(0), gpu(1)))
    after = known(inventory=inventory(gpu(0), gpu(2, "H200")))
    (news,) = news_of(before, after)
    assert news.kind is EventKind.INVENTORY
    assert news.message == "Missing: GPU 1 (H100). New: GPU 2 (H200)."
    assert news.details == {"missing_gpus": ["GPU-1"], "new_gpus": ["GPU-2"]}


def test_of_many_missing_gpus_four_are_named() -> None:
    before = known(inventory=inventory(*map(gpu, range(8))))
    ((_, message),) = told(before, known(inventory=inventory()))
    assert message.endswith("GPU 3 (H100) and 4 more.")


def test_another_driver_and_less_memory_are_told() -> None:
    before = known(inventory=inventory(driver_version="550.1"))
    after = known(inventory=inventory(driver_version="560.2", memory_bytes=256 * GIB))
    ((_, message),) = told(before, after)
    assert message == "GPU driver: 560.2; was 550.1. Memory: 256 GiB; was 512 GiB."


def test_a_little_less_memory_is_no_news() -> None:
    after = known(inventory=inventory(gpu(0), memory_bytes=511 * GIB))
    assert news_of(known(), after) == []


def test_an_inventory_that_can_not_be_read_stops_nobody() -> None:
    assert news_of(known(inventory={"gpus": "none"}), known(inventory={"gpus": ["x"]})) == []


def test_another_boot_id_is_a_reboot() -> None:
    before, after = (known(inventory=inventory(gpu(0), boot_id=one)) for one in ("a", "b"))
    assert told(before, after) == [(EventKind.REBOOT, "The host was started anew.")]
    assert news_of(known(), after) == []


def test_another_version_of_the_agent_is_told() -> None:
    expected = [(EventKind.AGENT, "Its agent is version 1.1 now; it was 1.0.")]
    assert told(known(), known(agent_version="1.1")) == expected


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (None, "failed", "Worse: failed now: GPU 3: XID 79."),
        ("healthy", "failed", "Worse: failed now: GPU 3: XID 79."),
        ("failed", "healthy", "Better: healthy now."),
        ("failed", None, "Its agent tells its health no more."),
    ],
)
def test_a_change_of_health_says_which_way_and_why(
    before: str | None, after: str | None, message: str
) -> None:
    def of(state: str | None) -> dict[str, Any] | None:
        findings = [("xid_fatal", "XID 79")] if state == "failed" else []
        return None if state is None else health(state, *findings)

    found = told(known(health=of(before)), known(health=of(after)))
    assert found == [(EventKind.HEALTH, message)]


def test_one_more_fault_and_one_less_are_told_in_the_same_state() -> None:
    one = known(health=health("failed", ("xid_fatal", "XID 79")))
    two = known(health=health("failed", ("xid_fatal", "XID 79"), ("remap_failed", "row remap")))
    assert told(one, two)[0][1] == "Worse: still failed, and now: GPU 3: row remap."
    assert told(two, one)[0][1] == "Better: still failed, but no more: GPU 3: row remap."


def test_another_wording_of_the_same_fault_is_no_news() -> None:
    before = known(health=health("failed", ("xid_fatal", "XID 79, 3 s ago")))
    after = known(health=health("failed", ("xid_fatal", "XID 79, 13 s ago")))
    assert news_of(before, after) == []


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (None, 7.5, "Its clock is 7.5 s ahead of the portal's. Check its time service."),
        (1.0, -61.0, "Its clock is 61.0 s behind the portal's. Check its time service."),
        (-61.0, 0.2, "Its clock is within 2.5 s of the portal's again."),
    ],
)
def test_a_clock_that_goes_wrong_or_right_is_told_once(
    before: float | None, after: float, message: str
) -> None:
    is_off = before is not None and abs(before) > SKEW_LIMIT_SECONDS
    old = known(clock_skew_seconds=before, is_clock_told_off=is_off)
    new = known(clock_skew_seconds=after, is_clock_told_off=not is_off)
    assert told(old, new) == [(EventKind.CLOCK, message)]
    assert news_of(new, new) == []


@pytest.mark.parametrize(
    ("before", "after", "is_told_off"),
    [(5.1, 4.9, True), (4.9, 5.1, True), (2.4, 4.9, False), (4.9, 2.4, False)],
)
def test_a_clock_around_the_limit_is_not_told_again_and_again(
    before: float, after: float, *, is_told_off: bool
) -> None:
    old = known(clock_skew_seconds=before, is_clock_told_off=is_told_off)
    assert news_of(old, known(clock_skew_seconds=after)) == []


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0 s"), (119, "119 s"), (120, "2 min"), (7199, "119 min"), (7200, "2 h"), (172800, "2 d")],
)
def test_a_span_is_told_in_its_largest_unit(seconds: int, words: str) -> None:
    assert span_words(timedelta(seconds=seconds)) == words
