"""What a user asks for: a job's fields, and the check of every one of them."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from core.errors import InvalidInputError
from core.units import format_value
from jobqueue.refusals import ApplianceView, JobView, exceeds_totals
from jobqueue.states import JobKind

GIB = 1024**3
MIN_MEMORY_BYTES = 16 * 1024**2
MAX_NAME_LENGTH = 100
MAX_IMAGE_LENGTH = 300
MAX_TEXT_LENGTH = 64 * 1024
MAX_INTEGER = 2**63 - 1
MAX_GPUS = 1024
MAX_CPUS = 65536

# A registry with an optional port, a path in lower case, then a tag, a digest or both.
_IMAGE = re.compile(
    r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::\d{1,5})?/)?"
    r"[a-z0-9]+(?:[._-]+[a-z0-9]+)*(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """What a user submits.

    Attributes:
        command: argument vector; empty runs the image's own command.
        gpu_memory_bytes: memory that each of the GPUs must have; 0 takes any.
        cpus: cores, fractions allowed.
        appliance_id: the only appliance on which it may run; None lets placement choose.
    """

    name: str
    image: str
    command: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    kind: JobKind = JobKind.BATCH
    gpus: int = 0
    gpu_memory_bytes: int = 0
    cpus: float = 1.0
    memory_bytes: int = GIB
    appliance_id: str | None = None


def check_request(request: JobRequest) -> None:
    """Raise `InvalidInputError` with every fault of every field, if there are any."""
    errors: dict[str, list[str]] = {}
    for field_name, fault in _faults(request):
        errors.setdefault(field_name, []).append(fault)
    if errors:
        details = " ".join(fault for faults in errors.values() for fault in faults)
        raise InvalidInputError(f"The job can't be submitted. {details}", errors=errors)


def check_capacity(job: JobView, appliances: Sequence[ApplianceView]) -> None:
    """Raise `InvalidInputError` when none of the appliances could ever run the job.

    A tenant whose appliances are still to come may submit: the job waits for them.
    """
    able = [view for view in appliances if view.executors]
    if not able or any(exceeds_totals(job, view) is None for view in able):
        return
    largest = max(able, key=lambda view: (len(view.gpus), view.cpus, view.memory_bytes))
    asked = _figures(job.gpus, job.gpu_memory_bytes, job.cpus, job.memory_bytes)
    gpu_memory_bytes = _gpu_memory(largest) if job.gpu_memory_bytes else 0
    has = _figures(len(largest.gpus), gpu_memory_bytes, largest.cpus, largest.memory_bytes)
    raise InvalidInputError(
        f"No appliance has what {job.name!r} asks for: {asked}. The largest available is "
        f"{largest.name} with {has}. Ask for less, or add an appliance.",
        code="exceeds_every_appliance",
        errors=_excesses(job, able),
    )


def _faults(request: JobRequest) -> Iterator[tuple[str, str]]:
    yield from _text_faults(request)
    yield from _command_faults(request.command)
    yield from _env_faults(request.env)
    if not 0 <= request.gpus <= MAX_GPUS:
        yield "gpus", f"gpus is {request.gpus}; give 0 to {MAX_GPUS}."
    if not 0 <= request.gpu_memory_bytes <= MAX_INTEGER:
        yield "gpu_memory_bytes", f"gpu_memory_bytes is {request.gpu_memory_bytes}; give 0 or more."
    elif request.gpu_memory_bytes and not request.gpus:
        yield "gpu_memory_bytes", "gpu_memory_bytes is set but no GPU is asked; set gpus as well."
    if not (math.isfinite(request.cpus) and 0 < request.cpus <= MAX_CPUS):
        yield "cpus", f"cpus is {request.cpus:g}; give more than 0 and at most {MAX_CPUS}."
    if not MIN_MEMORY_BYTES <= request.memory_bytes <= MAX_INTEGER:
        least = format_value("memory_bytes", MIN_MEMORY_BYTES)
        yield "memory_bytes", f"memory_bytes is {request.memory_bytes}; give at least {least}."


def _text_faults(request: JobRequest) -> Iterator[tuple[str, str]]:
    if not request.name.strip():
        yield "name", "The name is empty; give one to find the job by."
    elif len(request.name) > MAX_NAME_LENGTH:
        yield "name", f"The name has {len(request.name)} characters; use at most {MAX_NAME_LENGTH}."
    elif not request.name.isprintable():
        yield "name", "The name has characters that can't be shown; use letters and digits."
    if not request.image.strip():
        yield "image", "The image is empty; name one, such as 'python:3.13'."
    elif len(request.image) > MAX_IMAGE_LENGTH or not _IMAGE.fullmatch(request.image):
        shown = repr(request.image[:MAX_IMAGE_LENGTH])
        yield "image", f"{shown} is not an image name; write it like 'registry:5000/team/app:1.2'."


def _command_faults(command: list[str]) -> Iterator[tuple[str, str]]:
    if sum(map(len, command)) > MAX_TEXT_LENGTH:
        yield "command", f"The command is longer than {MAX_TEXT_LENGTH} characters; shorten it."
    if any("\0" in argument for argument in command):
        yield "command", "The command has a zero byte; remove it."


def _env_faults(env: dict[str, str]) -> Iterator[tuple[str, str]]:
    for name, value in env.items():
        if not _VARIABLE.fullmatch(name):
            yield "env", f"{name!r} is not a variable name; use letters, digits and underscores."
        if "\0" in value:
            yield "env", f"The value of {name} has a zero byte; remove it."
    if sum(len(name) + len(value) for name, value in env.items()) > MAX_TEXT_LENGTH:
        yield "env", f"env is longer than {MAX_TEXT_LENGTH} characters; shorten it."


def _excesses(job: JobView, able: Sequence[ApplianceView]) -> dict[str, list[str]]:
    figures = {
        "gpus": (job.gpus, max(len(view.gpus) for view in able)),
        "gpu_memory_bytes": (job.gpu_memory_bytes, max(map(_gpu_memory, able))),
        "cpus": (job.cpus, max(view.cpus for view in able)),
        "memory_bytes": (job.memory_bytes, max(view.memory_bytes for view in able)),
    }
    return {
        name: [
            f"{format_value(name, asked)} asked; the most available is {format_value(name, most)}."
        ]
        for name, (asked, most) in figures.items()
        if asked > most
    }


def _figures(gpus: int, gpu_memory_bytes: int, cpus: float, memory_bytes: int) -> str:
    memory = f" with {format_value('memory_bytes', gpu_memory_bytes)}" if gpu_memory_bytes else ""
    own = format_value("memory_bytes", memory_bytes)
    return f"{gpus} GPUs{memory}, {cpus:g} CPU cores and {own} of memory"


def _gpu_memory(view: ApplianceView) -> int:
    return max((gpu.memory_bytes for gpu in view.gpus), default=0)
