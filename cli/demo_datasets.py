"""Datasets of the demo: a small one that was uploaded twice, and one in a bucket."""

import json
from datetime import datetime, timedelta

from sqlalchemy import select

from core.db import SessionFactory, transaction
from core.settings import ServerSettings
from datasets.catalog import DatasetRequest, VersionRequest, create_dataset, create_version
from datasets.manifests import check_manifest, publish
from datasets.models import Dataset
from datasets.parts import PartStore, record_part
from protocol.manifests import ManifestWriter
from tenants.models import User
from tenants.scope import Scope

UPLOADED = DatasetRequest(name="cat-labels", description="Who is in the pictures")
IN_BUCKET = DatasetRequest(
    name="imagenet-2012",
    description="1.28 million images in 1,000 classes",
    source_url="s3://acme-data/imagenet-2012",
)
_VERSIONS = ((9, 120), (2, 150))
"""How many days ago each was made, and with how many files."""


def add_datasets(
    sessions: SessionFactory, settings: ServerSettings, email: str, *, now: datetime
) -> None:
    """Add the datasets of a user of the demo, unless the tenant has any."""
    with transaction(sessions) as session:
        scope = Scope.of(session.scalars(select(User).where(User.email == email)).one())
        has_any = select(Dataset.id).where(Dataset.tenant_id == scope.tenant_id).limit(1)
        if session.scalar(has_any):
            return
        create_dataset(session, scope, IN_BUCKET, now=now)
        dataset = create_dataset(session, scope, UPLOADED, now=now - timedelta(days=9))
    store = PartStore(settings)
    for days, count in _VERSIONS:
        made_at = now - timedelta(days=days)
        _add_version(sessions, store, scope, dataset, files=_files(count), now=made_at)


def _add_version(
    sessions: SessionFactory,
    store: PartStore,
    scope: Scope,
    dataset: Dataset,
    *,
    files: dict[str, bytes],
    now: datetime,
) -> None:
    contents: dict[str, bytes] = {}
    writer = ManifestWriter(lambda part, data: contents.update({part.sha256.hex(): data}))
    pages = [
        page for path, data in sorted(files.items()) for page in writer.add(path, len(data), [data])
    ]
    contents |= {page.entry.sha256: page.data for page in (*pages, *writer.finish())}
    for sha256, data in contents.items():
        store.put(dataset.tenant_id, sha256, data)
    publication = check_manifest(store, dataset.tenant_id, writer.head(), has_parts=True)
    with transaction(sessions) as session:
        for sha256, data in contents.items():
            record_part(session, dataset.tenant_id, sha256, len(data), now)
        version = create_version(session, scope, dataset.id, VersionRequest(), now=now)
        publish(session, version, publication, now)


def _files(count: int) -> dict[str, bytes]:
    files = {
        f"{'train' if number % 5 else 'test'}/{number:05}.json": json.dumps(
            {"image": f"{number:05}.jpg", "cats": number % 4, "boxes": [[number, 8, 90, 64]] * 20}
        ).encode()
        for number in range(count)
    }
    return files | {"README.md": f"{count} pictures with their cats.\n".encode()}
