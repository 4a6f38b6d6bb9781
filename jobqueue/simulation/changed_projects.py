"""Other shares and quotas of projects, as users write them for a simulation.

`vision=3` gives three shares to a project. `vision:gpus:guaranteed=4,maximum=8` replaces its quota
of GPUs, `vision:H100 gpus:maximum=4` that of a model. What is not named is 0 or no limit, and
`vision:gpus:none` removes the quota.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from msgspec import structs

from core.errors import InvalidInputError
from core.quantities import parse_size
from jobqueue.projects.models import QuotaResource
from jobqueue.projects.quotas import LIMITS, QuotaRequest, quota_errors
from jobqueue.projects.service import MAX_SHARES
from jobqueue.simulation.recording import RecordedProject, Recording

_NONE = "none"


@contextmanager
def errors_at(field: str) -> Iterator[None]:
    """Let errors name the field that they are of."""
    try:
        yield
    except InvalidInputError as error:
        raise InvalidInputError(error.message, errors={field: [error.message]}) from error


def changed_projects(
    recording: Recording, shares: Sequence[str], quotas: Sequence[str], names: Mapping[str, int]
) -> list[RecordedProject]:
    """Return the projects of a recording with other shares and quotas.

    Args:
        recording: its projects, and those of its jobs.
        shares: such as `vision=3`.
        quotas: such as `vision:gpus:guaranteed=4`.
        names: the numbers of projects by name.

    Raises:
        InvalidInputError: an entry is malformed, or there is no such project.
    """
    projects = {project.project: project for project in recording.projects}
    numbers = {str(number): number for number in projects} | dict(names)
    for job in recording.jobs if shares or quotas else ():
        if job.project:
            numbers.setdefault(str(job.project), job.project)

    def project_named(name: str) -> RecordedProject:
        number = numbers.get(name.strip())
        if number is None:
            listed = ", ".join(sorted(numbers)[:10])
            raise InvalidInputError(
                f"There is no project {name!r}. Choose one of {listed}."
                if listed
                else f"There is no project {name!r}: the jobs have no projects."
            )
        return projects.get(number) or RecordedProject(project=number)

    with errors_at("shares"):
        for text in shares:
            name, _, amount = text.rpartition("=")
            if not amount.isdecimal() or not 1 <= int(amount[:10]) <= MAX_SHARES:
                raise InvalidInputError(
                    f"{text!r} is not PROJECT=SHARES, such as vision=3, with 1 to {MAX_SHARES}."
                )
            project = structs.replace(project_named(name), shares=int(amount))
            projects[project.project] = project
    with errors_at("quotas"):
        for text in quotas:
            name, request, is_removed = _quota(text)
            project = project_named(name)
            others = tuple(quota for quota in project.quotas if quota.key != request.key)
            wanted = others if is_removed else (*others, request)
            for errors in quota_errors(wanted).values():
                raise InvalidInputError(f"{text!r}: {errors[0]}")
            projects[project.project] = structs.replace(project, quotas=wanted)
    return list(projects.values())


def _quota(text: str) -> tuple[str, QuotaRequest, bool]:
    """Return the project, the quota, and whether it is removed."""
    name, resource, limits = ["", "", *text.rsplit(":", 2)][-3:]
    model, _, word = resource.strip().rpartition(" ")
    if not name or word not in set(QuotaResource):
        raise InvalidInputError(
            f"{text!r} is not PROJECT:RESOURCE:LIMITS, such as vision:gpus:guaranteed=4,maximum=8. "
            f"Resources are {', '.join(QuotaResource)}, and a GPU model before gpus."
        )
    kind = QuotaResource(word)
    if limits.strip() == _NONE:
        return name, QuotaRequest(resource=kind, gpu_model=model), True
    amounts = dict(_limit(text, kind, part) for part in limits.split(","))
    return name, QuotaRequest(resource=kind, gpu_model=model, **amounts), False


def _limit(text: str, kind: QuotaResource, part: str) -> tuple[str, int]:
    limit, _, amount = (word.strip() for word in part.partition("="))
    try:
        value = parse_size(amount) if kind is QuotaResource.MEMORY_BYTES else int(amount)
    except ValueError:
        value = -1
    if limit not in LIMITS or value < 0:
        raise InvalidInputError(
            f"{part.strip()!r} of {text!r} is no limit. Write {', '.join(LIMITS)} or none, each "
            "with an amount, such as guaranteed=4."
        )
    return limit, value
