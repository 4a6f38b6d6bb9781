"""Series as servers count them, and the levels of quotas that are worth a word."""

from datetime import timedelta

import pytest
from sqlalchemy.orm import Session

from tenants.customers.pruning import prune
from tenants.customers.quotas import Limits, set_limits
from tenants.customers.series import COUNT_HOLDS, note_series, series_counts
from tenants.customers.usage import StorageUse, note_usage
from tenants.customers.warnings import Crossing, level_of, note_crossings
from tenants.models import FillingQuota, Tenant, TenantState
from tests.cast import NOON, Cast, scope_of

MINUTE = timedelta(minutes=1)


def cross(session: Session, *, default_max_series: int | None = None) -> list[tuple[str, int]]:
    found = note_crossings(session, default_max_series=default_max_series, now=NOON)
    return [(one.quota.value, one.level_percent) for one in found]


def store(session: Session, cast: Cast, used_bytes: int) -> None:
    note_usage(session, {cast.acme.id: StorageUse(1, used_bytes)}, now=NOON)
    session.expire_all()


@pytest.fixture
def _limited(session: Session, cast: Cast) -> None:
    """Acme may store 1000 bytes and have 100 series."""
    limits = Limits(max_storage_bytes=1000, max_series=100)
    set_limits(session, scope_of(cast.olivia), cast.acme.id, limits)


def test_the_largest_count_of_all_servers_is_what_counts(session: Session, cast: Cast) -> None:
    note_series(session, "one:1", {cast.acme.id: 5, cast.globex.id: 1}, now=NOON)
    note_series(session, "two:2", {cast.acme.id: 7}, now=NOON)
    assert series_counts(session, now=NOON) == {cast.acme.id: 7, cast.globex.id: 1}
    assert series_counts(session, [cast.globex.id], now=NOON) == {cast.globex.id: 1}


def test_a_server_counts_anew_each_time(session: Session, cast: Cast) -> None:
    note_series(session, "one:1", {cast.acme.id: 5, cast.globex.id: 1}, now=NOON)
    note_series(session, "one:1", {cast.acme.id: 3}, now=NOON + MINUTE)
    assert series_counts(session, now=NOON + MINUTE) == {cast.acme.id: 3}


def test_a_tenant_that_is_gone_is_not_counted(session: Session, cast: Cast) -> None:
    note_series(session, "one:1", {cast.acme.id: 5, "gone": 9}, now=NOON)
    assert series_counts(session, now=NOON) == {cast.acme.id: 5}


def test_the_count_of_a_server_that_stopped_is_forgotten(session: Session, cast: Cast) -> None:
    note_series(session, "one:1", {cast.acme.id: 5}, now=NOON)
    assert series_counts(session, now=NOON + COUNT_HOLDS - MINUTE) == {cast.acme.id: 5}
    assert series_counts(session, now=NOON + COUNT_HOLDS) == {}
    pruned = prune(session, now=NOON + 2 * COUNT_HOLDS)
    assert pruned["counts of series by servers that stopped"] == 1


@pytest.mark.parametrize(
    ("percent", "before", "level"),
    [
        (79.9, 0, 0),
        (80.0, 0, 80),
        (94.9, 0, 80),
        (95.0, 0, 95),
        (130.0, 80, 95),
        (75.0, 80, 80),
        (74.9, 80, 0),
        (90.0, 95, 95),
        (89.9, 95, 80),
        (76.0, 95, 80),
        (74.9, 95, 0),
    ],
)
def test_a_level_is_kept_until_the_use_is_clearly_below(
    percent: float, before: int, level: int
) -> None:
    assert level_of(percent, before=before) == level


@pytest.mark.usefixtures("_limited")
def test_each_level_is_told_once_on_the_way_up(session: Session, cast: Cast) -> None:
    told = []
    for used in (790, 800, 850, 949, 950, 999, 1000):
        store(session, cast, used)
        told.append(cross(session))
    assert told == [[], [("storage", 80)], [], [], [("storage", 95)], [], []]


@pytest.mark.usefixtures("_limited")
def test_a_level_that_was_left_is_told_again(session: Session, cast: Cast) -> None:
    told = []
    for used in (960, 760, 960, 700, 800):
        store(session, cast, used)
        told.append(cross(session))
    assert told == [
        [("storage", 95)], [], [("storage", 95)], [], [("storage", 80)],
    ]  # fmt: skip


@pytest.mark.usefixtures("_limited")
def test_a_larger_quota_takes_the_level_away(session: Session, cast: Cast) -> None:
    store(session, cast, 900)
    assert cross(session) == [("storage", 80)]
    limits = Limits(max_storage_bytes=2000)
    set_limits(session, scope_of(cast.olivia), cast.acme.id, limits)
    assert cross(session) == []
    store(session, cast, 1700)
    assert cross(session) == [("storage", 80)]


@pytest.mark.usefixtures("_limited")
def test_series_are_compared_with_the_own_quota_or_the_servers(
    session: Session, cast: Cast
) -> None:
    note_series(session, "one:1", {cast.acme.id: 96, cast.globex.id: 96}, now=NOON)
    assert note_crossings(session, default_max_series=120, now=NOON) == [
        Crossing(tenant_id=tenant_id, quota=FillingQuota.SERIES, level_percent=level, used=96,
                 most=most)
        for tenant_id, level, most in sorted(
            [(cast.acme.id, 95, 100), (cast.globex.id, 80, 120)]
        )
    ]  # fmt: skip


@pytest.mark.usefixtures("_limited")
def test_a_suspended_tenant_is_told_nothing(session: Session, cast: Cast) -> None:
    session.get_one(Tenant, cast.acme.id).state = TenantState.SUSPENDED
    store(session, cast, 1000)
    assert cross(session) == []
