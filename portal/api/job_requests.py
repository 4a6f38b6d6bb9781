"""The request for a new job: one definition for REST, for job files and for their JSON Schema."""

from collections.abc import Mapping
from typing import Any

from marshmallow import ValidationError, fields, validate, validates_schema

from jobqueue.jobs.requests import request_errors, request_from, whole_parts
from jobqueue.queue.service import MAX_JOBS
from portal.api.json_schema import file_schema
from portal.api.schemas import StrictSchema
from portal.api.spec_schemas import request_schema
from protocol.autoscaling import Autoscaling, ScalingWindow
from protocol.job_spec import DatasetMount, HealthCheck, JobRequest, Mount, Port

_FILE_DESCRIPTION = "A job for `vedette job apply`."


class MountSchema(request_schema(Mount)):  # type: ignore[misc] # a class made at run time
    """A host path in the container; the tenant's data roots must allow it."""


class PortSchema(request_schema(Port)):  # type: ignore[misc] # a class made at run time
    """A port on which the container listens; name the one of a web page `web`."""


class HealthCheckSchema(request_schema(HealthCheck)):  # type: ignore[misc] # a class made at run time
    """A check of a service; it is restarted after `max_failures` in a row."""


class ScalingWindowSchema(request_schema(ScalingWindow)):  # type: ignore[misc] # a class made at run time
    """Other bounds of a service at certain times."""


class AutoscalingSchema(request_schema(Autoscaling, {ScalingWindow: ScalingWindowSchema})):  # type: ignore[misc] # likewise
    """How a service changes its number of instances by itself."""


class DatasetMountSchema(request_schema(DatasetMount)):  # type: ignore[misc] # a class made at run time
    """A dataset in the container, which is fetched before the job starts."""


SCHEMAS = {
    Mount: MountSchema,
    DatasetMount: DatasetMountSchema,
    Port: PortSchema,
    HealthCheck: HealthCheckSchema,
    Autoscaling: AutoscalingSchema,
}


class JobRequestSchema(request_schema(JobRequest, SCHEMAS)):  # type: ignore[misc] # a class made at run time
    """A new job: what to run and its resource requests."""

    is_one_of_many = False

    @validates_schema(pass_original=True, skip_on_field_errors=False)
    def _report_the_other_errors(
        self,
        data: dict[str, Any],
        original: object,
        **options: object,
    ) -> None:
        """Report fields with wrong values beside those of a wrong type.

        The service reports those of a request without others, with what it finds itself.
        """
        if self.partial or options["partial"]:
            return  # the service knows the other fields
        sent_names = original.keys() if isinstance(original, Mapping) else set()
        is_whole = data.keys() == self.fields.keys() and sent_names <= data.keys()
        if is_whole and not self.is_one_of_many:
            return
        placeholders = {"name": "-", "image": "-"}
        # Of parts with errors, marshmallow gives what is valid of them.
        errors_by_field = request_errors(job_request(placeholders | whole_parts(data)))
        errors = {name: texts for name, texts in errors_by_field.items() if name in data}
        if errors:
            raise ValidationError(errors)


class JobChangeSchema(JobRequestSchema):
    """The fields of a job that change."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 - marshmallow's
        super().__init__(**{**options, "partial": True})


def _one_of_many() -> JobRequestSchema:
    schema = JobRequestSchema()
    schema.is_one_of_many = True
    return schema


class ApplicationSchema(StrictSchema):
    """The jobs of a file: all of them are submitted, or none."""

    jobs = fields.List(
        fields.Nested(_one_of_many()),
        required=True,
        validate=validate.Length(min=1, max=MAX_JOBS),
    )
    is_dry_run = fields.Boolean(load_default=False)


def job_request(body: Mapping[str, Any]) -> JobRequest:
    """Return the request of a loaded body."""
    return request_from(body)


def job_file_schema() -> dict[str, Any]:
    """Return the JSON Schema of a job file."""
    return file_schema(JobRequestSchema, title="Vedette job", description=_FILE_DESCRIPTION)
