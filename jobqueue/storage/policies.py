"""Cleanup policies: which images and stopped containers of a tenant's appliances are deleted.

`plan_cleanup` says when, and why the others stay; it is pure.
"""

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from sqlalchemy.orm import Session

from core.clock import from_ns
from core.errors import InvalidInputError
from jobqueue.storage.models import CleanupPolicies
from protocol.storage import CleanupOrder, StorageReport, StoredImage, full_image_name
from tenants.permissions import Permission
from tenants.scope import Scope
from tenants.tenants import get_tenant

MAX_SITES = 200
MAX_SITE_LENGTH = 100
MAX_DAYS = 3650
_MAXIMA = {"image_days": MAX_DAYS, "disk_percent": 100, "container_days": MAX_DAYS}


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupPolicy:
    """The limits above which images and containers are deleted.

    Attributes:
        is_automatic: whether they are deleted when the agent reports, every ten minutes; otherwise
            only when a user starts it.
        image_days: images that no job used for so many days.
        disk_percent: while more of the disk is used, further images, the least recently used first.
        container_days: stopped containers of others, if they are included, after so many days.
        includes_others: whether images that no job used, and containers of no job, are included.
    """

    is_automatic: bool = True
    image_days: int = 30
    disk_percent: int = 85
    container_days: int = 7
    includes_others: bool = False


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


def read_policies(session: Session, scope: Scope, tenant_id: str) -> dict[str, CleanupPolicy]:
    """Return the policies of a tenant in the scope by site; `""` is for all others."""
    return policies_of(session, get_tenant(session, scope, tenant_id).id)


def policies_of(session: Session, tenant_id: str) -> dict[str, CleanupPolicy]:
    """Return the policies of a tenant by site."""
    row = session.get(CleanupPolicies, tenant_id)
    stored = {site: CleanupPolicy(**values) for site, values in row.policies.items()} if row else {}
    return {"": CleanupPolicy()} | stored


def policy_for(session: Session, tenant_id: str, site: str) -> tuple[CleanupPolicy, str]:
    """Return the policy of an appliance at a site, and the site it is of."""
    policies = policies_of(session, tenant_id)
    policy_site = site if site in policies else ""
    return policies[policy_site], policy_site


def set_policies(
    session: Session, scope: Scope, tenant_id: str, policies: Mapping[str, CleanupPolicy]
) -> dict[str, CleanupPolicy]:
    """Replace the policies of a tenant; without one for `""`, that is the default.

    Raises:
        InvalidInputError: names every invalid field.
    """
    scope.require(Permission.MANAGE_APPLIANCES)
    get_tenant(session, scope, tenant_id)
    errors: dict[str, list[str]] = {}
    if len(policies) > MAX_SITES:
        errors["site"] = [f"There are policies for {len(policies)} sites; use at most {MAX_SITES}."]
    for site, policy in policies.items():
        if len(site) > MAX_SITE_LENGTH:
            errors["site"] = [f"A site has at most {MAX_SITE_LENGTH} characters."]
        for name, maximum in _MAXIMA.items():
            value = getattr(policy, name)
            if not 1 <= value <= maximum:
                errors.setdefault(name, []).append(f"{name} is {value}; enter 1 to {maximum}.")
    if errors:
        details = " ".join(text for texts in errors.values() for text in texts)
        raise InvalidInputError(f"The policies were not changed. {details}", errors=errors)
    row = session.get(CleanupPolicies, tenant_id)
    if row is None:
        row = CleanupPolicies(tenant_id=tenant_id)
        session.add(row)
    row.policies = {site: asdict(policy) for site, policy in policies.items()}
    session.flush()
    return policies_of(session, tenant_id)


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
