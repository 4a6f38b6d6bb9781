"""The images in the registry: rows that follow its notifications, compared with it at intervals.

A notification of a push has tag and digest; the layers are then read from the registry, by digest,
because the tag may not be there yet. Notifications may come twice; lost ones are made up for by
`sync`.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Unpack

from sqlalchemy import ColumnElement, Select, case, delete, func, or_, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from core.db import SessionFactory, transaction
from core.errors import ConflictError, NotFoundError
from core.paging import Columns, Page, Paging, list_page
from jobqueue.images.models import Image
from jobqueue.images.registry import MANIFESTS, Manifest, Registry
from jobqueue.images.tokens import namespace_of
from jobqueue.models import Job
from jobqueue.states import JobState
from tenants.auditing.recording import record
from tenants.models import Tenant
from tenants.permissions import Permission
from tenants.scope import Scope

log = logging.getLogger(__name__)

IMAGE_SORTS: Columns = {
    "repository": Image.repository,
    "tag": Image.tag,
    "size_bytes": Image.size_bytes,
    "pushed_at": Image.pushed_at,
}
MAX_EVENTS = 1000
MAX_OFFERED = 500
_ACTIVE = [state for state in JobState if not state.is_final]


@dataclass(frozen=True, slots=True)
class Notified:
    """One event of the registry: a pushed tag, or without a tag a deleted digest."""

    repository: str
    digest: str
    tag: str = ""
    actor: str = ""


def read_events(body: Mapping[str, Any]) -> list[Notified]:
    """Return the events that change what there is; the registry also reports pulls and layers."""
    notified = []
    events = body.get("events")
    for event in events[:MAX_EVENTS] if isinstance(events, list) else ():
        target, actor = event.get("target") or {}, event.get("actor") or {}
        repository, digest = str(target.get("repository", "")), str(target.get("digest", ""))
        tag, action = str(target.get("tag", "")), event.get("action")
        if action == "push" and tag and target.get("mediaType") in MANIFESTS:
            notified.append(Notified(repository, digest, tag, str(actor.get("name", ""))[:254]))
        elif action == "delete" and digest:
            notified.append(Notified(repository, digest))
    return notified


def follow(
    sessions: SessionFactory,
    registry: Registry,
    events: Iterable[Notified],
    *,
    shared_namespace: str,
    now: datetime,
) -> None:
    """Bring the rows that events name up to date.

    Raises:
        RegistryUnavailableError: the registry must send the rest again.
    """
    for event in events:
        manifest = registry.manifest(event.repository, event.digest) if event.tag else None
        with transaction(sessions) as session:
            if manifest is None:
                _remove(session, event.repository, Image.digest == event.digest)
            else:
                _put(session, event, manifest, shared_namespace=shared_namespace, now=now)


def sync(
    sessions: SessionFactory, registry: Registry, *, shared_namespace: str, now: datetime
) -> int:
    """Compare the rows with the registry; return how many differed.

    Raises:
        RegistryUnavailableError: the next call compares again.
    """
    there: set[tuple[str, str]] = set()
    with transaction(sessions) as session:
        rows = session.execute(select(Image.repository, Image.tag, Image.digest)).all()
    digests = {(repository, tag): digest for repository, tag, digest in rows}
    changed = 0
    for repository in registry.repositories():
        for tag in registry.tags(repository):
            manifest = registry.manifest(repository, tag)
            if manifest is None:
                continue
            there.add((repository, tag))
            if digests.get((repository, tag)) == manifest.digest:
                continue
            event = Notified(repository, manifest.digest, tag)
            with transaction(sessions) as session:
                changed += _put(
                    session, event, manifest, shared_namespace=shared_namespace, now=now
                )
    for repository, tag in digests.keys() - there:
        with transaction(sessions) as session:
            changed += _remove(session, repository, Image.tag == tag)
    return changed


def list_images(
    session: Session, scope: Scope, *, search: str = "", **paging: Unpack[Paging]
) -> Page[Image]:
    """Return the tenant's images and the shared ones, those pushed last first.

    `search` is a part of a repository or of a tag.
    """
    statement = _visible(scope).order_by(Image.pushed_at.desc(), Image.id.desc())
    if search:
        columns = (Image.repository, Image.tag)
        statement = statement.where(
            or_(*(column.icontains(search, autoescape=True) for column in columns))
        )
    return list_page(session, statement, IMAGE_SORTS, last=Image.id, **paging)


def get_image(session: Session, scope: Scope, image_id: str) -> Image:
    """Return an image of the tenant, or a shared one; another tenant's is not found."""
    image: Image | None = session.scalar(_visible(scope).where(Image.id == image_id))
    if image is None:
        raise NotFoundError.of("image", image_id)
    return image


def references(host: str, image: Image) -> list[str]:
    """Return the names by which a job may call an image, the usual one first."""
    name = f"{host}/{image.repository}"
    return [f"{name}:{image.tag}", f"{name}@{image.digest}"] + [name] * (image.tag == "latest")


def jobs_using(
    session: Session, scope: Scope, host: str, images: Iterable[Image]
) -> dict[str, tuple[int, int]]:
    """Return by image id how many jobs of the scope use it: all, and those that have not ended."""
    names = {image.id: references(host, image) for image in images}
    statement: Any = (
        select(Job.image, func.count(), func.sum(case((Job.state.in_(_ACTIVE), 1), else_=0)))
        .where(Job.image.in_({name for image_names in names.values() for name in image_names}))
        .group_by(Job.image)
    )
    counts = {row[0]: row[1:] for row in session.execute(scope.select(statement, Job))}
    return {
        ident: (
            sum(counts[name][0] for name in many if name in counts),
            sum(int(counts[name][1] or 0) for name in many if name in counts),
        )
        for ident, many in names.items()
    }


def offered_images(session: Session, scope: Scope, host: str) -> list[str]:
    """Return the names of the images that a job may use, those pushed last first."""
    if not host:
        return []
    newest = _visible(scope).order_by(Image.pushed_at.desc(), Image.id.desc()).limit(MAX_OFFERED)
    return [references(host, image)[0] for image in session.scalars(newest)]


def deletable(session: Session, scope: Scope, image_id: str, *, host: str) -> list[Image]:
    """Return the tags that deleting an image deletes: a registry deletes by digest.

    Raises:
        ForbiddenError: the role may not delete it; shared ones are the operators'.
        ConflictError: a job that has not ended uses one of them, or there is no registry.
    """
    image = get_image(session, scope, image_id)
    scope.require(Permission.PUSH_IMAGES if image.tenant_id else Permission.OPERATE)
    if not host:
        raise ConflictError("This portal has no registry now.", code="no_registry")
    same = Image.repository == image.repository, Image.digest == image.digest
    images = list(session.scalars(_visible(scope).where(*same).order_by(Image.tag)))
    if any(active for _, active in jobs_using(session, scope, host, images).values()):
        tags = ", ".join(image.tag for image in images)
        raise ConflictError(
            f"Jobs that have not ended use {image.repository} ({tags}). Stop them first.",
            code="image_in_use",
        )
    return images


def delete_image(
    sessions: SessionFactory,
    registry: Registry,
    scope: Scope,
    image_id: str,
    *,
    host: str,
    now: datetime,
) -> list[str]:
    """Delete an image in the registry, with all tags of the same content; return the tags.

    Garbage collection frees the space.

    Raises:
        RegistryUnavailableError: nothing was deleted.
    """
    with transaction(sessions) as session:
        images = deletable(session, scope, image_id, host=host)
    repository, digest = images[0].repository, images[0].digest
    registry.delete(repository, digest)
    tags = [image.tag for image in images]
    with transaction(sessions) as session:
        _remove(session, repository, Image.digest == digest)
        record(
            session,
            action="image.deleted",
            target_id=image_id,
            target_name=f"{repository}:{', '.join(tags)}"[:200],
            tenant_id=images[0].tenant_id,
            before={"digest": digest, "size_bytes": images[0].size_bytes},
            now=now,
        )
    return tags


def delete_namespace(registry: Registry, namespace: str) -> None:
    """Delete all images of a tenant that is removed, except those that are shared.

    Raises:
        RegistryUnavailableError: the next call goes on.
    """
    if namespace == registry.shared_namespace:
        return
    names = [
        repository
        for repository in registry.repositories()
        if namespace_of(repository) == namespace
    ]
    for repository in names:
        for tag in list(registry.tags(repository)):
            manifest = registry.manifest(repository, tag)
            if manifest is not None:  # another tag of the same content was deleted with it
                registry.delete(repository, manifest.digest)


def _visible(scope: Scope) -> Select[Any]:
    scope.require(Permission.VIEW)
    statement = select(Image)
    if scope.tenant_id is None:
        return statement
    return statement.where(or_(Image.tenant_id == scope.tenant_id, Image.tenant_id.is_(None)))


def _put(
    session: Session,
    event: Notified,
    manifest: Manifest,
    *,
    shared_namespace: str,
    now: datetime,
) -> bool:
    """Store what a tag refers to; return whether it is somebody's."""
    namespace = namespace_of(event.repository)
    tenant_id = session.scalar(select(Tenant.id).where(Tenant.slug == namespace))
    if namespace == shared_namespace:
        tenant_id = None
    elif tenant_id is None:
        log.warning("the registry has %s, which belongs to no tenant", event.repository)
        return False
    values = {
        "digest": manifest.digest,
        "media_type": manifest.media_type,
        "size_bytes": manifest.size_bytes,
        "layers": manifest.layers,
        "pushed_at": now,
        "pushed_by": event.actor,
    }
    of_tag = Image.repository == event.repository, Image.tag == event.tag
    image = session.scalar(select(Image).where(*of_tag).with_for_update())
    if image is None:
        try:
            with session.begin_nested():
                session.add(
                    Image(
                        tenant_id=tenant_id,
                        repository=event.repository,
                        tag=event.tag,
                        **values,
                    )
                )
        except IntegrityError:  # notified twice at the same time
            return False
        return True
    for name, value in values.items():
        setattr(image, name, value)
    return True


def _remove(session: Session, repository: str, condition: ColumnElement[bool]) -> int:
    image_ids = session.scalars(
        select(Image.id).where(Image.repository == repository, condition)
    ).all()
    session.execute(
        delete(Image).where(Image.id.in_(image_ids)),
        execution_options={"synchronize_session": False},
    )
    return len(image_ids)
