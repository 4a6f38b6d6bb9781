"""The request for a new job: one definition for REST, for job files and for their JSON Schema.

Sizes and durations are numbers of bytes and seconds, or texts such as `8GiB` and `2h`.
"""

from collections.abc import Callable, Mapping
from typing import Any

from marshmallow import ValidationError, fields, validate, validates_schema

from core.quantities import parse_duration, parse_size
from jobqueue.jobs.arrays import INDEX_VARIABLE
from jobqueue.jobs.health_checks import MAX_CHECK_FAILURES, MAX_CHECK_SECONDS, MAX_PORT
from jobqueue.jobs.requests import (
    MAX_CPUS,
    MAX_ENTRIES,
    MAX_GPUS,
    MAX_IDLE_SECONDS,
    MAX_INSTANCES,
    MAX_PERCENT,
    MAX_PRIORITY,
    MAX_RETRIES,
    MAX_TIME_LIMIT_SECONDS,
    MIN_IDLE_SECONDS,
    JobRequest,
    request_errors,
    request_from,
    whole_parts,
)
from jobqueue.jobs.retries import FailureClass
from jobqueue.queue.applying import MAX_JOBS
from jobqueue.states import JobKind
from portal.api.json_schema import file_schema
from portal.api.schemas import StrictSchema
from protocol.attempts import ContainerPolicy, HealthCheckKind

GIB = 1024**3
_FILE_DESCRIPTION = "A job for `vedette job apply`."
_BIG = 2**53


class QuantityField(fields.Field[int]):
    """A whole number of a unit, or a text with a unit.

    Args:
        parse: reads the text.
        example: a text.
        maximum: the largest number.
    """

    def __init__(
        self,
        parse: Callable[[str], float],
        example: str,
        *,
        description: str,
        load_default: int,
        maximum: int = _BIG,
    ) -> None:
        number = {"type": "integer", "minimum": 0, "maximum": maximum}
        text = {"type": "string", "example": example}
        described = {"description": description, "anyOf": [number, text]}
        super().__init__(load_default=load_default, metadata=described)
        self._parse = parse

    def _deserialize(
        self,
        value: Any,  # noqa: ANN401 - JSON
        attr: str | None,  # noqa: ARG002
        data: Mapping[str, Any] | None,  # noqa: ARG002
        **_options: object,
    ) -> int:
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        if not isinstance(value, str):
            raise ValidationError("Not a valid integer.")
        try:
            return int(self._parse(value))
        except (ValueError, OverflowError) as error:
            raise ValidationError(f"{error}.".replace("..", ".")) from None


def _size(description: str, load_default: int = 0) -> QuantityField:
    return QuantityField(parse_size, "8GiB", description=description, load_default=load_default)


def _whole(description: str, *, minimum: int = 0, maximum: int) -> fields.Integer:
    """Return a field whose limits are documented; the service checks them with everything else."""
    limits = {"minimum": minimum, "maximum": maximum}
    return fields.Integer(
        strict=True, load_default=0, metadata={"description": description, **limits}
    )


def _texts(description: str) -> fields.Dict:
    return fields.Dict(
        keys=fields.String(),
        values=fields.String(),
        load_default=dict,
        metadata={"description": description},
    )


def _text(description: str, **options: Any) -> fields.String:  # noqa: ANN401 - marshmallow's
    return fields.String(metadata={"description": description}, **options)


def _names(description: str) -> fields.List[str]:
    described = {"description": description, "maxItems": MAX_ENTRIES}
    return fields.List(fields.String(), load_default=list, metadata=described)


class MountSchema(StrictSchema):
    """A host path in the container; the tenant's data roots must allow it."""

    source = _text("Path on the appliance.", required=True)
    target = _text("Path in the container.", required=True)
    is_read_only = fields.Boolean(load_default=True)


class PortSchema(StrictSchema):
    """A port on which the container listens; name the one of a web page `web`."""

    container_port = fields.Integer(
        strict=True, required=True, metadata={"minimum": 1, "maximum": MAX_PORT}
    )
    name = _text("`web` for a web page.", load_default="")


def _check_seconds(description: str, load_default: float, *, minimum: int = 1) -> fields.Float:
    limits = {"minimum": minimum, "maximum": MAX_CHECK_SECONDS}
    described = {"description": description, **limits}
    return fields.Float(load_default=load_default, metadata=described)


class HealthCheckSchema(StrictSchema):
    """A check of a service; it is restarted after `max_failures` in a row."""

    kind = fields.String(
        required=True, validate=validate.OneOf([kind.value for kind in HealthCheckKind])
    )
    port = _whole("The container's port, for http and tcp.", maximum=MAX_PORT)
    path = _text("For http: a status of 200 to 399 is healthy.", load_default="/")
    command = _text("Shell command: exit code 0 is healthy.", load_default="")
    interval_seconds = _check_seconds("Between two checks.", 10.0)
    timeout_seconds = _check_seconds("Of each check.", 5.0)
    grace_seconds = _check_seconds("Failures this soon after a start don't count.", 60.0, minimum=0)
    max_failures = fields.Integer(
        strict=True, load_default=3, metadata={"minimum": 1, "maximum": MAX_CHECK_FAILURES}
    )


class JobRequestSchema(StrictSchema):
    """A new job: what to run and its resource requests."""

    is_one_of_many = False

    name = _text("For lists; several jobs may have the same.", required=True)
    image = _text("Container image, such as `python:3.13`.", required=True)
    command = fields.List(
        fields.String(),
        load_default=list,
        metadata={"description": "Words of the command; empty for the image's own."},
    )
    env = _texts("Environment variables, which all users of the tenant can read.")
    secrets = _texts("Environment variables that are stored encrypted and never returned.")
    secrets_from = _text(
        "A job of yours, whose secrets are copied.", load_default=None, allow_none=True
    )
    kind = fields.Enum(
        JobKind,
        by_value=True,
        load_default=JobKind.BATCH,
        metadata={"description": "`batch` ends with its command, `service` runs until stopped."},
    )
    gpus = _whole("Whole GPUs, all of one appliance.", maximum=MAX_GPUS)
    gpu_memory_bytes = _size("The least memory of each GPU; 0 for any.")
    cpus = fields.Float(
        load_default=1.0, metadata={"description": "Cores.", "minimum": 0, "maximum": MAX_CPUS}
    )
    memory_bytes = _size("Memory of the container.", load_default=GIB)
    labels = _texts("For finding the job again.")
    gpu_models = fields.List(
        fields.String(),
        load_default=list,
        metadata={"description": "Words of which one must be in the GPUs' model, such as H100."},
    )
    required_labels = _texts("Labels that the appliance must have.")
    working_dir = _text("Absolute path in the container; empty for the image's.", load_default="")
    shared_memory_bytes = _size("Size of /dev/shm; 0 is half of the memory.")
    mounts = fields.List(
        fields.Nested(MountSchema),
        load_default=list,
        metadata={"description": "Host paths, in the data roots of the tenant."},
    )
    ports = fields.List(
        fields.Nested(PortSchema),
        load_default=list,
        metadata={"description": "Ports on which the container listens."},
    )
    priority = _whole(
        "A point counts as ten minutes of waiting; values above 0 are for admins.",
        minimum=-MAX_PRIORITY,
        maximum=MAX_PRIORITY,
    )
    is_preemptible = fields.Boolean(
        load_default=False,
        metadata={"description": "May stop for another job, and is queued again then."},
    )
    max_retries = _whole("Further attempts after failures.", maximum=MAX_RETRIES)
    retry_on = fields.List(
        fields.String(metadata={"enum": [failure_class.value for failure_class in FailureClass]}),
        load_default=lambda: [failure_class.value for failure_class in FailureClass],
        metadata={"description": "Failures to retry."},
    )
    time_limit_seconds = QuantityField(
        parse_duration,
        "2h",
        description="Of each attempt; 0 is none.",
        load_default=0,
        maximum=MAX_TIME_LIMIT_SECONDS,
    )
    idle_gpu_percent = _whole(
        "The job stops when its GPUs stay below this utilization; 0 is none.", maximum=MAX_PERCENT
    )
    idle_gpu_seconds = QuantityField(
        parse_duration,
        "30m",
        description=f"For how long they must, at least {MIN_IDLE_SECONDS}.",
        load_default=0,
        maximum=MAX_IDLE_SECONDS,
    )
    notify = _names("Whom to notify at its end: `email` is you, others are names of receivers.")
    after_ok = _names("Names or IDs of jobs that must succeed before it starts.")
    after_any = _names("Names or IDs of jobs that must end before it starts.")
    array = _text(
        f"Indexes of an array's tasks, such as 0-99, or 0-99%10 with at most 10 running; each has "
        f"{INDEX_VARIABLE}. Empty for one job.",
        load_default="",
    )
    instances = fields.Integer(
        strict=True,
        load_default=1,
        metadata={
            "description": "Of a service; each is placed by itself.",
            "minimum": 1,
            "maximum": MAX_INSTANCES,
        },
    )
    health_check = fields.Nested(
        HealthCheckSchema,
        load_default=None,
        allow_none=True,
        metadata={"description": "Of a service."},
    )
    container_policy = fields.String(
        load_default=None,
        allow_none=True,
        metadata={
            "description": "One that the tenant allows; null is its default.",
            "enum": [*(policy.value for policy in ContainerPolicy), None],
        },
    )
    appliance_id = _text(
        "ID or name of the only appliance that may run it; null for any.",
        load_default=None,
        allow_none=True,
    )

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
