"""The form that submits a job."""

from collections.abc import Iterable
from typing import Any

import msgspec
from wtforms import (
    BooleanField,
    DecimalField,
    Field,
    HiddenField,
    IntegerField,
    SelectField,
    StringField,
)
from wtforms.fields import SelectChoice
from wtforms.validators import DataRequired, InputRequired, NumberRange, Optional

from jobqueue.container_policies import PolicyChoice
from jobqueue.end_notices import EMAIL
from jobqueue.models import Job
from jobqueue.placement.views import ApplianceView
from jobqueue.queue_settings import MAX_COUNT, MAX_DAYS, DataRoot, QueueSettings
from jobqueue.requests import JobRequest
from jobqueue.retries import FailureClass
from jobqueue.schedules import ScheduleRequest
from jobqueue.states import JobKind, Missed, Overlap
from portal.forms.form import (
    CheckboxListField,
    CommandField,
    DurationField,
    Form,
    LinesField,
    PairsField,
    SecretPairsField,
    SizeField,
    TagsField,
)
from protocol.attempts import ContainerPolicy, Mount, Port
from protocol.notation import format_mount, format_port, parse_mount, parse_port
from tenants.models import ApplianceState
from tenants.scope import Scope

GIB = 1024**3
# Appliances that the form lists; others are typed.
MAX_OFFERED = 2000
RENAMED = {
    "gpu_memory_bytes": "gpu_memory",
    "memory_bytes": "memory",
    "appliance_id": "appliance",
    "secrets_from": "secrets",
    "shared_memory_bytes": "shared_memory",
    "time_limit_seconds": "time_limit",
    "idle_gpu_seconds": "idle_gpu_time",
}
KIND_CHOICES = [
    SelectChoice(JobKind.BATCH.value, "Batch: runs once"),
    SelectChoice(JobKind.SERVICE.value, "Service: runs until stopped"),
]
POLICY_CHOICES = [SelectChoice(policy.value, policy.value) for policy in ContainerPolicy]

OVERLAP_CHOICES = [
    SelectChoice(Overlap.SKIP.value, "Skip this time"),
    SelectChoice(Overlap.ALLOW.value, "Run both"),
    SelectChoice(Overlap.REPLACE.value, "Stop the last one"),
]
MISSED_CHOICES = [
    SelectChoice(Missed.SKIP.value, "Skip them"),
    SelectChoice(Missed.RUN_ONCE.value, "Run once afterwards"),
]
# What an appliance must have.
SHAPE = ("gpus", "gpu_memory", "cpus", "memory", "gpu_models", "required_labels")
# The folded part of the form.
OPTIONS = (
    "gpu_models",
    "shared_memory",
    "working_dir",
    "mounts",
    "ports",
    "labels",
    "required_labels",
    "priority",
    "is_preemptible",
    "max_retries",
    "retry_on",
    "time_limit",
    "idle_gpu_percent",
    "idle_gpu_time",
    "notify",
    "array",
    "after_ok",
    "after_any",
    "schedule",
)
POLICY_LABELS = [
    ("first_free_else_lru", "First free appliance"),
    ("best_fit", "Best fit: fill appliances up"),
    ("spread", "Spread: emptiest appliance"),
    ("least_fragmentation", "Least fragmentation of free GPUs"),
]


def _parse_root(text: str) -> DataRoot:
    path, _, mode = text.strip().partition(":")
    if mode not in {"", "ro", "rw"}:
        raise ValueError(f"{text!r} is not a data root; enter a path, with :rw if it is writable.")
    return DataRoot(path=path, is_read_only=mode != "rw")


def _format_root(root: DataRoot) -> str:
    return root.path if root.is_read_only else f"{root.path}:rw"


class JobForm(Form):
    """A new job: its container and resources."""

    name = StringField("Name", [DataRequired("Enter a name.")])
    image = StringField("Container image", [DataRequired("Enter a container image.")])
    command = CommandField("Command", default=list)
    env = PairsField("Environment", default=dict)
    secrets = SecretPairsField("Secrets", default=dict)
    secrets_from = HiddenField()
    kind = SelectField("Type", choices=KIND_CHOICES)
    gpus = IntegerField(
        "GPUs", [InputRequired("Enter a number, or 0 for none."), NumberRange(0)], default=0
    )
    gpu_memory = SizeField("Memory per GPU", default=0)
    cpus = DecimalField(
        "CPU cores", [InputRequired("Enter a number."), NumberRange(0)], default=1, places=None
    )
    memory = SizeField("Memory", default=GIB)
    gpu_models = TagsField("GPU models", default=list)
    shared_memory = SizeField("Shared memory", default=0)
    working_dir = StringField("Working directory", default="")
    mounts = LinesField("Data paths", parse=parse_mount, format=format_mount)
    ports = LinesField("Ports", parse=parse_port, format=format_port)
    labels = PairsField("Labels", default=dict)
    required_labels = PairsField("Required labels of the appliance", default=dict)
    priority = IntegerField("Priority", [Optional()], default=0)
    is_preemptible = BooleanField("Preemptible", default=False)
    max_retries = IntegerField("Retries", [Optional()], default=0)
    retry_on = CheckboxListField("Retry on", default=[one.value for one in FailureClass])
    time_limit = DurationField("Time limit", default=0)
    notify = CheckboxListField("Notify at its end", default=[])
    idle_gpu_percent = IntegerField("Stop below GPU utilization (%)", [Optional()], default=0)
    idle_gpu_time = DurationField("Stop when idle for", default=0)
    array = StringField("Array", default="")
    after_ok = LinesField("After success of", parse=str.strip, format=str)
    after_any = LinesField("After the end of", parse=str.strip, format=str)
    schedule = StringField("Schedule", default="")
    time_zone = StringField("Time zone", default="UTC")
    overlap = SelectField("If the last run has not ended", choices=OVERLAP_CHOICES, default="skip")
    missed = SelectField("Missed times", choices=MISSED_CHOICES, default="skip")
    container_policy = SelectField("Container policy", choices=[])
    appliance = StringField("Appliance", default="")

    def offer(
        self,
        appliances: Iterable[ApplianceView],
        policies: PolicyChoice,
        *,
        receivers: Iterable[str],
    ) -> None:
        """Set the appliances, container policies and receivers to choose from."""
        self.notify.choices = [(EMAIL, "Email me"), *((name, name) for name in receivers)]
        self.container_policy.choices = [
            SelectChoice(policy.value, policy.value) for policy in policies.allowed
        ]
        if not self.is_submitted() and self.container_policy.data not in policies.allowed:
            self.container_policy.data = policies.default.value
        self.retry_on.choices = [(one.value, one.value) for one in FailureClass]
        views = sorted(appliances, key=lambda view: view.name)
        self.appliances = [(view.name, _described(view)) for view in views[:MAX_OFFERED]]
        self._ids = {view.name: view.id for view in views}
        names = {view.id: view.name for view in views}
        if not self.is_submitted():
            self.appliance.data = names.get(self.appliance.data, self.appliance.data)

    @property
    def has_options(self) -> bool:
        """Whether fields of the folded part differ from their defaults or have errors."""
        fields = [getattr(self, name) for name in OPTIONS]
        return any(field.errors or field.data != _default(field) for field in fields)

    def ask_for_secrets_again(self) -> None:
        """Add an error to the secrets of a form with errors: they are not shown again with it."""
        if self.errors or self.form_errors:
            again = ["Enter the secrets again."] if self.secrets.data else []
            self.secrets.errors = [*self.secrets.errors, *again]

    def request(self) -> JobRequest:
        """Return the job request; an unknown appliance is rejected with it."""
        wanted = self.appliance.data.strip()
        return JobRequest(
            name=self.name.data.strip(),
            image=self.image.data.strip(),
            command=self.command.data,
            env=self.env.data,
            secrets=self.secrets.data,
            secrets_from=self.secrets_from.data or None,
            kind=JobKind(self.kind.data),
            gpus=self.gpus.data,
            gpu_memory_bytes=self.gpu_memory.data,
            cpus=float(self.cpus.data),
            memory_bytes=self.memory.data,
            labels=self.labels.data,
            gpu_models=self.gpu_models.data,
            required_labels=self.required_labels.data,
            working_dir=self.working_dir.data.strip(),
            shared_memory_bytes=self.shared_memory.data,
            mounts=self.mounts.data,
            ports=self.ports.data,
            priority=self.priority.data or 0,
            is_preemptible=self.is_preemptible.data,
            max_retries=self.max_retries.data or 0,
            retry_on=self.retry_on.data or [],
            time_limit_seconds=int(self.time_limit.data),
            notify=self.notify.data or [],
            idle_gpu_percent=self.idle_gpu_percent.data or 0,
            idle_gpu_seconds=int(self.idle_gpu_time.data),
            array=self.array.data.strip(),
            after_ok=self.after_ok.data,
            after_any=self.after_any.data,
            container_policy=self.container_policy.data,
            appliance_id=self._ids.get(wanted, wanted) or None,
        )


def shape_of(form: JobForm) -> JobRequest:
    """Return a request with the resources of a form, whose other fields may be invalid."""
    return JobRequest(
        name="",
        image="",
        gpus=form.gpus.data,
        gpu_memory_bytes=form.gpu_memory.data,
        cpus=float(form.cpus.data),
        memory_bytes=form.memory.data,
        gpu_models=form.gpu_models.data,
        required_labels=form.required_labels.data,
    )


def schedule_request(form: JobForm) -> ScheduleRequest:
    """Return the schedule of a form whose schedule is not empty."""
    return ScheduleRequest(
        name=form.name.data.strip(),
        schedule=form.schedule.data.strip(),
        time_zone=form.time_zone.data.strip() or "UTC",
        overlap=Overlap(form.overlap.data),
        missed=Missed(form.missed.data),
        job=form.request(),
    )


def values_of(job: Job, scope: Scope) -> dict[str, Any]:
    """Return the values of the form that copies a job; its secrets only for their user."""
    may_copy = job.user_id == scope.user_id and job.secret_names
    return {
        "name": job.name,
        "image": job.image,
        "command": job.command,
        "env": job.env,
        "secrets_from": job.id if may_copy else "",
        "kind": job.kind.value,
        "gpus": job.gpus,
        "gpu_memory": job.gpu_memory_bytes,
        "cpus": job.cpus,
        "memory": job.memory_bytes,
        "labels": job.labels,
        "gpu_models": job.gpu_models,
        "required_labels": job.required_labels,
        "working_dir": job.working_dir,
        "shared_memory": job.shared_memory_bytes,
        "mounts": msgspec.convert(job.mounts, list[Mount]),
        "ports": msgspec.convert(job.ports, list[Port]),
        "priority": job.priority,
        "is_preemptible": job.is_preemptible,
        "max_retries": job.max_retries,
        "retry_on": job.retry_on,
        "time_limit": job.time_limit_seconds,
        "notify": job.notify,
        "idle_gpu_percent": job.idle_gpu_percent,
        "idle_gpu_time": job.idle_gpu_seconds,
        "container_policy": job.container_policy.value,
        "appliance": job.appliance_id or "",
    }


def values_of_request(job: JobRequest) -> dict[str, Any]:
    """Return the values of the form for a template's request."""
    renamed = {name: RENAMED.get(name, name) for name in JobRequest.__dataclass_fields__}
    values = {renamed[name]: getattr(job, name) for name in renamed}
    values |= {"kind": job.kind.value, "appliance": job.appliance_id or ""}
    return {name: value for name, value in values.items() if not name.startswith("secrets")}


class PoliciesForm(Form):
    """The container policies that jobs may use."""

    allowed = CheckboxListField("Jobs may use")
    default = SelectField(
        "Default", choices=[SelectChoice(policy.value, policy.value) for policy in ContainerPolicy]
    )

    def choice(self) -> PolicyChoice:
        """Return the policies."""
        return PolicyChoice(
            allowed=[ContainerPolicy(name) for name in self.allowed.data],
            default=ContainerPolicy(self.default.data),
        )


def _default(field: Field) -> object:
    return field.default() if callable(field.default) else field.default


class QueueSettingsForm(Form):
    """How jobs are placed, and what they may use."""

    placement_policy = SelectField(
        "Placement policy", choices=[SelectChoice(name, label) for name, label in POLICY_LABELS]
    )
    max_gpus_per_user = IntegerField("GPUs per user", [Optional(), NumberRange(0, MAX_COUNT)])
    max_gpus = IntegerField("GPUs of all users", [Optional(), NumberRange(0, MAX_COUNT)])
    allows_preemption = BooleanField("Allow preemption")
    data_roots = LinesField("Data roots", parse=_parse_root, format=_format_root)

    job_retention_days = IntegerField("Days of job history", [Optional(), NumberRange(1, MAX_DAYS)])

    def settings(self) -> QueueSettings:
        """Return the settings."""
        return QueueSettings(
            placement_policy=self.placement_policy.data,
            max_gpus_per_user=self.max_gpus_per_user.data,
            max_gpus=self.max_gpus.data,
            allows_preemption=self.allows_preemption.data,
            data_roots=self.data_roots.data,
            job_retention_days=self.job_retention_days.data,
        )


def _described(view: ApplianceView) -> str:
    """Return what a user needs to know before they choose it, such as `3 of 8 GPUs free`."""
    taken = {uuid for running in view.running for uuid in running.gpu_uuids}
    usable = [gpu for gpu in view.gpus if not gpu.is_failed and not view.failure]
    free = sum(gpu.uuid not in taken and not gpu.is_used_outside for gpu in usable)
    facts = [f"{free} of {len(usable)} usable GPUs free"] if view.gpus else ["no GPUs"]
    failed = len(view.gpus) - len(usable)
    facts += [f"{failed} failed"] if failed else []
    facts += ["drained"] if view.is_drained else []
    facts += [] if view.state is ApplianceState.ONLINE else [view.state.value]
    return ", ".join(facts)
