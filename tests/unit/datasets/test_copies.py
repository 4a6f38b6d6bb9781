"""Reports of caches: late, repeated, of other tenants' versions, and of what is gone."""

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import event, select
from sqlalchemy.orm import Session

from core.clock import to_ns
from datasets.copies import cached_on, read_copies, record_report
from datasets.models import ApplianceCache, DatasetCopyRecord, DatasetVersion, VersionState
from protocol.datasets import CopyState, DatasetCopy, DatasetReport
from tenants.models import Appliance
from tests.cast import NOON, Cast
from tests.unit.jobqueue.dataset_builders import (
    TIB,
    add_dataset,
    add_stager,
    add_version,
    allow_peers,
    copy_of,
    report_copies,
)


@pytest.fixture
def dgx(session: Session, cast: Cast) -> Appliance:
    return add_stager(session, cast.acme, "dgx-01")


@pytest.fixture
def version(session: Session, cast: Cast) -> DatasetVersion:
    [version] = add_dataset(session, cast.acme).versions
    return version


def rows(session: Session) -> list[DatasetCopyRecord]:
    return list(
        session.scalars(select(DatasetCopyRecord).execution_options(populate_existing=True))
    )


def generation(session: Session, appliance: Appliance) -> int:
    session.refresh(appliance)
    return appliance.desired_generation


def test_a_report_stores_what_a_cache_has(
    session: Session, dgx: Appliance, version: DatasetVersion
) -> None:
    used_at = NOON - timedelta(hours=1)
    copy = DatasetCopy(
        version_id=version.id,
        state=CopyState.FETCHING,
        cached_bytes=TIB,
        fetched_bytes=TIB // 2,
        peer_bytes=TIB // 4,
        last_used_at_ns=to_ns(used_at),
    )
    report = DatasetReport(copies=[copy], cache_bytes=TIB, cache_limit_bytes=4 * TIB, peer_url="u")
    record_report(session, dgx.id, report, now=NOON)

    [row] = rows(session)
    assert (row.version_id, row.appliance_id, row.tenant_id) == (version.id, dgx.id, dgx.tenant_id)
    assert (row.state, row.cached_bytes, row.fetched_bytes) == (CopyState.FETCHING, TIB, TIB // 2)
    assert (row.peer_bytes, row.last_used_at) == (TIB // 4, used_at)
    cache = session.get_one(ApplianceCache, dgx.id)
    assert (cache.cache_bytes, cache.cache_limit_bytes, cache.peer_url) == (TIB, 4 * TIB, "u")


def test_what_a_report_does_not_name_is_gone(
    session: Session, dgx: Appliance, version: DatasetVersion
) -> None:
    report_copies(session, dgx, copy_of(version))
    assert read_copies(session, dgx.tenant_id, [version.id]) == {version.id: {dgx.id: 2 * TIB}}
    assert cached_on(session, [version.id]) == {version.id: 1}
    report_copies(session, dgx)
    assert rows(session) == []
    assert cached_on(session, [version.id]) == {version.id: 0}


def test_a_repeated_report_writes_nothing(
    session: Session, dgx: Appliance, version: DatasetVersion
) -> None:
    report_copies(session, dgx, copy_of(version))
    written: list[str] = []

    def note(_c: Any, _cursor: Any, statement: str, *_: Any) -> None:  # noqa: ANN401 - SQLAlchemy's
        if not statement.startswith(("SELECT", "SAVEPOINT", "RELEASE")):
            written.append(statement)

    connection = session.connection()
    event.listen(connection, "before_cursor_execute", note)
    report_copies(session, dgx, copy_of(version))
    event.remove(connection, "before_cursor_execute", note)
    assert written == []
    report = DatasetReport(copies=[copy_of(version)], peer_url="https://dgx-01:7443")
    record_report(session, dgx.id, report, now=NOON + timedelta(minutes=6))
    assert session.get_one(ApplianceCache, dgx.id).reported_at == NOON + timedelta(minutes=6)


def test_versions_of_others_and_unknown_ones_are_ignored(
    session: Session, cast: Cast, dgx: Appliance
) -> None:
    [foreign] = add_dataset(session, cast.globex).versions
    unknown = DatasetCopy(version_id="x" * 500, state=CopyState.COMPLETE)
    report_copies(session, dgx, copy_of(foreign), unknown)
    assert rows(session) == []


def test_a_clock_that_is_ahead_and_huge_numbers_are_bounded(
    session: Session, dgx: Appliance, version: DatasetVersion
) -> None:
    copy = DatasetCopy(
        version_id=version.id,
        state=CopyState.COMPLETE,
        cached_bytes=2**62,
        last_used_at_ns=2**70,
    )
    report_copies(session, dgx, copy)
    [row] = rows(session)
    assert (row.cached_bytes, row.last_used_at) == (2**62, NOON)


def test_a_report_of_an_appliance_that_is_gone_is_ignored(session: Session) -> None:
    record_report(session, "gone", DatasetReport(), now=NOON)


def test_the_first_report_lets_the_agent_fetch_its_orders(session: Session, cast: Cast) -> None:
    dgx = add_stager(session, cast.acme, "dgx-01")
    first = generation(session, dgx)
    assert first == 2
    report_copies(session, dgx)
    assert generation(session, dgx) == first


def test_indexing_shows_its_progress(
    session: Session, dgx: Appliance, version: DatasetVersion
) -> None:
    indexing = add_version(
        session,
        version.dataset,
        2,
        state=VersionState.INDEXING,
        indexing_appliance_id=dgx.id,
        digest=None,
    )
    progress = DatasetCopy(version_id=indexing.id, state=CopyState.FETCHING, cached_bytes=TIB)
    record_report(session, dgx.id, DatasetReport(indexing=[progress]), now=NOON)
    session.refresh(indexing)
    assert (indexing.indexed_bytes, indexing.state) == (TIB, VersionState.INDEXING)


def test_a_failed_index_fails_the_version_with_the_next_step(
    session: Session, dgx: Appliance, version: DatasetVersion
) -> None:
    indexing = add_version(
        session, version.dataset, 2, state=VersionState.INDEXING, indexing_appliance_id=dgx.id
    )
    before = generation(session, dgx)
    failed = DatasetCopy(
        version_id=indexing.id, state=CopyState.FAILED, message="The bucket answered 403."
    )
    for _ in range(2):
        record_report(session, dgx.id, DatasetReport(indexing=[failed]), now=NOON)
    session.refresh(indexing)
    assert (indexing.state, indexing.message) == (VersionState.FAILED, "The bucket answered 403.")
    assert generation(session, dgx) == before + 1


def test_an_appliance_reports_no_index_of_another_one_or_of_a_ready_version(
    session: Session, cast: Cast, dgx: Appliance, version: DatasetVersion
) -> None:
    other = add_stager(session, cast.acme, "dgx-02")
    indexing = add_version(
        session, version.dataset, 2, state=VersionState.INDEXING, indexing_appliance_id=other.id
    )
    failed = [
        DatasetCopy(version_id=ident, state=CopyState.FAILED) for ident in (indexing.id, version.id)
    ]
    record_report(session, dgx.id, DatasetReport(indexing=failed), now=NOON)
    session.refresh(indexing)
    session.refresh(version)
    assert (indexing.state, version.state) == (VersionState.INDEXING, VersionState.READY)


def test_neighbors_that_fetch_the_same_learn_of_a_new_copy(
    session: Session, cast: Cast, dgx: Appliance, version: DatasetVersion
) -> None:
    allow_peers(session, cast.acme)
    fetching = add_stager(session, cast.acme, "dgx-02")
    far = add_stager(session, cast.acme, "dgx-03", site="bergen")
    idle = add_stager(session, cast.acme, "dgx-04")
    for appliance in (fetching, far):
        report_copies(session, appliance, copy_of(version, cached_bytes=1))
    before = {a.id: generation(session, a) for a in (dgx, fetching, far, idle)}

    report_copies(session, dgx, copy_of(version))

    told = {a.name for a in (dgx, fetching, far, idle) if generation(session, a) > before[a.id]}
    assert told == {"dgx-02"}
