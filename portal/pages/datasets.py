"""`/datasets`: datasets with their versions and files, and the connections of their sources."""

from collections.abc import Sequence

from flask import flash, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue
from sqlalchemy.orm import Session

from core.errors import UnavailableError
from core.paging import MAX_PAGE_SIZE
from datasets.archives import MAX_ARCHIVE_BYTES, MAX_ARCHIVE_FILES
from datasets.catalog import (
    DATASET_SORTS,
    VersionRequest,
    cancel_version,
    create_dataset,
    create_version,
    delete_dataset,
    delete_version,
    get_dataset,
    get_version,
    list_datasets,
    list_versions,
    may_change,
    update_dataset,
)
from datasets.connections import (
    create_connection,
    delete_connection,
    get_connection,
    list_connections,
    update_connection,
)
from datasets.copies import cached_on
from datasets.indexing import able_appliances
from datasets.manifests import FilePage, read_files
from datasets.models import DataConnection, Dataset, DatasetVersion, VersionState
from portal.context import current_scope, database, now, portal
from portal.forms.datasets import ConnectionForm, DatasetChangeForm, DatasetForm
from portal.pages.common import Pages, changing
from portal.pages.dataset_copies import copies_of
from portal.query_string import PAGE_SIZE, asked_page, search_text
from protocol.datasets import MAX_PATH_LENGTH
from tenants.permissions import Permission
from tenants.tenants import tenant_names

pages = Pages("datasets", __name__, url_prefix="/datasets")


def _after_delete() -> str:
    """Return the page of the dataset, or the list if it is deleted."""
    dataset_id = (request.view_args or {})["dataset_id"]
    with database() as session:
        is_there = session.get(Dataset, dataset_id) is not None
    return url_for(".show", dataset_id=dataset_id) if is_there else url_for(".index")


def _dataset_of_version() -> str:
    """Return the page of the dataset that the request came from."""
    dataset_id = request.form.get("dataset_id", "")
    return url_for(".show", dataset_id=dataset_id) if dataset_id else url_for(".index")


@pages.get("")
def index() -> ResponseReturnValue:
    """List datasets."""
    scope, sort = current_scope(), request.args.get("sort", "")
    sort = sort if sort.removeprefix("-") in DATASET_SORTS else "name"
    with database() as session:
        page = list_datasets(session, scope, search=search_text(), sort=sort, **asked_page())
        tenants = tenant_names(session, (row.tenant_id for row in page.items))
        cached = cached_on(session, [row.newest.id for row in page.items if row.newest])
    return render_template(
        "datasets/index.html",
        page=page,
        sort=sort,
        search=search_text(),
        tenants=tenants,
        cached=cached,
    )


@pages.form("/new")
def add() -> ResponseReturnValue:
    """Add a dataset."""
    scope, form = current_scope(), DatasetForm()
    scope.require(Permission.EDIT_DATASETS)
    tenant_id = scope.require_tenant()
    with database() as session:
        form.offer(_connections(session), able_appliances(session, tenant_id))
    if form.validate_on_submit():
        with form.showing_errors():
            with database() as session:
                dataset = create_dataset(session, scope, form.request(), now=now())
            flash(f"Dataset {dataset.name} added", "success")
            return redirect(url_for(".show", dataset_id=dataset.id))
    return render_template("datasets/new.html", form=form), form.status


@pages.form("/<dataset_id>")
def show(dataset_id: str) -> ResponseReturnValue:
    """Show a dataset with its versions, and the files of one; change it."""
    scope = current_scope()
    with database() as session:
        dataset = get_dataset(session, scope, dataset_id)
        names = ("name", "description", "connection_id")
        form = DatasetChangeForm(data={name: getattr(dataset, name) for name in names})
        form.offer(_connections(session))
    if form.validate_on_submit():
        with form.showing_errors():
            with database() as session:
                update_dataset(session, scope, dataset_id, form.request())
            flash("Changes saved", "success")
            return redirect(url_for(".show", dataset_id=dataset_id))
    return _page(dataset, form), form.status


@pages.post("/<dataset_id>/versions")
@changing(back=".show")
def add_version(session: Session, dataset_id: str) -> str:
    """Read the source of a dataset again."""
    wanted = VersionRequest(appliance_id=request.form.get("appliance_id") or None)
    version = create_version(session, current_scope(), dataset_id, wanted, now=now())
    return f"Version {version.number} is being read"


@pages.post("/<dataset_id>/delete")
@changing(back=_after_delete)
def remove(session: Session, dataset_id: str) -> str:
    """Delete a dataset."""
    name = get_dataset(session, current_scope(), dataset_id).name
    delete_dataset(session, current_scope(), dataset_id)
    return f"{name} deleted"


pages.acts(
    "/versions/<version_id>/cancel",
    cancel_version,
    "Version {.number} cancelled",
    back=_dataset_of_version,
)


@pages.post("/versions/<version_id>/delete")
@changing(back=_dataset_of_version)
def remove_version(session: Session, version_id: str) -> str:
    """Delete a version."""
    label = get_version(session, current_scope(), version_id).label
    delete_version(session, current_scope(), version_id)
    return f"{label} deleted"


@pages.form("/connections")
def connections() -> ResponseReturnValue:
    """List data connections; add one."""
    return _save_connection(ConnectionForm(), None)


@pages.form("/connections/<connection_id>")
def edit_connection(connection_id: str) -> ResponseReturnValue:
    """Change a data connection."""
    with database() as session:
        connection = get_connection(session, current_scope(), connection_id)
    names = ("name", "url", "endpoint_url", "region", "access_key_id")
    return _save_connection(
        ConnectionForm(data={name: getattr(connection, name) for name in names}), connection
    )


pages.acts(
    "/connections/<connection_id>/delete",
    delete_connection,
    "Data connection deleted",
    back=".connections",
    name="remove_connection",
)


def _page(dataset: Dataset, form: DatasetChangeForm) -> str:
    scope = current_scope()
    after, prefix = _path("after"), _path("prefix")
    with database() as session:
        versions = list_versions(session, scope, dataset.id, **asked_page())
        chosen = _chosen(session, dataset)
        appliances = able_appliances(session, dataset.tenant_id)
        copies = copies_of(session, scope, dataset.id)
    files, problem = _files(chosen, after, prefix)
    return render_template(
        "datasets/show.html",
        dataset=dataset,
        form=form,
        versions=versions,
        chosen=chosen,
        files=files,
        problem=problem,
        after=after,
        prefix=prefix,
        appliances=appliances,
        **copies,
        may_edit=may_change(scope, dataset) and scope.tenant_id is not None,
        max_bytes=MAX_ARCHIVE_BYTES,
        max_files=MAX_ARCHIVE_FILES,
    )


def _chosen(session: Session, dataset: Dataset) -> DatasetVersion | None:
    """Return the version whose files are shown: that of the address, or the newest."""
    version_id = request.args.get("version", "")
    if not version_id:
        return dataset.newest
    version = get_version(session, current_scope(), version_id)
    return version if version.dataset_id == dataset.id else dataset.newest


def _files(version: DatasetVersion | None, after: str, prefix: str) -> tuple[FilePage | None, str]:
    if version is None or version.state is not VersionState.READY:
        return None, ""
    sessions, store = portal().sessions, portal().parts()
    try:
        return read_files(sessions, store, version, after=after, prefix=prefix, limit=PAGE_SIZE), ""
    except UnavailableError as error:
        return None, error.message


def _path(name: str) -> str:
    return request.args.get(name, "")[:MAX_PATH_LENGTH]


def _save_connection(
    form: ConnectionForm, connection: DataConnection | None
) -> ResponseReturnValue:
    scope = current_scope()
    if form.validate_on_submit():
        with form.showing_errors():
            box = portal().secrets
            with database() as session:
                if connection is None:
                    create_connection(session, scope, form.request(), box=box, now=now())
                else:
                    update_connection(session, scope, connection.id, form.request(), box=box)
            flash("Data connection saved", "success")
            return redirect(url_for(".connections"))
    with database() as session:
        page = list_connections(session, scope, **asked_page())
        tenants = tenant_names(session, (row.tenant_id for row in page.items))
    text = render_template(
        "datasets/connections.html", page=page, connection=connection, form=form, tenants=tenants
    )
    return text, form.status


def _connections(session: Session) -> Sequence[DataConnection]:
    return list_connections(session, current_scope(), page_size=MAX_PAGE_SIZE).items
