"""Datasets and versions: who may change them, what is refused, and which appliance reads them."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from sqlalchemy.orm import Session

from core.errors import ConflictError, ForbiddenError, InvalidInputError, NotFoundError
from datasets.catalog import (
    DatasetChange,
    DatasetRequest,
    VersionRequest,
    cancel_version,
    create_dataset,
    create_version,
    delete_dataset,
    delete_version,
    get_dataset,
    list_datasets,
    update_dataset,
)
from datasets.connections import (
    ConnectionRequest,
    create_connection,
    delete_connection,
    get_connection,
    update_connection,
)
from datasets.indexing import NO_APPLIANCE, reassign, record_indexing
from datasets.models import Dataset, DatasetVersion, VersionState
from datasets.parts import record_part
from datasets.prefetches import PrefetchRequest, create_prefetch
from datasets.settings import DataSettings
from datasets.settings import set_settings as set_data_settings
from datasets.sources import secrets_of, source_of, source_problem
from datasets.staging import index_orders
from jobqueue.jobs.settings import DataRoot, QueueSettings, set_settings
from protocol.datasets import CopyState, DatasetCopy
from tenants.models import Appliance, ApplianceState
from tests.cast import BOX, NOON, Cast, make_appliance, scope_of
from tests.unit.jobqueue.builders import add_appliance, submit
from tests.unit.jobqueue.dataset_builders import add_dataset, add_stager

S3 = "s3://acme-data/images"
CONNECTION = ConnectionRequest(
    name="minio",
    url="s3://acme-data",
    endpoint_url="https://minio.acme.example",
    access_key_id="AKIA",
    secret_access_key="hidden",
)


@pytest.fixture
def dgx(session: Session, cast: Cast) -> Appliance:
    """An appliance of acme that can stage."""
    return add_appliance(session, cast.acme, "dgx-01", can_stage=True)


def added(session: Session, cast: Cast, name: str = "images", url: str = S3) -> Dataset:
    """Return bob's new dataset."""
    request = DatasetRequest(name=name, source_url=url)
    return create_dataset(session, scope_of(cast.bob), request, now=NOON)


def state_of(session: Session, version: DatasetVersion) -> VersionState:
    session.refresh(version)
    return version.state


def test_users_change_their_own_datasets_and_admins_all(session: Session, cast: Cast) -> None:
    alices = create_dataset(session, scope_of(cast.alice), DatasetRequest(name="a"), now=NOON)
    bobs = create_dataset(session, scope_of(cast.bob), DatasetRequest(name="b"), now=NOON)
    with pytest.raises(ForbiddenError, match="other users"):
        update_dataset(session, scope_of(cast.bob), alices.id, DatasetChange(name="c"))
    assert (
        update_dataset(session, scope_of(cast.alice), bobs.id, DatasetChange(name="c")).name == "c"
    )
    delete_dataset(session, scope_of(cast.bob), bobs.id)
    assert [row.name for row in list_datasets(session, scope_of(cast.bob)).items] == ["a"]


def test_another_tenant_sees_nothing(session: Session, cast: Cast) -> None:
    dataset = added(session, cast, url="")
    charlie = scope_of(cast.charlie)
    assert list_datasets(session, charlie).total == 0
    with pytest.raises(NotFoundError):
        get_dataset(session, charlie, dataset.id)
    connection = create_connection(session, scope_of(cast.alice), CONNECTION, box=BOX, now=NOON)
    request = DatasetRequest(name="x", source_url=S3, connection_id=connection.id)
    with pytest.raises(NotFoundError):
        create_dataset(session, charlie, request, now=NOON)


@pytest.mark.parametrize("name", ["", "a b", "a/b", "a@1", "a:b", "x" * 101, "-a"])
def test_names_that_jobs_could_not_write_are_refused(
    session: Session, cast: Cast, name: str
) -> None:
    with pytest.raises(InvalidInputError, match="letters, digits"):
        added(session, cast, name, "")


def test_a_name_is_taken_once_in_a_tenant(session: Session, cast: Cast) -> None:
    added(session, cast, url="")
    with pytest.raises(InvalidInputError, match="already exists"):
        added(session, cast, url="")
    request = DatasetRequest(name="images")
    assert create_dataset(session, scope_of(cast.charlie), request, now=NOON).name == "images"


@pytest.mark.parametrize(
    "url",
    [
        *("images", "ftp://host/x", "s3://", "s3://B_d/x", "s3://bucket/a/../b", "s3://b1x/a?x=1"),
        *("https://user:secret@host/x", "https://host/", "https:///x", "https://host/x#y"),
        "https://bucket.example/x?X-Amz-Signature=abc",
        *("http://host/x", "file://host/x", "file:///", "file:///a/../b", "nfs://host:2049/x"),
        *("nfs://host", "ipfs://short", "ipfs://bafy/../x", "s3://bucket/a b", "https://h:x/y"),
        *("s3://bucket/" + "x" * 1000, "https://host/a\nb"),
    ],
)
def test_addresses_that_are_no_sources_are_refused(url: str) -> None:
    assert source_problem(url)


@pytest.mark.parametrize(
    "url",
    [
        *("s3://bucket", "s3://my.bucket-1/a/b", "https://host:8443/a.tar?version=2"),
        *("file:///data/images", "nfs://nas.example/export/images"),
        "ipfs://QmYwAPJzv5CZsnA625s3Xf2nemtYgPpHdWEz79ojWnPbdG/readme",
        "ipfs://bafybeigdyrzt5sfp7udm7hu76uh7y26nf3efuylqabf3oclgtqy55fbzdi",
    ],
)
def test_addresses_of_sources_are_accepted(url: str) -> None:
    assert source_problem(url) is None


def test_a_source_is_read_by_an_appliance_that_can(
    session: Session, cast: Cast, dgx: Appliance
) -> None:
    make_appliance(session, cast.acme, "aaa-old-agent")
    add_appliance(session, cast.globex, "bbb", can_stage=True)
    before = dgx.desired_generation
    [version] = added(session, cast).versions
    assert (version.indexing_appliance_id, version.state) == (dgx.id, VersionState.INDEXING)
    session.refresh(dgx)
    assert dgx.desired_generation > before
    [order] = index_orders(session, dgx.id, BOX)
    assert (order.version_id, order.source.url, order.number) == (version.id, S3, 1)


def test_a_source_waits_for_an_appliance_and_moves_to_another(session: Session, cast: Cast) -> None:
    [version] = added(session, cast).versions
    assert version.message == NO_APPLIANCE
    first = add_appliance(session, cast.acme, "dgx-01", can_stage=True)
    assert reassign(session) == 1
    assert version.indexing_appliance_id == first.id
    assert reassign(session) == 0
    first.state = ApplianceState.LOST
    second = add_appliance(session, cast.acme, "dgx-02", can_stage=True)
    assert reassign(session) == 1
    assert version.indexing_appliance_id == second.id
    report = DatasetCopy(version_id=version.id, state=CopyState.FAILED, message="gone")
    record_indexing(session, first.id, [report], NOON)
    assert state_of(session, version) is VersionState.INDEXING
    record_indexing(session, second.id, [report], NOON)
    assert (state_of(session, version), version.message) == (VersionState.FAILED, "gone")
    assert index_orders(session, second.id, BOX) == []


def test_progress_and_what_keeps_it_are_stored(
    session: Session, cast: Cast, dgx: Appliance
) -> None:
    [version] = added(session, cast).versions
    report = DatasetCopy(
        version_id=version.id,
        state=CopyState.FETCHING,
        cached_bytes=500,
        message="the bucket does not answer",
    )
    record_indexing(session, dgx.id, [report], NOON)
    session.refresh(version)
    assert (version.indexed_bytes, version.message) == (500, "the bucket does not answer")


def test_a_path_on_an_appliance_needs_its_name_and_a_data_root(
    session: Session, cast: Cast, dgx: Appliance
) -> None:
    def request(url: str, appliance_id: str | None) -> Dataset:
        wanted = DatasetRequest(name="x", source_url=url, appliance_id=appliance_id)
        return create_dataset(session, scope_of(cast.bob), wanted, now=NOON)

    with pytest.raises(InvalidInputError, match="not in a data root"):
        request("file:///data/images", dgx.id)
    roots = QueueSettings(data_roots=[DataRoot(path="/data", is_read_only=True)])
    set_settings(session, scope_of(cast.alice), cast.acme.id, roots)
    with pytest.raises(InvalidInputError, match="not in a data root"):
        request("file:///database", dgx.id)
    savepoint = session.begin_nested()
    with pytest.raises(InvalidInputError, match="appliance that you choose"):
        request("file:///data/images", None)
    savepoint.rollback()
    [version] = request("file:///data/images", dgx.id).versions
    assert version.requested_appliance_id == dgx.id
    with pytest.raises(ForbiddenError):
        request("nfs://nas/export", dgx.id)


def test_credentials_are_for_sources_below_the_connection(session: Session, cast: Cast) -> None:
    alice = scope_of(cast.alice)
    connection = create_connection(session, alice, CONNECTION, box=BOX, now=NOON)
    assert "hidden" not in (connection.secrets or "")

    def request(url: str) -> Dataset:
        wanted = DatasetRequest(name="x", source_url=url, connection_id=connection.id)
        return create_dataset(session, alice, wanted, now=NOON)

    with pytest.raises(InvalidInputError, match="is for s3://acme-data"):
        request("s3://acme-data-other/images")
    source = source_of(request(S3), BOX)
    assert (source.secret_access_key, source.endpoint_url) == ("hidden", CONNECTION.endpoint_url)
    with pytest.raises(ConflictError, match="Datasets use minio"):
        delete_connection(session, alice, connection.id)


def test_stored_credentials_never_go_to_another_address(session: Session, cast: Cast) -> None:
    alice = scope_of(cast.alice)
    connection = create_connection(session, alice, CONNECTION, box=BOX, now=NOON)
    moved = ConnectionRequest(
        name="minio", url="s3://acme-data", endpoint_url="https://elsewhere.example"
    )
    with pytest.raises(InvalidInputError, match="Enter the credentials again"):
        update_connection(session, alice, connection.id, moved, box=BOX)
    renamed = ConnectionRequest(
        name="store", url=CONNECTION.url, endpoint_url=CONNECTION.endpoint_url
    )
    stored = get_connection(session, alice, connection.id).secrets
    assert update_connection(session, alice, connection.id, renamed, box=BOX).secrets != stored
    with pytest.raises(ForbiddenError):
        update_connection(session, scope_of(cast.bob), connection.id, renamed, box=BOX)


def test_a_source_is_read_once_at_a_time(session: Session, cast: Cast, dgx: Appliance) -> None:
    bob, dataset = scope_of(cast.bob), added(session, cast)
    with pytest.raises(ConflictError, match="Version 1 of images is being read"):
        create_version(session, bob, dataset.id, VersionRequest(), now=NOON)
    cancel_version(session, bob, dataset.versions[0].id)
    with pytest.raises(ConflictError, match="nothing to cancel"):
        cancel_version(session, bob, dataset.versions[0].id)
    version = create_version(session, bob, dataset.id, VersionRequest(), now=NOON)
    assert (version.number, version.indexing_appliance_id) == (2, dgx.id)
    delete_version(session, bob, version.id)
    assert create_version(session, bob, dataset.id, VersionRequest(), now=NOON).number == 3


def test_an_upload_with_the_same_key_goes_on(session: Session, cast: Cast) -> None:
    bob, dataset = scope_of(cast.bob), added(session, cast, url="")
    keys = ["1" * 64, "2" * 64, "1" * 64, None, None]
    versions = [
        create_version(session, bob, dataset.id, VersionRequest(upload_key=key), now=NOON)
        for key in keys
    ]
    assert [version.number for version in versions] == [1, 2, 1, 3, 4]


def test_what_jobs_use_is_not_deleted(session: Session, cast: Cast) -> None:
    bob, dataset = scope_of(cast.bob), added(session, cast, url="")
    first = create_version(session, bob, dataset.id, VersionRequest(), now=NOON)
    second = create_version(session, bob, dataset.id, VersionRequest(), now=NOON)
    job = submit(session, cast.bob, name="train")
    job.options = {"datasets": [{"dataset": dataset.id, "target": "/data", "version": 1}]}
    session.flush()
    with pytest.raises(ConflictError, match=r"use images: train\."):
        delete_dataset(session, bob, dataset.id)
    with pytest.raises(ConflictError, match="use images@1"):
        delete_version(session, bob, first.id)
    delete_version(session, bob, second.id)
    job.finished_at = NOON
    session.flush()
    delete_dataset(session, bob, dataset.id)


def test_a_moved_connection_forgets_all_credentials_that_are_not_entered_again(
    session: Session, cast: Cast
) -> None:
    alice = scope_of(cast.alice)
    request = replace(CONNECTION, bearer_token="old-token")
    connection = create_connection(session, alice, request, box=BOX, now=NOON)
    moved = replace(CONNECTION, endpoint_url="https://elsewhere.example", secret_access_key="new")
    update_connection(session, alice, connection.id, moved, box=BOX)
    assert secrets_of(connection, BOX) == {"secret_access_key": "new"}


def test_a_connection_with_results_stays(session: Session, cast: Cast) -> None:
    alice = scope_of(cast.alice)
    connection = create_connection(session, alice, CONNECTION, box=BOX, now=NOON)
    chosen = DataSettings(results_connection_id=connection.id)
    set_data_settings(session, alice, cast.acme.id, chosen)
    with pytest.raises(ConflictError, match="results are in the bucket"):
        delete_connection(session, alice, connection.id)
    other = replace(CONNECTION, url="https://acme.example/", endpoint_url="")
    with pytest.raises(InvalidInputError, match="must begin with s3"):
        update_connection(session, alice, connection.id, other, box=BOX)
    # Later results go to the portal's store, but earlier ones are still there.
    record_part(session, cast.acme.id, "0" * 64, 5, NOON, connection_id=connection.id)
    set_data_settings(session, alice, cast.acme.id, DataSettings())
    with pytest.raises(ConflictError, match="still in the bucket"):
        delete_connection(session, alice, connection.id)


def test_agents_learn_of_changed_peers_connections_and_deleted_versions(
    session: Session, cast: Cast
) -> None:
    alice, dgx = scope_of(cast.alice), add_stager(session, cast.acme, "dgx-01")
    connection = create_connection(session, alice, CONNECTION, box=BOX, now=NOON)
    dataset = add_dataset(session, cast.acme, versions=2, source_url=S3)
    for number in (1, 2):
        create_prefetch(session, alice, dataset.id, PrefetchRequest(version=number), now=NOON)
    used = DatasetChange(name=dataset.name, connection_id=connection.id)
    first = dataset.versions[0].id
    changes: list[Callable[[], object]] = [
        lambda: set_data_settings(session, alice, cast.acme.id, DataSettings(allows_peers=True)),
        lambda: update_connection(session, alice, connection.id, CONNECTION, box=BOX),
        lambda: update_dataset(session, alice, dataset.id, used),
        lambda: delete_version(session, alice, first),
        lambda: delete_dataset(session, alice, dataset.id),
    ]
    for change in changes:
        session.refresh(dgx)
        before = dgx.desired_generation
        change()
        session.refresh(dgx)
        assert dgx.desired_generation > before


def test_long_options_hide_no_dataset(session: Session, cast: Cast) -> None:
    bob, dataset = scope_of(cast.bob), added(session, cast, url="")
    job = submit(session, cast.bob, name="train")
    mounts = [{"dataset": dataset.name, "target": "/data", "version": 1}]
    job.options = {"a": "x" * 20_000, "datasets": mounts}
    session.flush()
    with pytest.raises(ConflictError, match="use images"):
        delete_dataset(session, bob, dataset.id)
