"""Reports the container storage to the portal, and deletes what it orders."""

import logging
from datetime import datetime, timedelta

import msgspec

from collector.jobs.attempts import AttemptRunner
from collector.sending.portal_connection import PortalConnection
from core.clock import Clock
from jobqueue.executors.base import ContainerStorage, ExecutorError
from protocol.storage import CleanupResult

log = logging.getLogger(__name__)

REPORT_INTERVAL = timedelta(minutes=10)
# At the earliest after this time when jobs with other images have come or gone.
CHANGE_INTERVAL = timedelta(minutes=1)
# Deleting a container frees its image, so the order after it has more.
MAX_ROUNDS = 3
STEP_SECONDS = 2.0


class StorageReporter:
    """Reports every ten minutes, when jobs use other images, and when the portal asks.

    For one thread.
    """

    def __init__(self, storage: ContainerStorage, runner: AttemptRunner, clock: Clock) -> None:
        self._storage = storage
        self._runner = runner
        self._clock = clock
        self._generation = 0
        self._reported_at: datetime | None = None
        self._images: set[str] = set()

    def step(self, portal: PortalConnection) -> float:
        """Report if it is due; return the seconds until the next step.

        Raises:
            PortalUnreachableError: the next step reports again.
        """
        now, generation = self._clock(), self._runner.storage_generation
        images = self._runner.desired_images()
        interval = REPORT_INTERVAL if images == self._images else CHANGE_INTERVAL
        is_due = self._reported_at is None or not now - self._reported_at < interval
        if not is_due and generation == self._generation:
            return STEP_SECONDS
        try:
            self._report(portal)
        except ExecutorError as error:
            log.warning("%s", error)
        self._generation, self._reported_at, self._images = generation, now, images
        return STEP_SECONDS

    def _report(self, portal: PortalConnection) -> None:
        result: CleanupResult | None = None
        for _ in range(MAX_ROUNDS):
            report = self._storage.report()
            order = portal.report_storage(msgspec.structs.replace(report, cleanup=result))
            if not order.images and not order.containers:
                return
            result = self._storage.clean(order, keep=self._runner.desired_images())
            log.info("deleted %d images and %d containers", result.images, result.containers)
        portal.report_storage(msgspec.structs.replace(self._storage.report(), cleanup=result))
