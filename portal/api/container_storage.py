"""`/appliances/ID/storage` and `/tenants/ID/cleanup-policies`: images and stopped containers."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from marshmallow import Schema, fields, validate
from sqlalchemy.orm import Session

from core.clock import from_ns
from jobqueue.storage.policies import (
    MAX_DAYS,
    MAX_SITE_LENGTH,
    CleanupPolicy,
    Verdict,
    read_policies,
    set_policies,
)
from jobqueue.storage.service import StorageView, read_storage, start_cleanup
from portal.api.blueprint import APIBlueprint
from portal.api.objects import Objects
from portal.api.schemas import StrictSchema, about, instant
from portal.context import current_scope, database, now
from tenants.models import Tenant
from tenants.permissions import Permission

container_storage = APIBlueprint(
    "Container storage",
    "/appliances",
    "Images and stopped containers on appliances, and deleting them.",
    changes=Permission.MANAGE_APPLIANCES,
)
cleanup_policies = APIBlueprint(
    "Cleanup policies",
    "/tenants",
    "When images and stopped containers are deleted.",
    changes=Permission.MANAGE_APPLIANCES,
)
_DEFAULT = CleanupPolicy()
_DAYS = validate.Range(1, MAX_DAYS)


class CleanupPolicySchema(StrictSchema):
    """When images and stopped containers are deleted on the appliances of a site."""

    site = fields.String(
        load_default="",
        validate=validate.Length(max=MAX_SITE_LENGTH),
        **about("Empty is for all sites without a policy of their own."),
    )
    is_automatic = fields.Boolean(
        load_default=_DEFAULT.is_automatic, **about("Otherwise only when a user starts a cleanup.")
    )
    image_days = fields.Integer(
        strict=True,
        load_default=_DEFAULT.image_days,
        validate=_DAYS,
        **about("Images that no job used for so many days are deleted."),
    )
    disk_percent = fields.Integer(
        strict=True,
        load_default=_DEFAULT.disk_percent,
        validate=validate.Range(1, 100),
        **about(
            "While more of the disk is used, further images are deleted, the "
            "least recently used first."
        ),
    )
    container_days = fields.Integer(
        strict=True,
        load_default=_DEFAULT.container_days,
        validate=_DAYS,
        **about("Containers of no job are deleted so many days after they stop."),
    )
    includes_others = fields.Boolean(
        load_default=_DEFAULT.includes_others,
        **about("Include containers of no job, and images that no job used."),
    )


class CleanupPoliciesSchema(StrictSchema):
    """The policies of a tenant."""

    policies = fields.List(fields.Nested(CleanupPolicySchema), required=True)


class StoredImageSchema(Schema):
    """An image on an appliance."""

    id = fields.String()
    names = fields.List(fields.String())
    size_bytes = fields.Integer(**about("Layers shared with others included."))
    used_at = instant(**about("When a job used it last; null if none did."))
    verdict = fields.Enum(
        Verdict,
        by_value=True,
        **about(
            "`age` and `disk_use` are deleted at the next cleanup; the others are why it stays."
        ),
    )


class StoppedContainerSchema(Schema):
    """A stopped container of no job on an appliance."""

    id = fields.String()
    name = fields.String()
    image = fields.String()
    finished_at = instant()
    verdict = fields.Enum(Verdict, by_value=True)


class CleanupSchema(Schema):
    """The result of the last cleanup."""

    finished_at = instant()
    images = fields.Integer()
    containers = fields.Integer()
    freed_bytes = fields.Integer()
    errors = fields.List(fields.String())


class ContainerStorageSchema(Schema):
    """Images and stopped containers, and what the next cleanup deletes."""

    reported_at = instant(**about("Null if the agent reports no storage."))
    requested_at = instant(**about("When a cleanup was started that is due."))
    disk_total_bytes = fields.Integer(**about("0 if unknown."))
    disk_free_bytes = fields.Integer()
    images = fields.List(fields.Nested(StoredImageSchema))
    containers = fields.List(fields.Nested(StoppedContainerSchema))
    policy = fields.Nested(CleanupPolicySchema)
    cleanup = fields.Nested(CleanupSchema, allow_none=True)


@container_storage.operation("GET", "/<appliance_id>/storage", answer=ContainerStorageSchema)
def show(appliance_id: str) -> dict[str, Any]:
    """Return the images and stopped containers of an appliance."""
    with database() as session:
        return _shaped(read_storage(session, current_scope(), appliance_id, now=now()))


@container_storage.operation("POST", "/<appliance_id>/storage/clean", answer=ContainerStorageSchema)
def clean(appliance_id: str) -> dict[str, Any]:
    """Delete the images and containers that the policy says, as soon as the agent is reached.

    `requested_at` is null again once it has its order, and `cleanup` has the result.
    """
    with database() as session:
        start_cleanup(session, current_scope(), appliance_id, now=now())
        return _shaped(read_storage(session, current_scope(), appliance_id, now=now()))


def _policies(*, policies: list[dict[str, Any]]) -> dict[str, CleanupPolicy]:
    return {policy.pop("site"): CleanupPolicy(**policy) for policy in policies}


def _shown(_session: Session, tenants: Sequence[dict[str, CleanupPolicy]]) -> list[dict[str, Any]]:
    return [
        {"policies": [{"site": site, **asdict(policy)} for site, policy in sorted(sites.items())]}
        for sites in tenants
    ]


policies = Objects(
    cleanup_policies,
    "/<tenant_id>/cleanup-policies",
    read=read_policies,
    answer=CleanupPoliciesSchema,
    shown=_shown,
    model=Tenant,
    body=CleanupPoliciesSchema,
    request=_policies,
)
policies.shows("Return a tenant's policies by site.", name="show_policies")
policies.replaces(
    "Replace a tenant's policies; they apply from the agents' next reports.", set_policies
)


def _shaped(view: StorageView) -> dict[str, Any]:
    report, done = view.report, view.cleanup
    return {
        "reported_at": view.reported_at,
        "requested_at": view.requested_at,
        "disk_total_bytes": report.disk_total_bytes if report else 0,
        "disk_free_bytes": report.disk_free_bytes if report else 0,
        "images": [
            {
                "id": image.image_id,
                "names": image.names,
                "size_bytes": image.size_bytes,
                "used_at": from_ns(image.used_at_ns) if image.used_at_ns else None,
                "verdict": view.plan.images[image.image_id],
            }
            for image in (report.images if report else ())
        ],
        "containers": [
            {
                "id": container.container_id,
                "name": container.name,
                "image": container.image,
                "finished_at": from_ns(container.finished_at_ns),
                "verdict": view.plan.containers[container.container_id],
            }
            for container in (report.containers if report else ())
        ],
        "policy": {"site": view.policy_site, **asdict(view.policy)},
        "cleanup": None
        if done is None
        else {
            "finished_at": from_ns(done.finished_at_ns),
            "images": done.images,
            "containers": done.containers,
            "freed_bytes": done.freed_bytes,
            "errors": done.errors,
        },
    }
