"""Prefetches and pins: who may order them, for which appliances, once or on a schedule."""

from datetime import timedelta

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from core.errors import ConflictError, ForbiddenError, InvalidInputError, NotFoundError
from datasets.manifests import Publication, publish
from datasets.models import Dataset, DatasetPrefetch, DatasetVersion, VersionState
from datasets.prefetches import (
    PrefetchRequest,
    create_prefetch,
    delete_prefetch,
    get_prefetch,
    list_copies,
    list_prefetches,
    run_due,
)
from datasets.staging import dataset_orders
from datasets.targets import notify_targets
from protocol.datasets import ManifestHead, SourceKind
from tenants.models import Appliance, ApplianceState
from tests.cast import BOX, NOON, Cast, scope_of
from tests.unit.jobqueue.dataset_builders import (
    DIGEST,
    TIB,
    add_dataset,
    add_stager,
    add_version,
    copy_of,
    report_copies,
)

NIGHTLY = PrefetchRequest(schedule="0 2 * * *", time_zone="Europe/Oslo", labels={"pool": "train"})
TWO = NOON + timedelta(hours=13)
"""The next 2 o'clock in Oslo."""


@pytest.fixture
def dgx(session: Session, cast: Cast) -> Appliance:
    return add_stager(session, cast.acme, "dgx-01")


@pytest.fixture
def dataset(session: Session, cast: Cast) -> Dataset:
    return add_dataset(session, cast.acme)


def generation(session: Session, appliance: Appliance) -> int:
    session.refresh(appliance)
    return appliance.desired_generation


def ordered(session: Session, appliance: Appliance) -> list[int]:
    return [version.number for version in dataset_orders(session, appliance.id, BOX).prefetch]


def test_an_order_once_is_for_the_version_of_that_time_also_on_later_appliances(
    session: Session, cast: Cast, dgx: Appliance, dataset: Dataset
) -> None:
    before = generation(session, dgx)
    scope = scope_of(cast.bob)
    made = create_prefetch(session, scope, dataset.id, PrefetchRequest(), now=NOON)
    add_version(session, dataset, 2)
    late = add_stager(session, cast.acme, "dgx-02")

    assert generation(session, dgx) == before + 1
    assert (ordered(session, dgx), ordered(session, late)) == ([1], [1])
    delete_prefetch(session, scope, dataset.id, made.id)
    assert generation(session, dgx) == before + 2
    assert ordered(session, dgx) == []


def test_the_same_order_again_is_the_same_one(
    session: Session, cast: Cast, dataset: Dataset
) -> None:
    scope = scope_of(cast.alice)
    orders = [
        create_prefetch(session, scope, dataset.id, PrefetchRequest(), now=NOON) for _ in range(2)
    ]
    assert orders[0].id == orders[1].id
    pin = create_prefetch(session, scope, dataset.id, PrefetchRequest(is_pinned=True), now=NOON)
    assert pin.id != orders[0].id


def test_before_a_version_is_ready_an_order_waits_for_it(
    session: Session, cast: Cast, dgx: Appliance
) -> None:
    dataset = add_dataset(session, cast.acme, versions=0)
    create_prefetch(session, scope_of(cast.bob), dataset.id, PrefetchRequest(), now=NOON)
    assert ordered(session, dgx) == []
    add_version(session, dataset, 1)
    before = generation(session, dgx)
    notify_targets(session, dataset.id)
    assert generation(session, dgx) == before + 1
    assert ordered(session, dgx) == [1]


def test_only_admins_pin_and_make_versions_of_others_datasets(
    session: Session, cast: Cast, dataset: Dataset
) -> None:
    scope, pin = scope_of(cast.bob), PrefetchRequest(is_pinned=True)
    with pytest.raises(ForbiddenError):
        create_prefetch(session, scope, dataset.id, pin, now=NOON)
    with pytest.raises(ForbiddenError):
        create_prefetch(session, scope, dataset.id, NIGHTLY, now=NOON)
    dataset.user_id = cast.bob.id
    assert create_prefetch(session, scope, dataset.id, NIGHTLY, now=NOON).schedule
    made = create_prefetch(session, scope_of(cast.alice), dataset.id, pin, now=NOON)
    with pytest.raises(ForbiddenError):
        delete_prefetch(session, scope, dataset.id, made.id)


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (PrefetchRequest(appliance="unknown"), "appliance"),
        (PrefetchRequest(appliance="dgx-01", labels={"a": "b"}), "labels"),
        (PrefetchRequest(version=7), "version"),
        (PrefetchRequest(version=2), "version"),
        (PrefetchRequest(schedule="whenever"), "schedule"),
        (PrefetchRequest(schedule="@daily", time_zone="Mars/Olympus"), "time_zone"),
        (PrefetchRequest(schedule="@daily", version=1), "version"),
    ],
)
@pytest.mark.usefixtures("dgx")
def test_a_wrong_order_is_refused_by_its_field(
    session: Session, cast: Cast, dataset: Dataset, request_: PrefetchRequest, field: str
) -> None:
    add_version(session, dataset, 2, state=VersionState.INDEXING)
    with pytest.raises(InvalidInputError) as refused:
        create_prefetch(session, scope_of(cast.alice), dataset.id, request_, now=NOON)
    assert list(refused.value.errors) == [field]


def test_an_upload_has_no_schedule(session: Session, cast: Cast) -> None:
    upload = add_dataset(session, cast.acme, "photos", kind=SourceKind.UPLOAD, source_url="")
    with pytest.raises(InvalidInputError) as refused:
        create_prefetch(session, scope_of(cast.alice), upload.id, NIGHTLY, now=NOON)
    assert list(refused.value.errors) == ["schedule"]


def test_a_tenant_has_a_bounded_number_of_orders(
    session: Session, cast: Cast, dataset: Dataset
) -> None:
    session.add_all(
        DatasetPrefetch(
            tenant_id=cast.acme.id, dataset_id=dataset.id, labels={"n": str(n)}, created_at=NOON
        )
        for n in range(200)
    )
    session.flush()
    with pytest.raises(ConflictError, match="200 prefetches already"):
        create_prefetch(session, scope_of(cast.bob), dataset.id, PrefetchRequest(), now=NOON)


def test_another_tenants_dataset_and_appliance_are_not_found(
    session: Session, cast: Cast, dgx: Appliance, dataset: Dataset
) -> None:
    charlie = scope_of(cast.charlie)
    made = create_prefetch(session, scope_of(cast.bob), dataset.id, PrefetchRequest(), now=NOON)
    for call in (
        lambda: create_prefetch(session, charlie, dataset.id, PrefetchRequest(), now=NOON),
        lambda: delete_prefetch(session, charlie, dataset.id, made.id),
        lambda: list_prefetches(session, charlie, dataset.id),
        lambda: list_copies(session, charlie, dataset.id),
    ):
        with pytest.raises(NotFoundError):
            call()
    own = add_dataset(session, cast.globex)
    with pytest.raises(NotFoundError):
        get_prefetch(session, charlie, own.id, made.id)
    request = PrefetchRequest(appliance=dgx.id)
    with pytest.raises(InvalidInputError):
        create_prefetch(session, charlie, own.id, request, now=NOON)


def test_a_due_schedule_makes_a_version_of_the_source_on_an_appliance_of_the_order(
    session: Session, cast: Cast, dgx: Appliance, dataset: Dataset
) -> None:
    reader = add_stager(session, cast.acme, "dgx-02")
    reader.labels = {"pool": "train"}
    made = create_prefetch(session, scope_of(cast.alice), dataset.id, NIGHTLY, now=NOON)
    assert made.next_run_at == TWO
    assert not run_due(session, now=TWO - timedelta(seconds=1))
    before = generation(session, reader)

    assert run_due(session, now=TWO)
    assert not run_due(session, now=TWO)

    version = session.scalars(select(DatasetVersion).where(DatasetVersion.number == 2)).one()
    assert (version.state, version.indexing_appliance_id) == (VersionState.INDEXING, reader.id)
    assert generation(session, reader) == before + 1
    assert [order.number for order in dataset_orders(session, reader.id, BOX).index] == [2]
    session.refresh(made)
    assert made.next_run_at == TWO + timedelta(days=1)
    # The appliances keep the version that is ready meanwhile.
    assert ordered(session, reader) == [1]
    assert ordered(session, dgx) == []


def test_a_schedule_makes_no_version_while_one_is_made_or_nobody_can_read(
    session: Session, cast: Cast, dgx: Appliance, dataset: Dataset
) -> None:
    create_prefetch(session, scope_of(cast.alice), dataset.id, NIGHTLY, now=NOON)
    assert run_due(session, now=TWO)
    dgx.labels = {"pool": "train"}
    dgx.state = ApplianceState.LOST
    assert run_due(session, now=TWO + timedelta(days=1))
    dgx.state = ApplianceState.ONLINE
    add_version(session, dataset, 2, state=VersionState.INDEXING)
    assert run_due(session, now=TWO + timedelta(days=2))
    assert len(session.scalars(select(DatasetVersion)).all()) == 2


def nightly_version(
    session: Session, cast: Cast, dgx: Appliance, dataset: Dataset
) -> DatasetVersion:
    """The version that a schedule has made of a source, which dgx-01 reads."""
    dgx.labels = {"pool": "train"}
    create_prefetch(session, scope_of(cast.alice), dataset.id, NIGHTLY, now=NOON)
    assert run_due(session, now=TWO)
    version = session.scalars(select(DatasetVersion).where(DatasetVersion.number == 2)).one()
    assert version.indexing_appliance_id == dgx.id
    return version


def read_source(session: Session, version: DatasetVersion, *, digest: str) -> DatasetVersion:
    """Let the agent send a manifest with a digest."""
    head = ManifestHead(file_count=3, total_bytes=2 * TIB, pages=[])
    return publish(session, version, Publication(head, digest, frozenset()), TWO)


def test_an_unchanged_source_makes_no_version(
    session: Session, cast: Cast, dgx: Appliance, dataset: Dataset
) -> None:
    version = nightly_version(session, cast, dgx, dataset)
    before = generation(session, dgx)
    assert read_source(session, version, digest=DIGEST).number == 1
    session.expire_all()
    assert [row.number for row in dataset.versions] == [1]
    assert generation(session, dgx) == before + 1
    assert ordered(session, dgx) == [1]


def test_a_changed_source_is_fetched_once_its_version_is_ready(
    session: Session, cast: Cast, dgx: Appliance, dataset: Dataset
) -> None:
    version = nightly_version(session, cast, dgx, dataset)
    assert ordered(session, dgx) == [1]
    before = generation(session, dgx)
    read_source(session, version, digest="e" * 64)
    assert generation(session, dgx) > before
    assert ordered(session, dgx) == [2]


def test_copies_are_listed_with_their_appliance_and_version(
    session: Session, cast: Cast, dgx: Appliance, dataset: Dataset
) -> None:
    second = add_version(session, dataset, 2)
    report_copies(session, dgx, copy_of(dataset.versions[0]), copy_of(second, cached_bytes=TIB))
    page = list_copies(session, scope_of(cast.bob), dataset.id, sort="-number")
    assert page.total == 2
    assert [(row.appliance_name, row.number, row.copy.cached_bytes) for row in page.items] == [
        ("dgx-01", 2, TIB),
        ("dgx-01", 1, 2 * TIB),
    ]
