"""Unused parts in tenants' buckets are forgotten, also where a bucket can't be used."""

from datetime import timedelta

from sqlalchemy import select

from alerting.notification.senders.webhooks import AddressPolicy, WebhookClient
from core.db import SessionFactory
from core.secretbox import SecretBox, new_key
from datasets.models import DataConnection, DataPart, TenantDataSettings
from datasets.parts import record_part
from scheduler.bucket_parts import sweep_bucket_parts
from tests.cast import BOX, NOON, Cast


def test_a_bucket_without_usable_credentials_does_not_keep_the_parts_of_others(
    sessions: SessionFactory, cast: Cast
) -> None:
    with sessions.begin() as session:
        connection = DataConnection(
            tenant_id=cast.acme.id,
            name="lost-key",
            url="s3://acme",
            secrets=SecretBox([new_key()]).encrypt("{}"),
            created_at=NOON,
        )
        session.add(connection)
        session.flush()
        session.add(TenantDataSettings(tenant_id=cast.acme.id, results_connection_id=connection.id))
        for tenant in (cast.acme, cast.globex):
            record_part(session, tenant.id, "0" * 64, 5, NOON, connection_id=connection.id)
    later = NOON + timedelta(days=2)
    client = WebhookClient(1.0, policy=AddressPolicy())
    sweep_bucket_parts(sessions, client, BOX, now=later, is_stopping=lambda: False)
    with sessions() as session:
        assert session.scalars(select(DataPart)).all() == []
