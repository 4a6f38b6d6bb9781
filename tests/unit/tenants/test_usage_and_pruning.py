"""Daily usage of tenants, and rows that are deleted automatically."""

from datetime import timedelta
from pathlib import Path

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from core.clock import to_ns
from tenants.lifecycle.pruning import count_prunable, prune
from tenants.lifecycle.usage import (
    ESTIMATED_BYTES_PER_POINT,
    StorageUse,
    file_bytes,
    growth,
    latest_usage,
    measure_storage,
    store_usage,
)
from tenants.models import (
    IdempotencyKey,
    Invitation,
    LoginSession,
    PasswordReset,
    Role,
    TenantUsage,
    Throttle,
    ThrottleKind,
)
from tests.cast import NOON, Cast, make_appliance
from timeseries.points import Point
from timeseries.store import Store, write

DAY = timedelta(days=1)
GPU = {"index": 0, "uuid": "GPU-0", "model": "H100", "memory_bytes": 2**36}


def fill(store: Store, tenant: str, *, points: int) -> None:
    written = [
        Point("cpu", {}, {"usage_percent": 1.0}, to_ns(NOON - timedelta(seconds=s)))
        for s in range(points)
    ]
    assert write(store, written, identity={"tenant": tenant, "appliance": "a"}) == []


def test_the_bytes_of_the_stores_file_are_shared_out_by_points(store: Store) -> None:
    fill(store, "acme", points=30)
    fill(store, "globex", points=10)
    assert measure_storage(store, store_bytes=4000, now=NOON) == {
        "acme": StorageUse(points=30, bytes=3000),
        "globex": StorageUse(points=10, bytes=1000),
    }


def test_points_of_a_store_of_unknown_size_are_reckoned(store: Store) -> None:
    fill(store, "acme", points=5)
    storage = measure_storage(store, store_bytes=None, now=NOON)
    assert storage["acme"].bytes == 5 * ESTIMATED_BYTES_PER_POINT


def test_measurements_of_one_tenant_add_up(store: Store) -> None:
    fill(store, "acme", points=5)
    point = Point("memory", {}, {"used_bytes": 1, "total_bytes": 2}, to_ns(NOON))
    assert write(store, [point], identity={"tenant": "acme", "appliance": "a"}) == []
    assert measure_storage(store, store_bytes=None, now=NOON)["acme"].points == 6


def test_the_size_of_a_file_counts_what_is_not_folded_in_yet(tmp_path: Path) -> None:
    (tmp_path / "samples.duckdb").write_bytes(b"x" * 100)
    (tmp_path / "samples.duckdb.wal").write_bytes(b"x" * 10)
    sealed = tmp_path / "samples" / "acme" / "gpu" / "2026-11-22" / "1.raw.parquet"
    sealed.parent.mkdir(parents=True)
    sealed.write_bytes(b"x")
    assert file_bytes(f"duckdb:///{tmp_path / 'samples.duckdb'}") == 111
    assert file_bytes("victoriametrics://localhost:8428") is None


def test_a_day_keeps_its_last_measurement(session: Session, cast: Cast) -> None:
    make_appliance(session, cast.acme, "gpu-01", inventory={"hostname": "gpu-01", "gpus": [GPU]})
    store_usage(session, {cast.acme.id: StorageUse(1, 100)}, now=NOON)
    store_usage(session, {cast.acme.id: StorageUse(2, 200)}, now=NOON + timedelta(hours=1))
    store_usage(session, {cast.acme.id: StorageUse(3, 300)}, now=NOON + DAY)
    session.expire_all()
    days = [day for day in growth(session, since=NOON.date()) if day.tenant_id == cast.acme.id]
    assert [(day.day, day.points) for day in days] == [
        (NOON.date(), 2),
        ((NOON + DAY).date(), 3),
    ]
    newest = latest_usage(session)[cast.acme.id]
    assert (newest.storage_bytes, newest.appliances, newest.gpus) == (300, 1, 1)
    assert latest_usage(session, [cast.globex.id])[cast.globex.id].storage_bytes == 0


def test_what_has_expired_is_counted_then_deleted_and_the_rest_is_retained(
    session: Session, cast: Cast
) -> None:
    for number, age in enumerate((timedelta(days=-1), timedelta(days=60))):
        then, user = NOON - age, cast.alice.id
        of_then = {"created_at": then, "expires_at": then}
        session.add_all(
            [
                LoginSession(user_id=user, secret_hash=f"a{number}", **of_then),
                PasswordReset(user_id=user, secret_hash=f"b{number}", **of_then),
                Invitation(
                    email="x@y.example", role=Role.VIEWER, secret_hash=f"c{number}", **of_then
                ),
                IdempotencyKey(user_id=user, key=str(number), request_hash="h", created_at=then),
                Throttle(
                    kind=ThrottleKind.ACCOUNT,
                    subject=str(number),
                    failures=1,
                    first_failed_at=then,
                ),
            ]
        )
    session.flush()
    useless = {name: count for name, count in count_prunable(session, now=NOON).items() if count}
    assert set(useless.values()) == {1}
    assert len(useless) == 5
    pruned = {name: count for name, count in prune(session, now=NOON).items() if count}
    assert pruned == useless
    assert not any(count_prunable(session, now=NOON).values())
    assert session.scalar(select(func.count()).select_from(LoginSession)) == 1


def test_a_lock_that_is_active_is_retained(session: Session) -> None:
    session.add(
        Throttle(
            kind=ThrottleKind.ADDRESS,
            subject="x",
            failures=9,
            first_failed_at=NOON - 2 * DAY,
            locked_until=NOON + DAY,
        )
    )
    session.flush()
    assert not any(prune(session, now=NOON).values())


def test_usage_of_two_years_ago_is_forgotten(session: Session, cast: Cast) -> None:
    store_usage(session, {cast.acme.id: StorageUse(1, 1)}, now=NOON - timedelta(days=731))
    store_usage(session, {cast.acme.id: StorageUse(1, 1)}, now=NOON)
    prune(session, now=NOON)
    assert set(session.scalars(select(TenantUsage.day))) == {NOON.date()}
