"""Series as servers count them, and the levels of quotas that are worth a word."""

from datetime import timedelta

import pytest
from sqlalchemy.orm import Session

from tenants.lifecycle.pruning import prune
from tenants.lifecycle.quota_warnings import Crossing, level_of, update_quota_warnings
from tenants.lifecycle.usage import (
    SERIES_COUNT_LIFETIME,
    SampleCounts,
    StorageUse,
    sample_counts,
    store_sample_counts,
    store_usage,
)
from tenants.models import FillingQuota, Tenant, TenantState
from tenants.quotas import Limits, set_limits
from tests.cast import NOON, Cast, scope_of

MINUTE = timedelta(minutes=1)


def cross(session: Session) -> list[tuple[str, int]]:
    crossings = update_quota_warnings(session, defaults={}, now=NOON)
    return [(crossing.quota.value, crossing.level_percent) for crossing in crossings]


def store(session: Session, cast: Cast, used_bytes: int) -> None:
    store_usage(session, {cast.acme.id: StorageUse(1, used_bytes)}, now=NOON)
    session.expire_all()


@pytest.fixture
def _limited(session: Session, cast: Cast) -> None:
    """Acme may store 1000 bytes and have 100 series."""
    limits = Limits(max_storage_bytes=1000, max_series=100)
    set_limits(session, scope_of(cast.olivia), cast.acme.id, limits)


def test_the_largest_count_of_all_servers_is_what_counts(session: Session, cast: Cast) -> None:
    store_sample_counts(
        session, "one:1", {cast.acme.id: SampleCounts(5), cast.globex.id: SampleCounts(1)}, now=NOON
    )
    store_sample_counts(session, "two:2", {cast.acme.id: SampleCounts(7, 2, 3)}, now=NOON)
    highest = SampleCounts(series=7, measurements=2, fields=3)
    assert sample_counts(session, now=NOON) == {
        cast.acme.id: highest,
        cast.globex.id: SampleCounts(1),
    }
    assert sample_counts(session, [cast.globex.id], now=NOON) == {cast.globex.id: SampleCounts(1)}


def test_a_server_counts_again_each_time(session: Session, cast: Cast) -> None:
    store_sample_counts(
        session, "one:1", {cast.acme.id: SampleCounts(5), cast.globex.id: SampleCounts(1)}, now=NOON
    )
    store_sample_counts(session, "one:1", {cast.acme.id: SampleCounts(3)}, now=NOON + MINUTE)
    assert sample_counts(session, now=NOON + MINUTE) == {cast.acme.id: SampleCounts(3)}


def test_a_tenant_that_is_gone_is_not_counted(session: Session, cast: Cast) -> None:
    store_sample_counts(
        session, "one:1", {cast.acme.id: SampleCounts(5), "gone": SampleCounts(9)}, now=NOON
    )
    assert sample_counts(session, now=NOON) == {cast.acme.id: SampleCounts(5)}


def test_the_count_of_a_server_that_stopped_is_forgotten(session: Session, cast: Cast) -> None:
    store_sample_counts(session, "one:1", {cast.acme.id: SampleCounts(5)}, now=NOON)
    assert sample_counts(session, now=NOON + SERIES_COUNT_LIFETIME - MINUTE) == {
        cast.acme.id: SampleCounts(5)
    }
    assert sample_counts(session, now=NOON + SERIES_COUNT_LIFETIME) == {}
    pruned = prune(session, now=NOON + 2 * SERIES_COUNT_LIFETIME)
    assert pruned["series counts of stopped servers"] == 1


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
def test_a_level_lasts_until_the_use_is_clearly_below(
    percent: float, before: int, level: int
) -> None:
    assert level_of(percent, before=before) == level


@pytest.mark.usefixtures("_limited")
def test_each_level_is_reported_once_on_the_way_up(session: Session, cast: Cast) -> None:
    told = []
    for used in (790, 800, 850, 949, 950, 999, 1000):
        store(session, cast, used)
        told.append(cross(session))
    assert told == [[], [("storage", 80)], [], [], [("storage", 95)], [], []]


@pytest.mark.usefixtures("_limited")
def test_a_level_that_was_left_is_reported_again(session: Session, cast: Cast) -> None:
    told = []
    for used in (960, 760, 960, 700, 800):
        store(session, cast, used)
        told.append(cross(session))
    assert told == [
        [("storage", 95)],
        [],
        [("storage", 95)],
        [],
        [("storage", 80)],
    ]


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
    store_sample_counts(
        session,
        "one:1",
        {cast.acme.id: SampleCounts(96), cast.globex.id: SampleCounts(96)},
        now=NOON,
    )
    assert update_quota_warnings(session, defaults={FillingQuota.SERIES: 120}, now=NOON) == [
        Crossing(
            tenant_id=tenant_id,
            quota=FillingQuota.SERIES,
            level_percent=level,
            used=96,
            limit=limit,
        )
        for tenant_id, level, limit in sorted([(cast.acme.id, 95, 100), (cast.globex.id, 80, 120)])
    ]


@pytest.mark.usefixtures("_limited")
def test_a_suspended_tenant_gets_no_notification(session: Session, cast: Cast) -> None:
    session.get_one(Tenant, cast.acme.id).state = TenantState.SUSPENDED
    store(session, cast, 1000)
    assert cross(session) == []


def test_names_have_warnings_by_the_own_quota_or_that_of_the_server(
    session: Session, cast: Cast
) -> None:
    set_limits(session, scope_of(cast.olivia), cast.acme.id, Limits(max_measurements=10))
    counts = SampleCounts(series=1, measurements=8, fields=96)
    store_sample_counts(session, "one:1", {cast.acme.id: counts}, now=NOON)
    defaults = {FillingQuota.MEASUREMENTS: 500, FillingQuota.FIELDS: 100, FillingQuota.SERIES: 0}

    crossings = update_quota_warnings(session, defaults=defaults, now=NOON)

    assert [
        (crossing.quota.value, crossing.level_percent, crossing.limit) for crossing in crossings
    ] == [
        ("measurements", 80, 10),
        ("fields", 95, 100),
    ]
