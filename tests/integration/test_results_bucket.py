"""Results in a tenant's own bucket: signed addresses, and no credentials on the appliance."""

from ipaddress import ip_network
from pathlib import Path
from threading import Event

import obstore
import pytest
import requests
from obstore.store import S3Store
from sqlalchemy import select

from alerting.notification.senders.webhooks import AddressPolicy, WebhookClient
from collector.results.restoring import Restore
from core.clock import utc_now
from core.secretbox import SecretBox
from core.settings import ServerSettings
from datasets.buckets import Bucket as SignedBucket
from datasets.models import DataConnection, DataPart, TenantDataSettings
from jobqueue.results.artifacts import Part
from portal.presenters.artifacts import read_bucket
from tests.cast import Cast
from tests.fixtures.s3 import Bucket, new_bucket, s3_server
from tests.unit.access.conftest import api, dgx, settings, store
from tests.unit.access.test_results import Site, site

__all__ = ["api", "dgx", "settings", "site", "store"]


@pytest.fixture
def bucket(s3_endpoint: str) -> Bucket:
    return new_bucket(s3_endpoint)


def test_results_go_to_the_tenants_bucket_and_come_back(
    *, site: Site, bucket: Bucket, cast: Cast, settings: ServerSettings, tmp_path: Path
) -> None:
    with site.sessions.begin() as session:
        connection = DataConnection(
            tenant_id=cast.acme.id,
            name="bucket",
            url=f"s3://{bucket.name}/vedette",
            endpoint_url=bucket.endpoint,
            access_key_id="key",
            secrets=SecretBox.of(settings).encrypt('{"secret_access_key": "secret"}'),
            created_at=utc_now(),
        )
        session.add(connection)
        session.flush()
        session.add(TenantDataSettings(tenant_id=cast.acme.id, results_connection_id=connection.id))
    folder = site.output()
    (folder.host_paths()[0] / "model.pt").write_bytes(b"weights" * 1000)
    (folder.host_paths()[0] / "empty").write_bytes(b"")

    assert site.uploads(folder)(is_final=True)

    assert site.stored() == {"/out/model.pt": 7000, "/out/empty": 0}
    client = S3Store(
        bucket.name,
        endpoint=bucket.endpoint,
        region="us-east-1",
        access_key_id="key",
        secret_access_key="secret",
        client_options={"allow_http": True},
    )
    paths = [entry["path"] for page in obstore.list(client) for entry in page]
    digest = folder.files["/out/model.pt"].sha256
    assert paths == [f"vedette/parts/{digest[:2]}/{digest}"]
    assert not list((settings.data_dir / "data").rglob(digest))
    with site.sessions() as session:
        assert session.scalars(select(DataPart.is_in_bucket)).all() == [True]
    with site.sessions.begin() as session:
        # Results go elsewhere from now on; these stay where they are.
        session.get_one(TenantDataSettings, cast.acme.id).results_connection_id = None
    files = b"".join(path.read_bytes() for path in site.folder.rglob("*.json"))
    assert b"secret" not in files

    site.folder = tmp_path / "elsewhere"
    site.folder.mkdir()
    restored = site.output()
    Restore(restored, site.client(), stop=Event()).run()
    assert (restored.host_paths()[0] / "model.pt").read_bytes() == b"weights" * 1000
    source = site.client().portal.result_source(site.attempt_id, digest)
    assert requests.get(source.url, timeout=60).content == b"weights" * 1000


def test_a_range_of_a_part_in_a_bucket_is_all_that_is_read(tmp_path: Path) -> None:
    content = b"0123456789" * 1000
    part = Part("ab" * 32, len(content), is_in_bucket=True)
    client = WebhookClient(60, policy=AddressPolicy(allowed=(ip_network("127.0.0.0/8"),)))
    with s3_server(tmp_path) as endpoint:
        store = S3Store(
            new_bucket(endpoint).name,
            endpoint=endpoint,
            region="us-east-1",
            access_key_id="key",
            secret_access_key="secret",
            client_options={"allow_http": True},
        )
        bucket = SignedBucket(store)
        requests.put(bucket.put_url(part.sha256), data=content, timeout=60).raise_for_status()
        assert read_bucket(client, bucket, part, 3, 13) == b"3456789012"
        assert read_bucket(client, bucket, part, 0, len(content)) == content
        log = (tmp_path / "moto.log").read_text("utf-8")
    gets = [line for line in log.splitlines() if '"GET' in line and "parts/" in line]
    assert [" 206 " in line for line in gets] == [True, False]
