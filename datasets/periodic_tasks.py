"""The periodic tasks of datasets: sources that wait for an appliance, uploads, unused parts."""

import logging
from collections import defaultdict
from collections.abc import Sequence
from datetime import timedelta

from sqlalchemy import delete, select

from core.db import transaction
from core.periodic_tasks import PeriodicTask, SchedulerContext
from core.settings import ServerSettings
from datasets.catalog import fail_version
from datasets.indexing import reassign
from datasets.models import DatasetVersion, VersionPart, VersionState
from datasets.parts import PartStore, forget_parts, note_buckets, unused_parts
from datasets.prefetches import run_due

log = logging.getLogger(__name__)

ABANDONED_AFTER = timedelta(days=1)
_BATCH = 200


class DatasetTasks:
    """Lets appliances read sources, and deletes what nobody needs."""

    def __init__(self, settings: ServerSettings, context: SchedulerContext) -> None:
        self._context = context
        self._store = PartStore(settings)

    def table(self) -> Sequence[PeriodicTask]:
        """Return the tasks."""
        return [
            PeriodicTask(self.reassign_sources, 10),
            PeriodicTask(self.refresh_sources, 15),
            PeriodicTask(self.end_abandoned_uploads, 600),
            PeriodicTask(self.sweep_parts, 600),
        ]

    def reassign_sources(self) -> None:
        """Give sources whose appliance is away to another one."""
        with transaction(self._context.sessions) as session:
            count = reassign(session)
        if count:
            log.info("%d sources of datasets are read by another appliance", count)

    def refresh_sources(self) -> None:
        """Read the sources again whose schedules are due."""
        has_run = True
        while has_run and not self._context.is_stopping():
            with transaction(self._context.sessions) as session:
                has_run = run_due(session, now=self._context.clock())

    def end_abandoned_uploads(self) -> None:
        """Let uploads fail that made no progress for a day; their parts are swept later."""
        before = self._context.clock() - ABANDONED_AFTER
        statement = select(DatasetVersion).where(
            DatasetVersion.state == VersionState.UPLOADING, DatasetVersion.active_at < before
        )
        with transaction(self._context.sessions) as session:
            for version in session.scalars(statement.limit(_BATCH)).unique().all():
                fail_version(session, version, "The upload stopped. Upload the files again.")
                session.execute(delete(VersionPart).where(VersionPart.version_id == version.id))

    def sweep_parts(self) -> None:
        """Delete parts to which nothing has referred for a day.

        Those in tenants' own buckets are not the portal's to delete here.
        """
        with transaction(self._context.sessions) as session:
            note_buckets(session)
        count = _BATCH
        while count >= _BATCH and not self._context.is_stopping():
            with transaction(self._context.sessions) as session:
                now = self._context.clock()
                parts = unused_parts(session, now, _BATCH, is_in_bucket=False)
            count = len(parts)
            by_tenant = defaultdict[str, list[str]](list)
            for tenant_id, sha256, _ in parts:
                by_tenant[tenant_id].append(sha256)
            for tenant_id, sha256s in by_tenant.items():
                self._store.delete(tenant_id, sha256s)
            with transaction(self._context.sessions) as session:
                forget_parts(session, [(tenant_id, sha256) for tenant_id, sha256, _ in parts])
            if count:
                log.info("deleted %d unused parts of data", count)

    def delete_data(self, tenant_id: str) -> None:
        """Delete the parts of a tenant that is removed."""
        self._store.delete_tenant(tenant_id)
