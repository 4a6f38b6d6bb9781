"""`/jobs/ID/results`: the files in a job's output folders, with previews."""

from http import HTTPStatus

from flask import Blueprint, Response, render_template, request, url_for
from flask.typing import ResponseReturnValue

from core.errors import InvalidInputError, NotFoundError, UnavailableError
from jobqueue.models import Job
from jobqueue.queue.service import get_job
from jobqueue.results.artifacts import (
    content_of,
    folder_entries,
    read_range,
    result_report,
    totals,
)
from portal.context import current_scope, database
from portal.presenters.artifacts import (
    IMAGE_BYTES,
    Preview,
    PreviewKind,
    image_type,
    part_reader,
    preview,
)

pages = Blueprint("job_results", __name__)
# The image is shown by our own pages, and does nothing when it is opened by itself.
_IMAGE_POLICY = "default-src 'none'; sandbox; frame-ancestors 'none'"


@pages.get("/jobs/<job_id>/results")
def show(job_id: str) -> ResponseReturnValue:
    """Show a folder of a job's results."""
    scope = current_scope()
    with database() as session:
        job = get_job(session, scope, job_id)
        folder = _folder(job)
        entries = folder_entries(session, scope, job_id, folder) if folder else []
        files, size_bytes = totals(session, job)
        report = result_report(session, job)
    chosen = request.args.get("file", "")
    return render_template(
        "jobs/results.html",
        job=job,
        folder=folder,
        steps=_steps(job, folder),
        entries=entries,
        files=files,
        size_bytes=size_bytes,
        report=report,
        chosen=next((entry for entry in entries if entry.path == chosen), None),
        is_missing=bool(chosen) and all(entry.path != chosen for entry in entries),
    )


@pages.get("/jobs/<job_id>/results/preview")
def show_file(job_id: str) -> ResponseReturnValue:
    """Show the beginning of a file, as a part of the page of results."""
    path = _path()
    with database() as session:
        content = content_of(session, current_scope(), job_id, path)
    try:
        shown = preview(content, part_reader())
    except (NotFoundError, UnavailableError) as error:
        shown = Preview(kind=PreviewKind.NONE, note=error.message)
    image = url_for(".image", job_id=job_id, path=path)
    return render_template("jobs/result_preview.html", preview=shown, path=path, image=image)


@pages.get("/jobs/<job_id>/results/image")
def image(job_id: str) -> ResponseReturnValue:
    """Return an image of a job's results, to be shown in its page."""
    with database() as session:
        content = content_of(session, current_scope(), job_id, _path())
    if content.size_bytes > IMAGE_BYTES:
        raise InvalidInputError("The file is too large to be shown. Download it.")
    data = b"".join(read_range(content, part_reader(), 0, content.size_bytes))
    media_type = image_type(data)
    if not media_type:
        raise InvalidInputError("The file is no image that can be shown. Download it.")
    headers = {"Content-Security-Policy": _IMAGE_POLICY, "ETag": f'"{content.sha256}"'}
    return Response(data, HTTPStatus.OK, mimetype=media_type, headers=headers)


def _path() -> str:
    path = request.args.get("path", "")
    if not path:
        raise InvalidInputError("The address names no file. Open it from the job's results.")
    return path


def _folder(job: Job) -> str:
    """Return the folder that the address names, or the first one; "" if there is none."""
    folder = request.args.get("folder", "")
    if any(f"{folder}/".startswith(f"{output.rstrip('/')}/") for output in job.outputs):
        return folder.rstrip("/")
    return job.outputs[0].rstrip("/") if job.outputs else ""


def _steps(job: Job, folder: str) -> list[tuple[str, str]]:
    """Return the folders on the way to one, from its output folder on: name and path."""
    root = next(
        (out.rstrip("/") for out in job.outputs if f"{folder}/".startswith(f"{out.rstrip('/')}/")),
        "",
    )
    steps = [(root, root)] if root else []
    for name in filter(None, folder.removeprefix(root).split("/")):
        steps.append((name, f"{steps[-1][1]}/{name}"))
    return steps
