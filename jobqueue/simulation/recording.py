"""Recorded jobs and the hardware that they ran on: what a replay needs, without names of people.

A *recording* is a file of JSON lines: the first has the appliances and the settings of the queue,
each other line has a job. Users and projects are numbers; 0 is no project.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import count, islice
from pathlib import Path
from typing import Annotated

import msgspec

from core.errors import InvalidInputError
from jobqueue.placement.policies import DEFAULT_POLICY, POLICY_NAMES
from jobqueue.placement.views import ApplianceView, GPUView
from protocol.gpu_slices import WHOLE_GPU

FORMAT = "vedette-recording/1"
MAX_ADDED = 10_000
_MAX_ERRORS = 20
# Texts that are no UTF-8, and values nested too deep, are errors of Python.
_DECODE_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e10)]
Count = Annotated[int, msgspec.Meta(ge=0, le=100_000)]
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


class QueueRules(msgspec.Struct, frozen=True, kw_only=True):
    """The rules of the queue that a replay follows.

    Attributes:
        policy: the placement policy.
        order: the order of the queue, see `jobqueue.simulation.order`.
        allows_preemption: whether jobs may displace preemptible ones.
        max_gpus_per_user: the cap on the GPUs of one user; None is none.
        max_gpus: the cap on the GPUs of all.
    """

    policy: str = DEFAULT_POLICY
    order: str = "priority"
    allows_preemption: bool = False
    max_gpus_per_user: Count | None = None
    max_gpus: Count | None = None


class Recording(msgspec.Struct, kw_only=True):
    """Jobs in the order of their submission, the hardware, and the rules that it had.

    Attributes:
        watts_by_model: the mean power of an allocated GPU, for the models where it was measured.
        shares: what each project gets in relation to the others; 1 where it is not listed.
    """

    appliances: list[RecordedAppliance]
    rules: QueueRules = QueueRules()
    watts_by_model: dict[str, float] = {}
    shares: dict[int, float] = {}
    jobs: list[RecordedJob] = []


class _Header(msgspec.Struct, kw_only=True):
    format: str
    appliances: list[RecordedAppliance]
    rules: QueueRules = QueueRules()
    watts_by_model: dict[str, Annotated[float, msgspec.Meta(ge=0)]] = {}
    shares: dict[int, Annotated[float, msgspec.Meta(gt=0)]] = {}


def write_recording(recording: Recording) -> Iterator[bytes]:
    """Yield the lines of a recording."""
    encode = msgspec.json.Encoder().encode
    header = _Header(
        format=FORMAT,
        appliances=recording.appliances,
        rules=recording.rules,
        watts_by_model=recording.watts_by_model,
        shares=recording.shares,
    )
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
            header = _header(path, lines.readline())
            jobs = _jobs(path, lines)
    except OSError as error:
        raise InvalidInputError(f"Can't read {path}: {error}.") from error
    return Recording(
        appliances=header.appliances,
        rules=header.rules,
        watts_by_model=header.watts_by_model,
        shares=header.shares,
        jobs=jobs,
    )


def check_recording(recording: Recording) -> None:
    """Raise `InvalidInputError` if nothing could be replayed."""
    if not recording.jobs:
        raise InvalidInputError("There are no jobs to replay. Choose a longer range.")
    if not recording.appliances:
        raise InvalidInputError("There are no appliances to replay the jobs on. Add some.")
    names = [appliance.name for appliance in recording.appliances]
    repeated = sorted({name for name in names if names.count(name) > 1})[:3]
    if repeated:
        raise InvalidInputError(f"Several appliances are named {', '.join(repeated)}.")
    if recording.rules.policy not in POLICY_NAMES:
        raise InvalidInputError(
            f"Unknown policy {recording.rules.policy!r}. Choose one of {', '.join(POLICY_NAMES)}."
        )


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


def _header(path: Path, line: bytes) -> _Header:
    try:
        header = msgspec.json.decode(line, type=_Header)
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
