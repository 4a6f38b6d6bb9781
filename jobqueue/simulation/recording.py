"""Recorded jobs and the hardware that they ran on: what a replay needs, without names of people.

A *recording* is a file of JSON lines: the first has the appliances and the settings of the queue,
each other line has a job. Users and projects are numbers; 0 is no project.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import count, islice
from pathlib import Path
from typing import Annotated

import msgspec

from core.errors import InvalidInputError
from jobqueue.fairshare.settings import OrderSettings
from jobqueue.placement.policies import DEFAULT_POLICY
from jobqueue.placement.views import ApplianceView, GPUView
from jobqueue.projects.quotas import QuotaRequest, quota_errors
from jobqueue.projects.service import MAX_SHARES
from protocol.gpu_slices import WHOLE_GPU

FORMAT = "vedette-recording/1"
MAX_ADDED = 10_000
# The order of a queue without fair shares.
USUAL_ORDER = "priority"
_MAX_ERRORS = 20
# Texts that are no UTF-8, and values nested too deep, are errors of Python.
_DECODE_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e10)]
Count = Annotated[int, msgspec.Meta(ge=0, le=100_000)]
Shares = Annotated[int, msgspec.Meta(ge=1, le=MAX_SHARES)]
Bytes = Annotated[int, msgspec.Meta(ge=0, le=2**60)]
Cores = Annotated[float, msgspec.Meta(ge=0, le=1e6)]


class RecordedJob(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """A job as it was submitted, and how long it ran.

    Attributes:
        submitted_seconds: when, since the start of the recording.
        run_seconds: how long it really ran, over all its attempts.
        time_limit_seconds: 0 is none.
        gpu_milli: thousandths of each of its GPUs.
        gpu_models: the models that may run it, as the appliances have them; empty for any.
        appliance: the name of the one that it requested; empty for any.
        user: a number for its user.
        project: a number for its project; 0 without one.
        nodes: the members of its gang, each of which has these resources.
    """

    submitted_seconds: Seconds
    run_seconds: Seconds
    time_limit_seconds: Seconds = 0
    gpus: Count = 0
    gpu_milli: Annotated[int, msgspec.Meta(ge=1, le=WHOLE_GPU)] = WHOLE_GPU
    gpu_memory_bytes: Bytes = 0
    gpu_models: tuple[str, ...] = ()
    cpus: Cores = 1.0
    memory_bytes: Bytes = 0
    appliance: str = ""
    priority: Annotated[int, msgspec.Meta(ge=-1000, le=1000)] = 0
    is_preemptible: bool = False
    user: Count = 0
    project: Count = 0
    nodes: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 1


class RecordedGPU(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A GPU of an appliance."""

    model: str = ""
    memory_bytes: Bytes = 0


class RecordedAppliance(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An appliance with its totals."""

    name: str
    cpus: Cores
    memory_bytes: Bytes
    gpus: tuple[RecordedGPU, ...] = ()

    def view(self) -> ApplianceView:
        """Return it as placement sees it, idle and healthy."""
        return ApplianceView(
            id=self.name,
            name=self.name,
            executors=("recorded",),
            cpus=self.cpus,
            memory_bytes=self.memory_bytes,
            gpus=[
                GPUView(f"{self.name}-{slot}", gpu.memory_bytes, model=gpu.model)
                for slot, gpu in enumerate(self.gpus)
            ],
        )


class RecordedProject(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A project of the tree.

    Attributes:
        project: its number.
        parent: the number of the one above; 0 is the tenant.
        shares: what it gets in relation to its siblings.
        member_shares: those of its users, by number, that differ from 1.
        quotas: what it may use.
    """

    project: Annotated[int, msgspec.Meta(ge=1, le=100_000)]
    parent: Count = 0
    shares: Shares = 1
    member_shares: dict[int, Shares] = {}
    quotas: tuple[QuotaRequest, ...] = ()


class RecordedReservation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Appliances that were kept for a project at certain times.

    Attributes:
        project: the number of the project; 0 kept all jobs off.
        gpus: of each appliance; None is the whole appliance.
        periods: begins and ends in seconds since the start of the recording, in order.
    """

    appliances: tuple[str, ...]
    periods: tuple[tuple[float, float], ...]
    project: Count = 0
    gpus: Count | None = None


class QueueRules(msgspec.Struct, frozen=True, kw_only=True):
    """The rules of the queue that a replay follows.

    Attributes:
        policy: the placement policy.
        order: the order of the queue, see `jobqueue.simulation.order`.
        ordering: the weights and the half-life of the orders by fair share.
        allows_preemption: whether jobs may displace preemptible ones.
        max_gpus_per_user: the cap on the GPUs of one user; None is none.
        max_gpus: the cap on the GPUs of all.
    """

    policy: str = DEFAULT_POLICY
    order: str = USUAL_ORDER
    ordering: OrderSettings = OrderSettings()
    allows_preemption: bool = False
    max_gpus_per_user: Count | None = None
    max_gpus: Count | None = None


class Recording(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Jobs in the order of their submission, the hardware, and the rules that it had.

    Attributes:
        watts_by_model: the mean power of an allocated GPU, for the models where it was measured.
        projects: those that have shares, quotas, or others above or below; any other one is
            directly below the tenant, with one share.
        jobs: of which a file has one on each line after the first.
    """

    format: str = FORMAT
    appliances: list[RecordedAppliance]
    rules: QueueRules = QueueRules()
    watts_by_model: dict[str, Annotated[float, msgspec.Meta(ge=0)]] = {}
    projects: list[RecordedProject] = []
    reservations: list[RecordedReservation] = []
    jobs: list[RecordedJob] = []

    def shares(self) -> dict[int, float]:
        """Return the shares of the listed projects; below another one, it divides that one's."""
        by_number = {project.project: project for project in self.projects}
        totals: Counter[int] = Counter()
        for project in self.projects:
            totals[project.parent] += project.shares

        def part(project: RecordedProject) -> float:
            if not project.parent:
                return project.shares
            return part(by_number[project.parent]) * project.shares / totals[project.parent]

        return {project.project: part(project) for project in self.projects}


def write_recording(recording: Recording) -> Iterator[bytes]:
    """Yield the lines of a recording."""
    encode = msgspec.json.Encoder().encode
    header = msgspec.structs.asdict(recording)
    del header["jobs"]
    yield encode(header) + b"\n"
    for job in recording.jobs:
        yield encode(job) + b"\n"


def read_recording(path: Path) -> Recording:
    """Return the recording of a file.

    Raises:
        InvalidInputError: lists what is wrong, with line numbers.
    """
    try:
        with path.open("rb") as lines:
            recording = _header(path, lines.readline())
            recording.jobs = _jobs(path, lines)
    except OSError as error:
        raise InvalidInputError(f"Can't read {path}: {error}.") from error
    return recording


def check_recording(recording: Recording) -> None:
    """Raise `InvalidInputError` if nothing could be replayed."""
    if not recording.appliances:
        raise InvalidInputError("There are no appliances to replay the jobs on. Add some.")
    names = Counter(appliance.name for appliance in recording.appliances)
    repeated = sorted(name for name, times in names.items() if times > 1)[:3]
    if repeated:
        raise InvalidInputError(f"Several appliances are named {', '.join(repeated)}.")
    _check_projects(recording.projects)
    for _, error in recording.rules.ordering.errors():
        raise InvalidInputError(f"The rules of the recording are invalid: {error}")


def add_appliances(recording: Recording, wanted: str) -> list[RecordedAppliance]:
    """Return the appliances with more of them, such as `2xdgx-01`: two more like dgx-01.

    Raises:
        InvalidInputError: the text is malformed, or there is no such appliance.
    """
    number, separator, name = wanted.partition("x")
    if not separator or not number.isdecimal() or not 0 < int(number) <= MAX_ADDED:
        raise InvalidInputError(
            f"{wanted!r} is no number of appliances. Write NUMBERxNAME, such as 2xdgx-01."
        )
    names = {appliance.name: appliance for appliance in recording.appliances}
    if name not in names:
        raise InvalidInputError(
            f"There is no appliance {name!r}. Choose one of {', '.join(sorted(names)[:10])}."
        )
    like = names[name]
    # There may be some already, such as those of a second 2xdgx-01.
    free_names = (f"{name}+{copy}" for copy in count(1) if f"{name}+{copy}" not in names)
    added = [msgspec.structs.replace(like, name=free) for free in islice(free_names, int(number))]
    return [*recording.appliances, *added]


def _check_projects(projects: Sequence[RecordedProject]) -> None:
    parents = {project.project: project.parent for project in projects}
    if len(parents) < len(projects):
        raise InvalidInputError("A project is listed twice.")
    for project in projects:
        above, seen = project.parent, {project.project}
        while above and above not in seen and above in parents:
            seen.add(above)
            above = parents[above]
        if above:
            problem = "is below itself" if above in seen else f"is below {above}, which is missing"
            raise InvalidInputError(f"Project {project.project} {problem}.")
        for text in quota_errors(project.quotas).values():
            raise InvalidInputError(f"Project {project.project}: {text[0]}")


def _header(path: Path, line: bytes) -> Recording:
    try:
        header = msgspec.json.decode(line, type=Recording)
    except _DECODE_ERRORS as error:
        raise InvalidInputError(
            f"{path} is no recording ({error}). Write one with `vedette job export`."
        ) from error
    if header.format != FORMAT:
        raise InvalidInputError(
            f"{path} has the format {header.format!r}; this version reads {FORMAT!r}."
        )
    return header


def _jobs(path: Path, lines: Iterable[bytes]) -> list[RecordedJob]:
    decode = msgspec.json.Decoder(RecordedJob).decode
    jobs: list[RecordedJob] = []
    errors: list[str] = []
    for number, line in enumerate(lines, 2):
        try:
            jobs.append(decode(line))
        except _DECODE_ERRORS as error:
            errors.append(f"line {number}: {error}")
            if len(errors) == _MAX_ERRORS:
                break
    if errors:
        raise InvalidInputError(f"{path} has errors: {'; '.join(errors)}.")
    return in_order(jobs)


def in_order(jobs: Sequence[RecordedJob]) -> list[RecordedJob]:
    """Return jobs in the order of their submission."""
    return sorted(jobs, key=lambda job: job.submitted_seconds)
