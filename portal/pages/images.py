"""`/images`: container images in the private registry."""

from flask import Blueprint, flash, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue

from core.errors import ConflictError
from jobqueue.images.catalog import IMAGE_SORTS, get_image, list_images
from jobqueue.images.registry import RegistryUnavailableError
from portal.context import current_scope, current_user, database, portal
from portal.presenters.images import images_shown, remove_image
from portal.query_string import asked_page, search_text
from tenants.models import Tenant
from tenants.permissions import Permission

pages = Blueprint("images", __name__)


@pages.get("/images")
def index() -> ResponseReturnValue:
    """List images, those pushed last first."""
    scope, tokens = current_scope(), portal().registry_tokens
    sort = request.args.get("sort", "")
    sort = sort if sort.removeprefix("-") in IMAGE_SORTS else "-pushed_at"
    with database() as session:
        page = list_images(session, scope, search=search_text(), sort=sort, **asked_page())
        images = images_shown(session, page.items)
        tenant = session.get(Tenant, scope.tenant_id) if scope.tenant_id else None
    return render_template(
        "images/index.html",
        page=page,
        images=images,
        sort=sort,
        search=search_text(),
        host=tokens.host,
        namespace=tenant.slug if tenant else tokens.shared_namespace,
        shared=tokens.shared_namespace,
        email=current_user().email,
        may_push=scope.allows(Permission.PUSH_IMAGES),
    )


@pages.get("/images/<image_id>")
def show(image_id: str) -> ResponseReturnValue:
    """Show an image with its layers."""
    scope = current_scope()
    with database() as session:
        [image] = images_shown(session, [get_image(session, scope, image_id)])
    needed = Permission.PUSH_IMAGES if image["tenant_id"] else Permission.OPERATE
    return render_template("images/show.html", image=image, may_delete=scope.allows(needed))


@pages.post("/images/<image_id>/delete")
def delete(image_id: str) -> ResponseReturnValue:
    """Delete an image with all tags of the same content."""
    with database() as session:
        repository = get_image(session, current_scope(), image_id).repository
    try:
        tags = remove_image(image_id)
    except (ConflictError, RegistryUnavailableError) as error:
        flash(error.message, "warning")
        return redirect(url_for(".show", image_id=image_id))
    flash(f"Deleted {repository}: {', '.join(tags)}", "success")
    return redirect(url_for(".index"))
