"""Appliances of a site fetch from each other, with certificates of the portal's authority."""

import random
import ssl
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from http.client import HTTPResponse, HTTPSConnection
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from sqlalchemy.orm import Session

from collector.certificates import AUTHORITIES_NAME, CERTIFICATE_NAME, create_key_and_request
from collector.data_dir import Identity
from collector.datasets.peers import PeerTLS
from collector.datasets.settings import DatasetSettings
from core.clock import utc_now
from protocol.attempts import AttemptSpec, DesiredState
from protocol.datasets import DatasetOrders, PeerAddress, StagedDataset
from tenants.pki.authority import authorities_pem, signing_authority
from tenants.pki.signing import Subject, key_of_request, sign
from tests.cast import BOX
from tests.fixtures.data_portal import DataPortal
from tests.fixtures.polling import eventually
from tests.servers import free_port
from tests.unit.collector.datasets.conftest import GIB, Appliance

NAMES = ("dgx-1", "dgx-2", "dgx-3", "dgx-4")


def enroll(session: Session, folder: Path, name: str, *, tenant_id: str = "acme") -> PeerTLS:
    """Give an appliance the certificate that the portal would."""
    folder.mkdir(parents=True, exist_ok=True)
    now = utc_now()
    key = folder / "key"
    request = create_key_and_request(key)
    authority = signing_authority(session, BOX, now=now)
    certificate = sign(
        authority,
        BOX,
        key_of_request(request),
        Subject(tenant_id=tenant_id, appliance_id=name),
        lifetime=timedelta(days=1),
        now=now,
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    (folder / CERTIFICATE_NAME).write_bytes(key.read_bytes() + pem)
    (folder / AUTHORITIES_NAME).write_text(authorities_pem(session, now=now))
    return PeerTLS(folder, Identity(appliance_id=name, tenant_id=tenant_id, agent_token="t"))


@pytest.fixture
def site(
    session: Session, tmp_path: Path, make_appliance: Callable[..., Appliance]
) -> dict[str, Appliance]:
    """Four appliances that may fetch from each other."""
    appliances = {}
    for name in NAMES:
        settings = DatasetSettings(
            cache_max_bytes=GIB,
            min_free_bytes=0,
            peer_listen=f"127.0.0.1:{free_port()}",
            peer_wait_seconds=20.0,
        )
        tls = enroll(session, tmp_path / "tls" / name, name)
        appliances[name] = make_appliance(name, settings=settings, peer_tls=tls)
    for appliance in appliances.values():
        eventually(partial(getattr, appliance.stager, "is_loaded"), what="the cache")
    return appliances


def addresses(site: dict[str, Appliance]) -> list[PeerAddress]:
    return [
        PeerAddress(appliance_id=name, url=appliance.settings.public_url)
        for name, appliance in site.items()
    ]


def desired(dataset: StagedDataset) -> DesiredState:
    spec = AttemptSpec(attempt_id="a", job_id="j", name="n", image="i", datasets=[dataset])
    return DesiredState(generation=1, attempts=[spec], datasets=DatasetOrders(peers=list(NAMES)))


def dataset_of(portal: DataPortal) -> StagedDataset:
    chosen = random.Random(3)  # noqa: S311 - repeatable
    files = {f"{number:04}.bin": chosen.randbytes(20_000) for number in range(400)}
    portal.add("images", files, pack_bytes=200_000)
    return portal.staged("images")


def test_four_appliances_that_start_at_once_fetch_each_part_once_from_outside(
    site: dict[str, Appliance], portal: DataPortal
) -> None:
    dataset_of(portal)
    dataset = portal.staged("images", peers=addresses(site))
    for appliance in site.values():
        appliance.stager.set_desired(desired(dataset))
    for appliance in site.values():
        appliance.stager.trees("a", [dataset])
    for appliance in site.values():
        eventually(partial(appliance.stager.trees, "a", [dataset]), what="the dataset")
    assert portal.sent_part_bytes == dataset.total_bytes
    copies = [appliance.stager.report().copies[0] for appliance in site.values()]
    assert sum(copy.peer_bytes for copy in copies) == 3 * dataset.total_bytes


def test_a_peer_that_does_not_answer_is_left_out(
    site: dict[str, Appliance], portal: DataPortal
) -> None:
    dataset_of(portal)
    gone = PeerAddress(appliance_id="dgx-2", url=f"https://127.0.0.1:{free_port()}")
    dataset = portal.staged("images", peers=[gone])
    (tree,) = site["dgx-1"].stage(dataset)
    assert sum(path.stat().st_size for path in tree.iterdir()) == dataset.total_bytes


def status_of(appliance: Appliance, tls: PeerTLS, version_id: str) -> int:
    host, port = appliance.settings.peer_address
    connection = HTTPSConnection(host, port, context=tls.client_context(), timeout=10)
    try:
        connection.request("GET", f"/v1/versions/{version_id}")
        return connection.getresponse().status
    finally:
        connection.close()


def test_only_appliances_that_the_portal_lists_get_an_answer(
    site: dict[str, Appliance], session: Session, tmp_path: Path
) -> None:
    site["dgx-1"].stager.set_desired(
        DesiredState(generation=1, datasets=DatasetOrders(peers=["dgx-2"]))
    )
    listed = enroll(session, tmp_path / "again" / "dgx-2", "dgx-2")
    unlisted = enroll(session, tmp_path / "again" / "dgx-3", "dgx-3")
    stranger = enroll(session, tmp_path / "again" / "other", "dgx-2", tenant_id="globex")
    statuses = [status_of(site["dgx-1"], tls, "v") for tls in (listed, unlisted, stranger)]
    assert statuses == [200, 403, 403]


def answer_of(connection: HTTPSConnection) -> HTTPResponse:
    connection.request("GET", "/v1/versions/v")
    return connection.getresponse()


def test_a_client_without_a_certificate_gets_no_answer(site: dict[str, Appliance]) -> None:
    host, port = site["dgx-1"].settings.peer_address
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connection = HTTPSConnection(host, port, context=context, timeout=10)
    with pytest.raises(OSError, match=r"certificate required|EOF|reset|closed"):
        answer_of(connection)
    connection.close()


def test_a_server_with_the_certificate_of_another_appliance_is_not_trusted(
    site: dict[str, Appliance], portal: DataPortal
) -> None:
    dataset_of(portal)
    wrong = PeerAddress(appliance_id="dgx-3", url=site["dgx-2"].settings.public_url)
    site["dgx-2"].stager.set_desired(
        DesiredState(generation=1, datasets=DatasetOrders(peers=["dgx-1"]))
    )
    site["dgx-2"].stage(portal.staged("images"))
    before_bytes = portal.sent_part_bytes
    dataset = portal.staged("images", peers=[wrong])
    site["dgx-1"].stage(dataset)
    assert portal.sent_part_bytes - before_bytes == dataset.total_bytes
