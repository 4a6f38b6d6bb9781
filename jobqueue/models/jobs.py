"""Tables of jobs, what they wait for, their attempts, events and logs."""

from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar

from sqlalchemy import (
    JSON,
    BigInteger,
    Index,
    LargeBinary,
    String,
    Text,
    UniqueConstraint,
    case,
    column,
    false,
    select,
    table,
    text,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.orm import (
    Mapped,
    column_property,
    foreign,
    mapped_column,
    relationship,
)

from core.db import Base, id_column
from core.ids import ID_LENGTH
from core.spec import SpecField, spec_fields
from jobqueue.states import (
    AttemptState,
    DependencyCondition,
    JobState,
    LogState,
    Reason,
)
from protocol.attempts import Health
from protocol.job_spec import ContainerPolicy, JobKind, JobSpec
from tenants.models import Appliance, Grant, User, enum_column, rented_name
from tenants.models.audit import Audited
from tenants.models.columns import reference, tenant_column

LongText = Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb")
LogBytes = LargeBinary().with_variant(mysql.MEDIUMBLOB(), "mysql", "mariadb")


# Models of projects are in a package that knows jobs: read the names without them.
_PROJECTS = table("projects", column("id"), column("name"))


class Job(Base):
    """A job as submitted: its resources are the request, in cores, bytes and whole GPUs."""

    __tablename__ = "jobs"
    __table_args__ = (
        Index("ix_jobs_queue", "tenant_id", "state", "queue_at", "id"),
        Index("ix_jobs_tenant_id_id", "tenant_id", "id"),
        Index("ix_jobs_project_id_id", "project_id", "id"),
    )
    audited: ClassVar[Audited]

    id: Mapped[str] = id_column()
    tenant_id: Mapped[str] = reference("tenants.id")
    user_id: Mapped[str | None] = reference("users.id", ondelete="SET NULL", index=True)
    project_id: Mapped[str | None] = mapped_column(String(ID_LENGTH))
    """No foreign key: projects are archived, and SQLite would copy the table to add one."""
    project_name: Mapped[str | None] = column_property(
        select(_PROJECTS.c.name)
        .where(_PROJECTS.c.id == project_id)
        .correlate_except(_PROJECTS)
        .scalar_subquery(),
        # A change of a job doesn't change it, and it is shown after the session has ended.
        expire_on_flush=False,
    )
    name: Mapped[str] = mapped_column(String(100))
    kind: Mapped[JobKind] = mapped_column(enum_column(JobKind))
    image: Mapped[str] = mapped_column(String(300))
    command: Mapped[list[str]] = mapped_column(default=list)
    env: Mapped[dict[str, str]] = mapped_column(default=dict)
    secret_names: Mapped[list[str]] = mapped_column(default=list)
    secret_env: Mapped[str | None] = mapped_column(LongText)
    """Secret variables, encrypted; see `jobqueue.jobs.job_secrets`."""
    gpus: Mapped[int] = mapped_column(default=0)
    gpu_memory_bytes: Mapped[int] = mapped_column(BigInteger, default=0)
    gpu_slice: Mapped[str] = mapped_column(String(32), default="", server_default="")
    """A MIG profile; with it or without `gpus`, it gets a part of a GPU."""
    gpu_compute: Mapped[float] = mapped_column(default=0.0, server_default=text("0"))
    cpus: Mapped[float] = mapped_column(default=1.0)
    memory_bytes: Mapped[int] = mapped_column(BigInteger)
    container_policy: Mapped[ContainerPolicy] = mapped_column(
        enum_column(ContainerPolicy), default=ContainerPolicy.RESTRICTED
    )
    appliance_id: Mapped[str | None] = reference("appliances.id", ondelete="SET NULL", index=True)
    """The appliance that the user requested; None lets placement choose."""
    labels: Mapped[dict[str, str]] = mapped_column(default=dict)
    gpu_models: Mapped[list[str]] = mapped_column(default=list)
    """Words of which one must be in a GPU's model, such as `H100`; empty for any model."""
    required_labels: Mapped[dict[str, str]] = mapped_column(default=dict)
    """Labels that its appliance must have."""
    working_dir: Mapped[str] = mapped_column(String(300), default="")
    shared_memory_bytes: Mapped[int] = mapped_column(BigInteger, default=0)
    mounts: Mapped[list[dict[str, Any]]] = mapped_column(default=list)
    ports: Mapped[list[dict[str, Any]]] = mapped_column(default=list)
    priority: Mapped[int] = mapped_column(default=0)
    is_preemptible: Mapped[bool] = mapped_column(default=False)
    max_retries: Mapped[int] = mapped_column(default=0)
    retry_on: Mapped[list[str]] = mapped_column(default=list)
    """The failure classes after which it is tried again; see `jobqueue.jobs.retries`."""
    time_limit_seconds: Mapped[int] = mapped_column(default=0)
    """From the start of an attempt; 0 is none."""
    notify: Mapped[list[str]] = mapped_column(default=list)
    """Whom it notifies at its end: `email` is its user, others are names of receivers."""
    is_notice_due: Mapped[bool] = mapped_column(
        default=lambda context: bool(context.get_current_parameters().get("notify")), index=True
    )
    idle_gpu_percent: Mapped[int] = mapped_column(default=0)
    """It stops when its GPUs are utilized less than this; 0 is no limit."""
    idle_gpu_seconds: Mapped[int] = mapped_column(default=0)
    """For how long they must be."""
    dependencies: Mapped[list[dict[str, Any]]] = mapped_column(default=list)
    """The jobs that it waited for; the rows of `JobDependency` are those left."""
    array_id: Mapped[str | None] = mapped_column(String(ID_LENGTH), index=True)
    """The id of the first task of its array, instance of its service, or member of its gang."""
    array_index: Mapped[int | None]
    array_size: Mapped[int] = mapped_column(default=0)
    array_limit: Mapped[int] = mapped_column(default=0)
    """How many tasks of the array may run at once; 0 is any number."""
    nodes: Mapped[int] = mapped_column(default=1, server_default=text("1"))
    """The members of its gang; 1 for any other job."""
    on_member_loss: Mapped[str] = mapped_column(String(16), default="stop", server_default="stop")
    """See `protocol.job_spec.OnMemberLoss`."""
    health_check: Mapped[dict[str, Any] | None]
    """Of a service; see `protocol.job_spec.HealthCheck`."""
    autoscaling: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    """Of all instances of a service alike; see `protocol.autoscaling.Autoscaling`."""
    options: Mapped[dict[str, Any] | None]
    """The fields of its spec that have no column, as far as they are set."""
    revision: Mapped[int] = mapped_column(default=1)
    """Of a service; each update adds one."""
    state: Mapped[JobState] = mapped_column(enum_column(JobState))
    reason: Mapped[Reason] = mapped_column(enum_column(Reason), default=Reason.NONE)
    message: Mapped[str] = mapped_column(Text, default="")
    exit_code: Mapped[int | None]
    queue_at: Mapped[datetime] = mapped_column(
        default=lambda context: context.get_current_parameters()["submitted_at"]
    )
    """Its place in the queue: its submission, moved by its priority."""
    retry_at: Mapped[datetime | None]
    """No attempt starts before this time."""
    submitted_at: Mapped[datetime]
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    stop_requested_at: Mapped[datetime | None]
    user: Mapped[User | None] = relationship()
    attempts: Mapped[list["Attempt"]] = relationship(
        back_populates="job", order_by="Attempt.number"
    )

    if TYPE_CHECKING:  # in `options`
        framework: str
        network: str
        uses_rdma: bool
        datasets: list[dict[str, Any]]
        outputs: list[str]
        cluster_options: dict[str, str]
        max_gpu_hour_price: float
        rental: dict[str, str]

    @property
    def title(self) -> str:
        """Its name, with its index in an array."""
        return self.name if self.array_index is None else f"{self.name}[{self.array_index}]"

    @property
    def wants_gpus(self) -> bool:
        """Return whether it gets GPUs, or a part of one."""
        return bool(self.gpus or self.gpu_slice or self.gpu_memory_bytes or self.gpu_compute)

    @property
    def instances(self) -> int:
        """Return how many instances its service has; 1 for a batch job."""
        return max(1, self.array_size) if self.kind is JobKind.SERVICE else 1

    @property
    def attempt(self) -> "Attempt | None":
        """The latest attempt, if the job was placed."""
        return self.attempts[-1] if self.attempts else None


# Fields of the spec that no query needs; `Job` has an attribute of each.
OPTIONS = spec_fields(JobSpec).keys() - vars(Job).keys()


class _Option:
    """A field of a job's spec in `Job.options`, where only values besides the default are."""

    def __init__(self, field: SpecField) -> None:
        self._field = field

    def __get__(self, job: Job | None, _owner: type) -> Any:  # noqa: ANN401 - of the field's type
        stored = (job.options if job is not None else None) or {}
        return stored.get(self._field.name, self._field.default)

    def __set__(self, job: Job, value: Any) -> None:  # noqa: ANN401 - of the field's type
        options = {
            name: stored for name, stored in (job.options or {}).items() if name != self._field.name
        }
        if value != self._field.default:
            options[self._field.name] = value
        job.options = options or None


for _name in OPTIONS:
    setattr(Job, _name, _Option(spec_fields(JobSpec)[_name]))
# State changes are in `JobEvent`, not in the audit log.
Job.audited = Audited(
    kind="job",
    name="name",
    fields=(
        *(name for name in spec_fields(JobSpec) if name not in {*OPTIONS, "env", "instances"}),
        *("kind", "options"),
        *("container_policy", "secret_names", "dependencies", "array_size", "array_limit"),
        *("revision", "appliance_id", "project_id", "stop_requested_at"),
    ),
    verbs={
        "stop_requested_at": ("stop_requested", "stop_withdrawn"),
        "secret_names": ("made_secret", "made_secret"),
    },
    created="submitted",
)


class JobDependency(Base):
    """A job that another one, or the array with this first task, still waits for."""

    __tablename__ = "job_dependencies"

    job_id: Mapped[str] = reference("jobs.id", primary_key=True)
    on_job_id: Mapped[str] = reference("jobs.id", primary_key=True, index=True)
    tenant_id: Mapped[str] = tenant_column()
    condition: Mapped[DependencyCondition] = mapped_column(enum_column(DependencyCondition))


class Attempt(Base):
    """One try at running a job on one appliance; `placement` explains the choice."""

    __tablename__ = "attempts"
    __table_args__ = (
        UniqueConstraint("job_id", "number"),
        Index("ix_attempts_appliance_id_state", "appliance_id", "state"),
        Index("ix_attempts_is_charged_finished_at", "is_charged", "finished_at"),
        Index("ix_attempts_provider_id_state", "provider_id", "state"),
    )

    id: Mapped[str] = id_column()
    job_id: Mapped[str] = reference("jobs.id")
    tenant_id: Mapped[str] = tenant_column()
    appliance_id: Mapped[str] = reference("appliances.id")
    number: Mapped[int]
    state: Mapped[AttemptState] = mapped_column(enum_column(AttemptState))
    reason: Mapped[Reason] = mapped_column(enum_column(Reason), default=Reason.NONE)
    message: Mapped[str] = mapped_column(Text, default="")
    gpu_uuids: Mapped[list[str]] = mapped_column(default=list)
    gpu_slice: Mapped[dict[str, Any] | None]
    """The part that it has of its GPU, as `protocol.gpu_slices.GPUSlice`; None for whole GPUs."""
    placement: Mapped[dict[str, Any]] = mapped_column(default=dict)
    stop_reason: Mapped[Reason | None] = mapped_column(enum_column(Reason))
    """Why the queue stops it, apart from a user's request."""
    preemption: Mapped[dict[str, Any] | None]
    """For which job it stops, and why; see `jobqueue.jobs.preemptions`."""
    is_notice_due: Mapped[bool] = mapped_column(default=False, server_default=false(), index=True)
    """Whether those whom its job notifies don't know yet that it was preempted."""
    exit_code: Mapped[int | None]
    bound_at: Mapped[datetime]
    assigned_at: Mapped[datetime | None] = mapped_column(index=True)
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None] = mapped_column(index=True)
    pull_began_at: Mapped[datetime | None]
    """When its appliance began to pull its image, as its agent reports it; None without a pull."""
    pull_ended_at: Mapped[datetime | None]
    health: Mapped[Health] = mapped_column(enum_column(Health), default=Health.UNKNOWN)
    restarts: Mapped[int] = mapped_column(default=0)
    """How often its executor started a service again."""
    log_bytes: Mapped[int] = mapped_column(BigInteger, default=0)
    log_state: Mapped[LogState] = mapped_column(enum_column(LogState), default=LogState.LIVE)
    log_is_full: Mapped[bool] = mapped_column(default=False)
    """Whether later output was not stored."""
    awaits_report: Mapped[bool] = mapped_column(default=False, server_default=false())
    """Whether a backup was restored, and its appliance has not reported since."""
    staging: Mapped[dict[str, Any] | None]
    """How far its data is, as `protocol.attempts.StagingProgress`; None once it runs."""
    is_prepared: Mapped[bool] = mapped_column(default=False, server_default=false())
    """Whether it waits for the other members of its gang, or did."""
    is_charged: Mapped[bool] = mapped_column(default=False, server_default=false())
    """Whether its usage is in `FairShareUsage`."""
    node_id: Mapped[str | None] = mapped_column(String(ID_LENGTH), index=True)
    """The node of a cluster where it runs; `appliance_id` is the cluster's connector then."""
    is_on_cluster: Mapped[bool] = mapped_column(default=False, server_default=false())
    """Whether its appliance is the connector of a cluster, in whose queue it may wait."""
    contract_id: Mapped[str | None] = mapped_column(String(ID_LENGTH), index=True)
    """The contract under which its appliance, of another tenant, is rented; None on an own one."""
    provider_id: Mapped[str | None] = mapped_column(String(ID_LENGTH))
    """The tenant of its appliance if that is rented; None on an own one."""
    job: Mapped[Job] = relationship(back_populates="attempts", lazy="joined")
    appliance: Mapped[Appliance] = relationship()
    node: Mapped[Appliance | None] = relationship(
        primaryjoin=lambda: foreign(Attempt.node_id) == Appliance.id, viewonly=True
    )
    grant: Mapped[Grant | None] = relationship(
        primaryjoin=lambda: foreign(Attempt.contract_id) == Grant.contract_id, viewonly=True
    )
    """Of its contract, as long as that lasts."""

    @property
    def own_appliance(self) -> Appliance | None:
        """The appliance where it runs, as users of its tenant may see it: not a rented one."""
        return self.appliance if self.contract_id is None else None

    @property
    def place_id(self) -> str:
        """What its samples have as their appliance for its tenant: of a rented one the contract."""
        return self.contract_id or self.appliance_id

    @property
    def place_name(self) -> str:
        """The name of where it runs, for users of its tenant: of a rented appliance the offer's."""
        if self.contract_id is None:
            return self.appliance.name
        offer_name = self.grant.offer_name if self.grant else self.placement.get("offer", "")
        return rented_name(offer_name)

    @property
    def charged_from(self) -> datetime | None:
        """From when on it is charged: a cluster allocates resources when it starts."""
        return self.started_at if self.is_on_cluster else self.assigned_at


CHARGED_FROM = case((Attempt.is_on_cluster, Attempt.started_at), else_=Attempt.assigned_at)
"""`Attempt.charged_from` in the database; never before `assigned_at`."""
OWN_APPLIANCE_ID = case((Attempt.contract_id.is_(None), Attempt.appliance_id))
"""The id of `Attempt.own_appliance` in the database: NULL on a rented one."""


class JobEvent(Base):
    """An entry of a job's history: its state and reason at a time."""

    __tablename__ = "job_events"

    id: Mapped[str] = id_column()
    job_id: Mapped[str] = reference("jobs.id", index=True)
    tenant_id: Mapped[str] = tenant_column()
    state: Mapped[JobState] = mapped_column(enum_column(JobState))
    reason: Mapped[Reason] = mapped_column(enum_column(Reason), default=Reason.NONE)
    message: Mapped[str] = mapped_column(Text, default="")
    at: Mapped[datetime]


class LogChunk(Base):
    """A chunk of an attempt's log, at an offset in bytes."""

    __tablename__ = "attempt_log_chunks"

    attempt_id: Mapped[str] = reference("attempts.id", primary_key=True)
    offset: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    data: Mapped[bytes] = mapped_column(LogBytes)
