"""docs/health.md says what the code does: every reason, every XID, every limit of a tier."""

import re
from pathlib import Path

import pytest

from collector.health.tiers import GIB, LIMITS, TERA
from protocol.health import ADVICE, HealthReason, HealthState, Tier
from protocol.xids import XIDS, XIDKind

PAGE = (Path(__file__).parents[3] / "docs" / "health.md").read_text(encoding="utf-8")


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the first table below a heading, its own heading left out."""
    section = PAGE.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_every_reason_is_documented_with_a_state_and_what_to_do() -> None:
    documented = {row[0].strip("`"): row for row in rows("Findings")}
    assert documented.keys() == {reason.value for reason in HealthReason}
    for row in documented.values():
        assert row[1] in {HealthState.DEGRADED.value, HealthState.FAILED.value}
        assert all(row), row


def test_every_reason_has_advice_for_the_pages() -> None:
    assert ADVICE.keys() == set(HealthReason)
    for advice in ADVICE.values():
        assert advice.action.endswith((".", "there.")), advice


def test_every_state_is_documented() -> None:
    assert {row[0].strip("`") for row in rows("States")} == {*HealthState, "unknown"}


@pytest.mark.parametrize(("row", "kind"), list(enumerate(XIDKind)))
def test_the_xids_are_those_of_the_catalog(row: int, kind: XIDKind) -> None:
    numbers = {int(number) for number in re.findall(r"\d+", rows("XIDs")[row][1])}
    assert numbers == {code for code, entry in XIDS.items() if entry.kind is kind}


def test_the_limits_of_the_tiers_are_those_of_the_code() -> None:
    table = {row[0].strip("`"): row[1:4] for row in rows("Tiers")}
    assert table.keys() == set(Tier) - {Tier.CPU}
    for tier, least in LIMITS:
        memory, bandwidth, flops = least.memory_bytes, least.bandwidth, least.flops
        assert memory is not None
        assert bandwidth is not None
        assert flops is not None
        assert table[tier] == [
            f"{memory / GIB:g} GiB",
            f"{bandwidth / TERA:g} TB/s",
            f"{flops / TERA:g} TFLOPS",
        ]
