"""Deletes parts from tenants' own buckets, once nothing refers to them.

The bucket's address is the tenant's, so that only addresses are reached that webhooks may. What
can't be deleted stays in the bucket, where a lifecycle rule of the tenant may delete it: it must
not keep the parts of other tenants from their deletion.
"""

import logging
from collections.abc import Callable
from datetime import datetime
from http.client import HTTPException

from sqlalchemy.orm import Session

from alerting.notification.senders.webhooks import BlockedAddressError, WebhookClient
from core.db import SessionFactory, transaction
from core.errors import UnavailableError
from core.secretbox import SecretBox
from datasets.buckets import Bucket, bucket_of
from datasets.parts import forget_parts, unused_parts

log = logging.getLogger(__name__)

BATCH = 100
_DELETED = frozenset({200, 204, 404})


def sweep_bucket_parts(
    sessions: SessionFactory,
    client: WebhookClient,
    box: SecretBox,
    *,
    now: datetime,
    is_stopping: Callable[[], bool],
) -> None:
    """Delete the parts in buckets that nobody has used for a day."""
    count = BATCH
    while count >= BATCH and not is_stopping():
        with transaction(sessions) as session:
            parts = unused_parts(session, now, BATCH, is_in_bucket=True)
            connections = {connection_id: tenant_id for tenant_id, _, connection_id in parts}
            buckets = {
                connection_id: _bucket(session, connection_id, box, tenant_id=tenant_id)
                for connection_id, tenant_id in connections.items()
            }
        count = len(parts)
        failed: set[str | None] = set()
        for tenant_id, sha256, connection_id in parts:
            bucket = buckets[connection_id]
            if bucket is None or connection_id in failed:
                continue
            if problem := _delete(client, bucket, sha256):
                failed.add(connection_id)
                log.warning(
                    "unused results of tenant %s stay in its bucket: %s", tenant_id, problem
                )
        with transaction(sessions) as session:
            forget_parts(session, [(tenant_id, sha256) for tenant_id, sha256, _ in parts])


def _bucket(
    session: Session, connection_id: str | None, box: SecretBox, *, tenant_id: str
) -> Bucket | None:
    """Return the bucket of a connection; None if there is none, or it can't be used."""
    try:
        return bucket_of(session, connection_id, box)
    except UnavailableError as error:
        log.warning("unused results of tenant %s stay in its bucket: %s", tenant_id, error.message)
        return None


def _delete(client: WebhookClient, bucket: Bucket, sha256: str) -> str:
    """Delete a part; return what is wrong, or ""."""
    try:
        response, _ = client.request("DELETE", bucket.delete_url(sha256), body=b"", headers={})
    except BlockedAddressError:
        return "it is in a private network (webhook_allowed_networks)"
    except (OSError, HTTPException, UnavailableError) as error:
        return str(error)
    return "" if response.status in _DELETED else f"it answered {response.status}"
