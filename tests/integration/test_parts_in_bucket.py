"""The parts store in a bucket of S3: stored, read, deleted, and away."""

from pathlib import Path

import pytest

from core.errors import NotFoundError, UnavailableError
from core.settings import ServerSettings
from datasets.parts import PartStore
from protocol.manifests import content_hash
from tests.fixtures.s3 import credentials, new_bucket

DATA = b"content"
SHA256 = content_hash(DATA)


def test_parts_are_in_a_bucket_until_their_tenant_is_removed(
    s3_endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in credentials(s3_endpoint).items():
        monkeypatch.setenv(name, value)
    bucket = new_bucket(s3_endpoint)
    store = PartStore(ServerSettings(data_dir=tmp_path, data_url=f"s3://{bucket.name}/vedette"))
    for tenant in ("acme", "globex"):
        store.put(tenant, SHA256, DATA)
        store.put(tenant, SHA256, DATA)
    assert store.get("acme", SHA256) == DATA
    store.delete("acme", [SHA256, "0" * 64])
    with pytest.raises(NotFoundError):
        store.get("acme", SHA256)
    store.put("acme", SHA256, DATA)
    store.delete_tenant("acme")
    with pytest.raises(NotFoundError):
        store.get("acme", SHA256)
    assert store.get("globex", SHA256) == DATA
    export = tmp_path / "acme-1.zip"
    export.write_bytes(bytes(12_000_000))  # in several parts
    store.put_export(export)
    pieces = list(store.export(export.name))
    assert (sum(map(len, pieces)), export.exists()) == (12_000_000, False)
    assert max(map(len, pieces)) < 12_000_000
    store.delete_export(export.name)
    store.delete_export(export.name)
    with pytest.raises(NotFoundError):
        list(store.export(export.name))
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_endpoint)
    missing = PartStore(ServerSettings(data_dir=tmp_path, data_url="s3://no-such-bucket"))
    with pytest.raises(UnavailableError, match="data_url"):
        missing.put("acme", SHA256, DATA)
