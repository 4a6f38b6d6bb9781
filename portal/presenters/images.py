"""Images of the registry with their names and jobs, and how they are deleted."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy.orm import Session

from jobqueue.images.catalog import delete_image, jobs_using, references
from jobqueue.images.models import Image
from portal.context import actor_of, current_principal, current_scope, now, portal
from tenants.auditing.recording import acting


def images_shown(session: Session, images: Sequence[Image]) -> list[dict[str, Any]]:
    """Return images with their reference and the number of jobs that use them."""
    host = portal().registry_tokens.host
    counts = jobs_using(session, current_scope(), host, images)
    return [
        {
            **{column.key: getattr(image, column.key) for column in Image.__table__.columns},
            "reference": references(host, image)[0],
            "jobs": counts[image.id][0],
        }
        for image in images
    ]


def remove_image(image_id: str) -> list[str]:
    """Delete an image in the registry; return the deleted tags."""
    parts = portal()
    return delete_image(
        acting(parts.sessions, actor_of(current_principal()), clock=parts.clock),
        parts.registry,
        current_scope(),
        image_id,
        host=parts.registry_tokens.host,
        now=now(),
    )
