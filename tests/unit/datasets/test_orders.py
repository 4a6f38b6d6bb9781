"""What appliances get as orders: prefetches, pins, sources to index, and peers."""

import msgspec
import pytest
from sqlalchemy.orm import Session

from core.errors import UnavailableError
from core.secretbox import SecretBox, new_key
from datasets.models import DataConnection, Dataset, DatasetPrefetch, DatasetVersion, VersionState
from datasets.staging import dataset_orders, staged_datasets
from protocol.datasets import DatasetOrders, SourceKind
from tenants.fleet.agents import fence_appliance
from tenants.fleet.appliance_changes import ApplianceChanges, change_appliance
from tenants.fleet.appliance_service import retire_appliance, revoke_appliance
from tenants.models import Appliance, ApplianceState
from tests.cast import BOX, NOON, Cast, make_appliance, scope_of
from tests.unit.jobqueue.dataset_builders import (
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
def dataset(session: Session, cast: Cast) -> Dataset:
    return add_dataset(session, cast.acme, versions=2)


def order(session: Session, dataset: Dataset, **changes: object) -> DatasetPrefetch:
    row = DatasetPrefetch(
        tenant_id=dataset.tenant_id, dataset_id=dataset.id, created_at=NOON, **changes
    )
    session.add(row)
    session.flush()
    return row


def numbers(orders: DatasetOrders) -> tuple[list[int], list[int]]:
    return [v.number for v in orders.prefetch], [v.number for v in orders.pinned]


def test_an_order_is_for_its_appliance_or_for_those_with_its_labels(
    session: Session, cast: Cast, dgx: Appliance, dataset: Dataset
) -> None:
    other = add_stager(session, cast.acme, "dgx-02")
    other.labels = {"pool": "train", "rack": "7"}
    order(session, dataset, version_id=dataset.versions[0].id, appliance_id=dgx.id)
    order(session, dataset, labels={"pool": "train"}, is_pinned=True)

    assert numbers(dataset_orders(session, dgx.id, BOX)) == ([1], [])
    assert numbers(dataset_orders(session, other.id, BOX)) == ([], [2])


def test_the_newest_ready_version_is_fetched_and_pins_go_first(
    session: Session, dgx: Appliance, dataset: Dataset
) -> None:
    add_version(session, dataset, 3, state=VersionState.INDEXING)
    order(session, dataset)
    order(session, dataset, version_id=dataset.versions[1].id, is_pinned=True)
    assert numbers(dataset_orders(session, dgx.id, BOX)) == ([], [2])


def test_an_agent_without_a_cache_gets_no_orders(
    session: Session, cast: Cast, dataset: Dataset
) -> None:
    old = make_appliance(session, cast.acme, "old-01")
    order(session, dataset)
    assert dataset_orders(session, old.id, BOX) == DatasetOrders()
    assert dataset_orders(session, "gone", BOX) == DatasetOrders()


def test_orders_of_another_tenant_stay_there(
    session: Session, cast: Cast, dgx: Appliance, dataset: Dataset
) -> None:
    foreign = add_dataset(session, cast.globex)
    order(session, foreign)
    order(session, dataset)
    stranger = add_stager(session, cast.globex, "dgx-01")
    [own] = dataset_orders(session, stranger.id, BOX).prefetch
    assert own.version_id == foreign.versions[0].id
    assert numbers(dataset_orders(session, dgx.id, BOX)) == ([2], [])
    mounts = {"a": [{"version_id": own.version_id, "target": "/d"} | _STORED]}
    [staged] = staged_datasets(session, dgx.id, mounts, BOX)["a"]
    assert set(staged.digest) == {"0"}


_STORED = {"dataset": "x", "version": 1, "total_bytes": 1}


def test_the_reader_of_a_source_gets_it_with_its_credentials(
    session: Session, cast: Cast, dgx: Appliance, dataset: Dataset
) -> None:
    secrets = msgspec.json.encode({"secret_access_key": "s3cret", "unknown": "x"}).decode()
    connection = DataConnection(
        tenant_id=cast.acme.id,
        name="lab",
        url="s3://data",
        endpoint_url="https://s3.example",
        region="eu-north-1",
        access_key_id="AKIA",
        secrets=BOX.encrypt(secrets),
        created_at=NOON,
    )
    session.add(connection)
    session.flush()
    dataset.connection_id = connection.id
    add_version(session, dataset, 3, state=VersionState.INDEXING, indexing_appliance_id=dgx.id)
    [index] = dataset_orders(session, dgx.id, BOX).index
    assert (index.name, index.number, index.source.kind) == ("imagenet", 3, SourceKind.S3)
    assert (index.source.access_key_id, index.source.secret_access_key) == ("AKIA", "s3cret")
    assert (index.source.endpoint_url, index.source.region) == ("https://s3.example", "eu-north-1")
    with pytest.raises(UnavailableError):
        dataset_orders(session, dgx.id, SecretBox([new_key()]))


def test_peers_are_appliances_of_the_site_that_have_the_version(
    session: Session, cast: Cast, dgx: Appliance, dataset: Dataset
) -> None:
    version = dataset.versions[1]
    holders = {
        "dgx-02": {},
        "dgx-03": {"site": "bergen"},
        "dgx-04": {},
        "dgx-05": {},
    }
    appliances = {
        name: add_stager(session, cast.acme, name, **changes) for name, changes in holders.items()
    }
    for name, appliance in appliances.items():
        size = 1 if name == "dgx-04" else None
        report_copies(session, appliance, copy_of(version, cached_bytes=size))
    appliances["dgx-05"].state = ApplianceState.LOST
    stranger = add_stager(session, cast.globex, "dgx-06")
    mounts = {"a": [{"version_id": version.id, "target": "/data"} | _STORED]}

    def peers() -> list[str]:
        [staged] = staged_datasets(session, dgx.id, mounts, BOX)["a"]
        return [peer.url for peer in staged.peers]

    assert peers() == []
    assert dataset_orders(session, dgx.id, BOX).peers == []
    allow_peers(session, cast.acme)
    assert peers() == ["https://dgx-02:7443", "https://dgx-04:7443"]
    may_fetch = dataset_orders(session, dgx.id, BOX).peers
    own_site = [appliances[name].id for name in ("dgx-02", "dgx-04", "dgx-05")]
    assert sorted(may_fetch) == sorted(own_site)
    assert stranger.id not in may_fetch
    dgx.site = ""
    assert peers() == []


def test_a_failed_copy_is_no_peer_and_a_version_without_one_has_none(
    session: Session, cast: Cast, dgx: Appliance, dataset: Dataset
) -> None:
    allow_peers(session, cast.acme)
    version: DatasetVersion = dataset.versions[0]
    mounts = {"a": [{"version_id": version.id, "target": "/data"} | _STORED]}
    [staged] = staged_datasets(session, dgx.id, mounts, BOX)["a"]
    assert staged.peers == []
    assert staged_datasets(session, dgx.id, {}, BOX) == {}


@pytest.mark.parametrize("change", ["retired", "revoked", "fenced", "moved"])
def test_neighbors_learn_at_once_that_an_appliance_is_no_peer_any_more(
    session: Session, cast: Cast, dgx: Appliance, change: str
) -> None:
    other = add_stager(session, cast.acme, "dgx-02")
    dgx.site = other.site = "lab"
    report_copies(session, dgx)
    report_copies(session, other)
    allow_peers(session, cast.acme)
    assert dataset_orders(session, dgx.id, BOX).peers == [other.id]
    before, alice = dgx.desired_generation, scope_of(cast.alice)
    match change:
        case "retired":
            retire_appliance(session, alice, other.id, running_jobs=(), now=NOON)
        case "revoked":
            revoke_appliance(session, alice, other.id, now=NOON)
        case "fenced":
            fence_appliance(session, other, reason="cloned", now=NOON)
        case _:
            change_appliance(session, alice, other.id, ApplianceChanges(site="hall"), now=NOON)
    session.refresh(dgx)
    assert dgx.desired_generation > before
    assert dataset_orders(session, dgx.id, BOX).peers == []
