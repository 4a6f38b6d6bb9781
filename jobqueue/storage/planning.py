"""Which images and stopped containers are deleted, and why the others stay: a pure function."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from core.clock import from_ns
from jobqueue.storage.policies import CleanupPolicy
from protocol.storage import CleanupOrder, StorageReport, StoredImage, full_image_name


class Verdict(StrEnum):
    """The fate of an image or container at the next cleanup; the first two delete it."""

    AGE = "age"
    DISK_USE = "disk_use"
    IN_USE = "in_use"
    QUEUED_JOB = "queued_job"
    NOT_OF_JOBS = "not_of_jobs"
    RECENT = "recent"

    @property
    def is_deleted(self) -> bool:
        """Return whether it is deleted."""
        return self in {Verdict.AGE, Verdict.DISK_USE}


@dataclass(frozen=True, slots=True)
class Plan:
    """The verdicts by id."""

    images: dict[str, Verdict]
    containers: dict[str, Verdict]

    def order(self) -> CleanupOrder:
        """Return what the agent is to delete."""
        return CleanupOrder(
            images=[ident for ident, verdict in self.images.items() if verdict.is_deleted],
            containers=[ident for ident, verdict in self.containers.items() if verdict.is_deleted],
        )


def plan_cleanup(
    report: StorageReport, policy: CleanupPolicy, *, wanted: Collection[str], now: datetime
) -> Plan:
    """Return the verdicts on a report.

    Args:
        report: what is on the appliance.
        policy: of its tenant and site.
        wanted: the images of the jobs that run or wait there.
        now: the time.
    """
    names = {full_image_name(name) for name in wanted}
    oldest_at = now - timedelta(days=policy.image_days)
    images: dict[str, Verdict] = {}
    for image in report.images:
        if image.is_in_use:
            images[image.image_id] = Verdict.IN_USE
        elif names & {full_image_name(name) for name in image.names}:
            images[image.image_id] = Verdict.QUEUED_JOB
        elif not image.used_at_ns and not policy.includes_others:
            images[image.image_id] = Verdict.NOT_OF_JOBS
        elif from_ns(_last_ns(image)) < oldest_at:
            images[image.image_id] = Verdict.AGE
        else:
            images[image.image_id] = Verdict.RECENT
    for image in _for_disk(report, policy, images):
        images[image.image_id] = Verdict.DISK_USE
    finished_before = now - timedelta(days=policy.container_days)
    return Plan(
        images,
        {
            container.container_id: Verdict.NOT_OF_JOBS
            if not policy.includes_others
            else Verdict.AGE
            if from_ns(container.finished_at_ns) < finished_before
            else Verdict.RECENT
            for container in report.containers
        },
    )


def _for_disk(
    report: StorageReport, policy: CleanupPolicy, images: dict[str, Verdict]
) -> list[StoredImage]:
    """Return the images to delete for the disk, as few as bring it below its limit."""
    used = report.disk_total_bytes - report.disk_free_bytes
    excess = used - report.disk_total_bytes * policy.disk_percent / 100
    excess -= sum(
        image.size_bytes for image in report.images if images[image.image_id] is Verdict.AGE
    )
    images_to_delete = []
    recent = [image for image in report.images if images[image.image_id] is Verdict.RECENT]
    for image in sorted(recent, key=_last_ns):
        if excess <= 0:
            break
        images_to_delete.append(image)
        excess -= image.size_bytes
    return images_to_delete


def _last_ns(image: StoredImage) -> int:
    return max(image.used_at_ns, image.seen_at_ns)
