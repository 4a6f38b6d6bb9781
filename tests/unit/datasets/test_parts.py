"""The parts store: idempotent, durable, swept only when nobody needs a part, and within a quota."""

from datetime import timedelta
from pathlib import Path
from threading import Event

import pytest
from sqlalchemy import select, true

from core.db import SessionFactory
from core.errors import (
    ConfigurationError,
    ConflictError,
    InvalidInputError,
    NotFoundError,
    UnavailableError,
)
from core.periodic_tasks import SchedulerContext
from core.settings import ServerSettings
from datasets.catalog import DatasetRequest, VersionRequest, create_dataset, create_version
from datasets.manifests import announce
from datasets.models import (
    DataConnection,
    DataPart,
    DatasetVersion,
    TenantDataSettings,
    VersionState,
)
from datasets.parts import (
    PartStore,
    forget_parts,
    missing_parts,
    record_part,
    record_received,
    reserve_part,
    stored_bytes,
    unused_parts,
)
from datasets.periodic_tasks import DatasetTasks
from protocol.manifests import content_hash
from tenants.models import TenantQuota
from tests.cast import NOON, Cast, FrozenClock, scope_of

DATA = b"some content"
SHA256 = content_hash(DATA)
LATER = NOON + timedelta(days=2)


@pytest.fixture
def settings(tmp_path: Path) -> ServerSettings:
    return ServerSettings(data_dir=tmp_path)


@pytest.fixture
def store(settings: ServerSettings) -> PartStore:
    return PartStore(settings)


@pytest.fixture
def tasks(settings: ServerSettings, sessions: SessionFactory, clock: FrozenClock) -> DatasetTasks:
    context = SchedulerContext(
        sessions=sessions,
        clock=clock,
        listening_since=NOON,
        is_active=lambda: True,
        has_lease=true(),
        is_stopping=Event().is_set,
        run_soon=lambda _task: None,
    )
    return DatasetTasks(settings, context)


@pytest.fixture
def stored(sessions: SessionFactory, store: PartStore, cast: Cast) -> str:
    """A part of acme that nothing refers to."""
    with sessions.begin() as session:
        assert reserve_part(session, cast.acme.id, SHA256, len(DATA), NOON)
    store.put(cast.acme.id, SHA256, DATA)
    with sessions.begin() as session:
        record_part(session, cast.acme.id, SHA256, len(DATA), NOON)
    return SHA256


@pytest.fixture
def announced(sessions: SessionFactory, stored: str, cast: Cast) -> DatasetVersion:
    """A version that is uploaded, with the stored part and another one."""
    scope = scope_of(cast.alice)
    with sessions.begin() as session:
        dataset = create_dataset(session, scope, DatasetRequest(name="images"), now=NOON)
        version = create_version(session, scope, dataset.id, VersionRequest(), now=NOON)
        assert announce(session, version, {stored, "0" * 64}, NOON) == {"0" * 64}
        return version


def test_a_part_is_stored_once_for_its_tenant(store: PartStore, tmp_path: Path) -> None:
    store.put("acme", SHA256, DATA)
    store.put("acme", SHA256, DATA)
    assert store.get("acme", SHA256) == DATA
    assert (tmp_path / "data" / "acme" / "parts" / SHA256[:2] / SHA256).read_bytes() == DATA
    with pytest.raises(NotFoundError):
        store.get("globex", SHA256)
    store.delete("acme", [SHA256, "0" * 64])
    with pytest.raises(NotFoundError):
        store.get("acme", SHA256)


def test_content_with_another_hash_is_refused(store: PartStore) -> None:
    with pytest.raises(InvalidInputError, match="Read and send it again"):
        store.put("acme", SHA256, b"other")


def test_damaged_content_is_never_returned(store: PartStore, tmp_path: Path) -> None:
    store.put("acme", SHA256, DATA)
    (tmp_path / "data" / "acme" / "parts" / SHA256[:2] / SHA256).write_bytes(b"rotten")
    with pytest.raises(UnavailableError, match="damaged"):
        store.get("acme", SHA256)


def test_a_store_that_does_not_answer_is_unavailable(store: PartStore, tmp_path: Path) -> None:
    (tmp_path / "data").rmdir()
    (tmp_path / "data").touch()
    with pytest.raises(UnavailableError, match="data_url"):
        store.put("acme", SHA256, DATA)


@pytest.mark.parametrize("url", ["ftp://host/data", "s3://"])
def test_another_address_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="data_url"):
        PartStore(ServerSettings(data_url=url))


def test_an_unused_part_is_swept_after_a_day(
    tasks: DatasetTasks, store: PartStore, stored: str, cast: Cast, clock: FrozenClock
) -> None:
    clock.advance(23 * 3600)
    tasks.sweep_parts()
    assert store.get(cast.acme.id, stored) == DATA
    clock.advance(2 * 3600)
    tasks.sweep_parts()
    with pytest.raises(NotFoundError):
        store.get(cast.acme.id, stored)


def test_what_is_being_uploaded_is_never_swept(
    tasks: DatasetTasks, store: PartStore, announced: DatasetVersion, clock: FrozenClock
) -> None:
    clock.now = LATER
    tasks.sweep_parts()
    assert store.get(announced.tenant_id, SHA256) == DATA


def test_an_abandoned_upload_fails_and_its_parts_are_swept(
    tasks: DatasetTasks,
    store: PartStore,
    announced: DatasetVersion,
    sessions: SessionFactory,
    clock: FrozenClock,
) -> None:
    clock.now = LATER
    tasks.end_abandoned_uploads()
    tasks.sweep_parts()
    with sessions() as session:
        assert session.get_one(DatasetVersion, announced.id).state is VersionState.FAILED
    with pytest.raises(NotFoundError):
        store.get(announced.tenant_id, SHA256)


def test_an_upload_waits_while_the_sweep_deletes_the_same_content(
    stored: str, cast: Cast, sessions: SessionFactory, tasks: DatasetTasks, clock: FrozenClock
) -> None:
    clock.now = LATER
    with sessions.begin() as session:  # as if the sweep was killed behind this
        assert unused_parts(session, LATER, 10) == [(cast.acme.id, stored, None)]
    with sessions.begin() as session:
        assert missing_parts(session, cast.acme.id, [stored]) == {stored}
        with pytest.raises(UnavailableError, match="being deleted"):
            reserve_part(session, cast.acme.id, stored, len(DATA), LATER)
    tasks.sweep_parts()
    with sessions.begin() as session:
        assert session.get(DataPart, (cast.acme.id, stored)) is None
        assert reserve_part(session, cast.acme.id, stored, len(DATA), LATER)


def test_a_part_that_the_previous_version_recorded_is_in_the_present_bucket(
    cast: Cast, sessions: SessionFactory, tasks: DatasetTasks
) -> None:
    with sessions.begin() as session:
        for tenant, bucket in ((cast.acme, "present"), (cast.globex, None)):
            connection = DataConnection(
                id="present", tenant_id=tenant.id, name="b", url="s3://b", created_at=NOON
            )
            session.add_all([connection] if bucket else [])
            session.flush()
            session.add(TenantDataSettings(tenant_id=tenant.id, results_connection_id=bucket))
        parts = {
            (cast.acme.id, "of the previous version"): None,
            (cast.acme.id, "of another bucket"): "earlier",
            (cast.globex.id, "of a tenant without"): None,
        }
        for (tenant_id, sha256), connection_id in parts.items():
            record_part(session, tenant_id, sha256, 1, NOON, connection_id="earlier")
            session.get_one(DataPart, (tenant_id, sha256)).connection_id = connection_id
        record_part(session, cast.acme.id, SHA256, 1, NOON)
    tasks.sweep_parts()
    with sessions() as session:
        rows = session.execute(select(DataPart.sha256, DataPart.connection_id)).all()
    assert {row.sha256: row.connection_id for row in rows} == {
        "of the previous version": "present",
        "of another bucket": "earlier",
        "of a tenant without": None,
        SHA256: None,
    }


def test_a_part_that_was_announced_again_stays_for_another_day(
    stored: str, cast: Cast, sessions: SessionFactory
) -> None:
    with sessions.begin() as session:
        assert not reserve_part(session, cast.acme.id, stored, len(DATA), LATER)
        assert unused_parts(session, LATER, 10) == []


def test_what_is_above_the_quota_is_refused(
    stored: str, cast: Cast, sessions: SessionFactory
) -> None:
    with sessions.begin() as session:
        session.add(TenantQuota(tenant_id=cast.acme.id, max_data_bytes=len(DATA) + 5))
    with sessions.begin() as session:
        assert not reserve_part(session, cast.acme.id, stored, len(DATA), NOON)
        assert reserve_part(session, cast.acme.id, "0" * 64, 5, NOON)
        with pytest.raises(ConflictError, match="data bytes"):
            reserve_part(session, cast.acme.id, "0" * 64, 6, NOON)
        assert reserve_part(session, cast.globex.id, stored, len(DATA), NOON)


def test_of_two_uploads_at_once_the_second_is_refused_and_deleted(
    stored: str, cast: Cast, sessions: SessionFactory
) -> None:
    tenant_id, first, second = cast.acme.id, "1" * 64, "2" * 64
    with sessions.begin() as session:
        session.add(TenantQuota(tenant_id=tenant_id, max_data_bytes=len(DATA) + 5))
        assert reserve_part(session, tenant_id, first, 5, NOON)
        assert reserve_part(session, tenant_id, second, 5, NOON)
    with sessions.begin() as session:
        assert record_received(session, tenant_id, first, 5, NOON)
    with sessions.begin() as session:
        assert not record_received(session, tenant_id, second, 5, NOON)
    with sessions.begin() as session:
        assert missing_parts(session, tenant_id, [stored, first, second]) == {second}
        deleted = unused_parts(session, NOON, 10)
        assert [part[1] for part in deleted] == [second]
        forget_parts(session, [(tenant_id, second)])
        # The same content again, and content that was there, are no more than before.
        assert record_received(session, tenant_id, first, 5, NOON)
        assert stored_bytes(session, tenant_id) == len(DATA) + 5


def test_two_uploads_record_the_same_content_once(
    stored: str, cast: Cast, sessions: SessionFactory
) -> None:
    with sessions.begin() as session:
        record_part(session, cast.acme.id, stored, len(DATA), LATER)
    with sessions() as session:
        [part] = session.scalars(select(DataPart))
    assert part.last_used_at == LATER


def test_a_removed_tenant_leaves_no_content(
    tasks: DatasetTasks, store: PartStore, stored: str, cast: Cast
) -> None:
    store.put(cast.globex.id, stored, DATA)
    tasks.delete_data(cast.acme.id)
    with pytest.raises(NotFoundError):
        store.get(cast.acme.id, stored)
    assert store.get(cast.globex.id, stored) == DATA


def test_content_of_the_tenants_bucket_is_uploaded_for_a_dataset(
    announced: DatasetVersion, cast: Cast, sessions: SessionFactory
) -> None:
    sha256 = "0" * 64
    with sessions.begin() as session:
        record_part(session, cast.acme.id, sha256, 99, NOON, connection_id="former")
        record_part(session, cast.acme.id, sha256, 99, NOON, connection_id="own")
        assert session.get_one(DataPart, (cast.acme.id, sha256)).connection_id == "own"
        session.expire_all()
        assert missing_parts(session, cast.acme.id, {sha256}) == {sha256}
        assert not missing_parts(session, cast.acme.id, {sha256}, uses_bucket=True)
        assert announce(session, announced, {sha256}, NOON) == {sha256}
        assert reserve_part(session, cast.acme.id, sha256, 5, NOON)
        record_part(session, cast.acme.id, sha256, 5, NOON)
        record_part(session, cast.acme.id, sha256, 99, LATER, connection_id="own")
    with sessions() as session:
        part = session.get_one(DataPart, (cast.acme.id, sha256))
        assert (part.is_in_bucket, part.size_bytes, part.last_used_at) == (False, 5, LATER)
        assert part.connection_id is None
        assert not missing_parts(session, cast.acme.id, {sha256})
