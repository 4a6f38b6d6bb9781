"""`/images`: container images in the private registry."""

from http import HTTPStatus

from marshmallow import Schema, fields

from jobqueue.images.catalog import IMAGE_SORTS, get_image, list_images
from jobqueue.images.models import Image
from portal.api.blueprint import APIBlueprint
from portal.api.objects import Objects
from portal.api.schemas import about, instant, page_query
from portal.context import database
from portal.presenters.images import images_shown, remove_image
from tenants.permissions import Permission

images = APIBlueprint(
    "Images",
    "/images",
    "Container images in the private registry: those of the tenant, and shared ones.",
    changes=Permission.PUSH_IMAGES,
)


class LayerSchema(Schema):
    """A layer, compressed."""

    digest = fields.String()
    size_bytes = fields.Integer()


class ImageSchema(Schema):
    """A tag of a repository, as it was when it was pushed last."""

    id = fields.String()
    tenant_id = fields.String(allow_none=True, **about("Null if it is shared."))
    reference = fields.String(**about("What jobs and `docker pull` call it."))
    repository = fields.String()
    tag = fields.String()
    digest = fields.String()
    media_type = fields.String()
    size_bytes = fields.Integer(**about("Compressed, of all platforms."))
    layers = fields.List(fields.Nested(LayerSchema))
    pushed_by = fields.String()
    pushed_at = instant()
    jobs = fields.Integer(**about("Jobs that use it, ended ones included."))


class ImageQuery(page_query(IMAGE_SORTS, default="-pushed_at")):  # type: ignore[misc] # at run time
    """Filter, sort and page."""

    search = fields.String(load_default="", **about("A part of the repository or the tag."))


objects = Objects(
    images,
    "/<image_id>",
    read=get_image,
    answer=ImageSchema,
    shown=images_shown,
    model=Image,
)
objects.lists("List images, those pushed last first.", list_images, query=ImageQuery)
objects.shows("Return an image with its layers.")


@images.operation("DELETE", "/<image_id>", status=HTTPStatus.NO_CONTENT)
def delete(image_id: str) -> None:
    """Delete an image, with all tags of the same content; operators delete shared ones."""
    with database() as session:
        objects.check_if_match(session, image_id)
    remove_image(image_id)
