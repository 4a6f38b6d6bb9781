"""Exports of removed tenants: in the data folder, or where uploads are (`data_url`)."""

from flask import Response, send_file

from portal.context import current_scope, database, now, portal, reading
from portal.downloads import stream_file
from tenants.lifecycle.removal import discard_export, export_file, get_removed
from tenants.models import TenantRemoval


def export_response(removal_id: str) -> Response:
    """Return the export of a tenant as a ZIP file."""
    settings = portal().settings
    with database() as session:
        path = export_file(
            session,
            current_scope(),
            removal_id,
            folder=settings.exports_dir,
            now=now(),
            is_published=bool(settings.data_url),
        )
    if path.is_file():
        return send_file(
            path.resolve(), mimetype="application/zip", as_attachment=True, download_name=path.name
        )
    pieces = portal().parts().export(path.name)
    return stream_file(pieces, media_type="application/zip", file_name=path.name)


def discard_removed(removal_id: str) -> TenantRemoval:
    """Permanently delete the export of a removed tenant."""
    settings = portal().settings
    with reading() as session:
        name = get_removed(session, current_scope(), removal_id).file_name
    if settings.data_url:
        portal().parts().delete_export(name)
    with database() as session:
        return discard_export(
            session, current_scope(), removal_id, folder=settings.exports_dir, now=now()
        )
