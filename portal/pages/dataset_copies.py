"""`/datasets/ID/copies`: where a dataset is cached, and should be."""

from typing import Any

from flask import flash, redirect, render_template, url_for
from flask.typing import ResponseReturnValue
from sqlalchemy.orm import Session

from core.paging import MAX_PAGE_SIZE
from datasets.catalog import get_dataset
from datasets.prefetches import (
    create_prefetch,
    delete_prefetch,
    list_copies,
    list_prefetches,
    version_numbers,
)
from portal.context import current_scope, database, now
from portal.forms.dataset_copies import PrefetchForm
from portal.pages.common import Pages
from portal.query_string import PAGE_SIZE, page_number
from tenants.permissions import Permission
from tenants.scope import Scope

pages = Pages("dataset_copies", __name__, url_prefix="/datasets")


@pages.form("/<dataset_id>/copies")
def index(dataset_id: str) -> ResponseReturnValue:
    """Show where a dataset is cached; prefetch or pin it."""
    scope, form = current_scope(), PrefetchForm()
    if form.is_submitted():
        scope.require(Permission.EDIT_DATASETS)
    with database() as session:
        dataset = get_dataset(session, scope, dataset_id)
    if form.validate_on_submit():
        with form.showing_errors():
            with database() as session:
                create_prefetch(session, scope, dataset_id, form.request(), now=now())
            flash(f"{dataset.name} is fetched ahead of jobs", "success")
            return redirect(url_for(".index", dataset_id=dataset_id))
    with database() as session:
        shown = copies_of(session, scope, dataset_id)
    text = render_template("datasets/copies_page.html", dataset=dataset, form=form, **shown)
    return text, form.status


pages.acts(
    "/<dataset_id>/prefetches/<prefetch_id>/delete",
    delete_prefetch,
    "Prefetch deleted. The copies stay until their place is needed.",
    name="remove",
)


def copies_of(session: Session, scope: Scope, dataset_id: str) -> dict[str, Any]:
    """Return the variables of `datasets/copies.html`, which any page of a dataset may include."""
    number = page_number("copies_page")
    copies = list_copies(session, scope, dataset_id, page=number, page_size=PAGE_SIZE)
    orders = list_prefetches(session, scope, dataset_id, page_size=MAX_PAGE_SIZE).items
    return {
        "copies": copies,
        "prefetches": orders,
        "prefetch_versions": version_numbers(session, orders),
    }
