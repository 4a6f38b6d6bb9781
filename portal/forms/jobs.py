"""The form that submits a job."""

from collections.abc import Iterable, Sequence
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
from wtforms.validators import DataRequired, InputRequired, NumberRange, Optional, ValidationError

from core.spec import spec_fields
from jobqueue.jobs.appliance_requests import is_slice_request
from jobqueue.jobs.end_notices import EMAIL
from jobqueue.jobs.retries import DESCRIPTIONS
from jobqueue.jobs.settings import PolicyChoice
from jobqueue.models import Job, JobSchedule
from jobqueue.placement.rentals import RentalView
from jobqueue.placement.views import ApplianceView
from jobqueue.projects.models import Project
from jobqueue.queue.resubmission import request_like
from jobqueue.queue.schedules import ScheduleRequest
from jobqueue.services.rolling_updates import FIXED, UPDATABLE
from jobqueue.states import Missed, Overlap
from portal.forms.form import (
    CheckboxListField,
    CommandField,
    DurationField,
    LinesField,
    NotationField,
    PairsField,
    SecretPairsField,
    SizeField,
    TagsField,
)
from portal.forms.job_clusters import CLUSTER_FIELDS, ClusterFields, values_of_clusters
from portal.time_zone import current_zone_name
from protocol.autoscaling import format_autoscaling, parse_autoscaling
from protocol.gangs import Framework, JobNetwork
from protocol.job_spec import MAX_PRICE, FailureClass, JobKind, JobRequest, OnMemberLoss
from protocol.notation import (
    format_dataset,
    format_health_check,
    format_mount,
    format_port,
    parse_dataset,
    parse_health_check,
    parse_mount,
    parse_port,
)
from tenants.scope import Scope

GIB = 1024**3
RENAMED = {
    "gpu_memory_bytes": "gpu_memory",
    "memory_bytes": "memory",
    "appliance_id": "appliance",
    "secrets_from": "secrets",
    "shared_memory_bytes": "shared_memory",
    "time_limit_seconds": "time_limit",
    "idle_gpu_seconds": "idle_gpu_time",
    "stop_grace_seconds": "stop_grace",
}
KIND_CHOICES = [
    SelectChoice(JobKind.BATCH.value, "Batch: runs once"),
    SelectChoice(JobKind.SERVICE.value, "Service: runs until stopped"),
]
OVERLAP_CHOICES = [
    SelectChoice(Overlap.SKIP.value, "Skip this run"),
    SelectChoice(Overlap.ALLOW.value, "Run both"),
    SelectChoice(Overlap.REPLACE.value, "Stop the previous one"),
]
LOSS_CHOICES = [
    SelectChoice(OnMemberLoss.STOP.value, "Stop the others"),
    SelectChoice(OnMemberLoss.RESTART.value, "Restart all, as far as retries allow"),
    SelectChoice(OnMemberLoss.CONTINUE.value, "Continue without it"),
]
FRAMEWORK_CHOICES = [
    SelectChoice(Framework.NONE.value, "None"),
    SelectChoice(Framework.TORCH.value, "PyTorch"),
    SelectChoice(Framework.TENSORFLOW.value, "TensorFlow"),
    SelectChoice(Framework.PADDLE.value, "PaddlePaddle"),
    SelectChoice(Framework.JAX.value, "JAX"),
    SelectChoice(Framework.MPI.value, "MPI"),
    SelectChoice(Framework.RAY.value, "Ray"),
]
NETWORK_CHOICES = [
    SelectChoice("", "Usual: private for a gang with a framework"),
    SelectChoice(JobNetwork.BRIDGE.value, "The engine's bridge"),
    SelectChoice(JobNetwork.GANG.value, "Private to the gang"),
    SelectChoice(JobNetwork.HOST.value, "The appliance's"),
]
# What a job requests of the GPUs.
WHOLE, PART, PROFILE = "whole", "part", "profile"
GPU_CHOICES = [
    SelectChoice(WHOLE, "Whole GPUs, or none"),
    SelectChoice(PART, "A part of a GPU, by memory or compute"),
    SelectChoice(PROFILE, "A part of a GPU, by MIG profile"),
]
# The fields of a choice that the others don't have.
_OTHER_CHOICES = {
    WHOLE: ("gpu_slice", "gpu_compute"),
    PART: ("gpus", "gpu_slice"),
    PROFILE: ("gpus", "gpu_memory_bytes", "gpu_compute"),
}
MISSED_CHOICES = [
    SelectChoice(Missed.SKIP.value, "Skip them"),
    SelectChoice(Missed.RUN_ONCE.value, "Run once afterwards"),
]
# Requirements of the appliance.
SHAPE = (
    *("gpu_choice", "gpus", "gpu_slice", "gpu_memory", "gpu_compute"),
    *("cpus", "memory", "gpu_models", "required_labels"),
)
# The folded parts of the form.
OPTIONS = {
    "cluster": ("cluster", *CLUSTER_FIELDS.values(), "cluster_options"),
    "storage": (
        *("datasets", "mounts", "outputs", "ports", "shared_memory", "working_dir"),
        *("network", "uses_rdma"),
    ),
    "placement": ("gpu_models", "required_labels", "labels", "priority", "is_preemptible"),
    "rental": ("max_gpu_hour_price", "rental"),
    "service": ("instances", "autoscaling", "health_check"),
    "limits": (
        "time_limit",
        "idle_gpu_time",
        "idle_gpu_percent",
        "stop_grace",
        "max_retries",
        "retry_on",
        "notify",
    ),
    "gang": ("nodes", "on_member_loss", "framework"),
    "dependencies": ("array", "after_ok", "after_any"),
    "schedule": ("schedule", "time_zone", "overlap", "missed"),
}


class JobForm(ClusterFields):
    """A new job: its container and resources; `grants` are what the tenant may rent."""

    grants: Sequence[RentalView] = ()

    name = StringField("Name", [DataRequired("Enter a name.")])
    command = CommandField("Command", default=list)
    env = PairsField("Environment", default=dict)
    secrets = SecretPairsField("Secrets", default=dict)
    secrets_from = HiddenField()
    kind = SelectField("Type", choices=KIND_CHOICES)
    gpu_choice = SelectField("GPU request", choices=GPU_CHOICES, default=WHOLE)
    gpus = IntegerField(
        "GPUs", [InputRequired("Enter a number, or 0 for none."), NumberRange(0)], default=0
    )
    gpu_slice = StringField("MIG profile", default="")
    gpu_memory = SizeField("GPU memory", default=0)
    gpu_compute = DecimalField("GPU compute share", [Optional(), NumberRange(0, 1)], places=None)
    cpus = DecimalField(
        "CPU cores", [InputRequired("Enter a number."), NumberRange(0)], default=1, places=None
    )
    memory = SizeField("Memory", default=GIB)
    gpu_models = TagsField("GPU models", default=list)
    shared_memory = SizeField("Shared memory", default=0)
    working_dir = StringField("Working directory", default="")
    datasets = LinesField("Datasets", parse=parse_dataset, format=format_dataset)
    mounts = LinesField("Data paths", parse=parse_mount, format=format_mount)
    outputs = LinesField("Output folders", parse=str.strip, format=str)
    ports = LinesField("Ports", parse=parse_port, format=format_port)
    labels = PairsField("Labels", default=dict)
    required_labels = PairsField("Required appliance labels", default=dict)
    max_gpu_hour_price = DecimalField(
        "Highest price of a GPU-hour", [Optional(), NumberRange(0, MAX_PRICE)], places=None
    )
    rental = PairsField("Requirements", default=dict)
    priority = IntegerField("Priority", [Optional()], default=0)
    is_preemptible = BooleanField("Preemptible", default=False)
    max_retries = IntegerField("Retries", [Optional()], default=0)
    retry_on = CheckboxListField(
        "Retry on", default=[failure_class.value for failure_class in FailureClass]
    )
    time_limit = DurationField("Time limit", default=0)
    stop_grace = DurationField("Stop grace period", default=0)
    notify = CheckboxListField("Notify when the job ends", default=[])
    idle_gpu_percent = IntegerField("Idle GPU utilization (%)", [Optional()], default=0)
    idle_gpu_time = DurationField("Stop when idle for", default=0)
    array = StringField("Array", default="")
    nodes = IntegerField("Gang members", [Optional()], default=1)
    on_member_loss = SelectField("When a member fails", choices=LOSS_CHOICES, default="stop")
    framework = SelectField("Framework", choices=FRAMEWORK_CHOICES, default="none")
    network = SelectField("Network", choices=NETWORK_CHOICES, default="")
    uses_rdma = BooleanField("RDMA", default=False)
    instances = IntegerField("Instances", [Optional()], default=1)
    autoscaling = NotationField("Autoscaling", parse=parse_autoscaling, format=format_autoscaling)
    health_check = NotationField(
        "Health check", parse=parse_health_check, format=format_health_check
    )
    health_interval = DurationField("Check every", default=10)
    health_timeout = DurationField("Check timeout", default=5)
    health_grace = DurationField("Grace period", default=60)
    health_failures = IntegerField("Failures before restart", [Optional()], default=3)
    after_ok = LinesField("After success of", parse=str.strip, format=str)
    after_any = LinesField("After the end of", parse=str.strip, format=str)
    schedule = StringField("Schedule", default="")
    time_zone = StringField("Time zone", default=current_zone_name)
    overlap = SelectField(
        "If the previous run is still active", choices=OVERLAP_CHOICES, default="skip"
    )
    missed = SelectField("Missed runs", choices=MISSED_CHOICES, default="skip")
    container_policy = SelectField("Container policy", choices=[])
    appliance = StringField("Appliance", default="")
    project = SelectField("Project", choices=[])

    def validate_gpu_choice(self, field: SelectField) -> None:
        """Refuse a choice whose fields are empty."""
        memory, compute = self.gpu_memory.data, self.gpu_compute.data
        if field.data == PART and not (memory or compute):
            raise ValidationError("Enter the GPU memory or the compute share.")
        if field.data == PROFILE and not (self.gpu_slice.data or "").strip():
            raise ValidationError("Enter a MIG profile.")
        if field.data == WHOLE and memory and not self.gpus.data:
            raise ValidationError("Enter the number of GPUs, or choose a part of a GPU.")

    def offer(
        self,
        appliance: ApplianceView | None,
        policies: PolicyChoice,
        *,
        receivers: Iterable[str],
    ) -> None:
        """Set the appliance that was chosen, and the policies and receivers to choose from."""
        if self.notify:
            self.notify.choices = [(EMAIL, "Email me"), *((name, name) for name in receivers)]
        self.container_policy.choices = [
            SelectChoice(policy.value, policy.value) for policy in policies.allowed
        ]
        if not self.is_submitted() and self.container_policy.data not in policies.allowed:
            self.container_policy.data = policies.default.value
        self.retry_on.choices = [
            (failure_class.value, text) for failure_class, text in DESCRIPTIONS.items()
        ]
        self._chosen = appliance
        if appliance and not self.is_submitted():
            self.appliance.data = appliance.name

    def offer_rentals(self, grants: Iterable[RentalView]) -> None:
        """Set the offers that the tenant has contracts for; without any there are no such fields.

        What a copied job asks of rented appliances stays, to be seen.
        """
        self.grants = sorted(grants, key=lambda grant: (grant.price, grant.offer_name))
        if not (self.grants or self.max_gpu_hour_price.data or self.rental.data):
            del self.max_gpu_hour_price, self.rental

    def offer_projects(self, projects: Sequence[Project], default: Project | None) -> None:
        """Set the projects to choose from; a user without any has no such field."""
        if not self.project:
            return
        if not projects:
            del self.project
            return
        none = [] if default else [SelectChoice("", "None")]
        self.project.choices = [
            *none,
            *(SelectChoice(project.id, project.name) for project in projects),
        ]
        chosen = [
            project.id for project in projects if self.project.data in {project.id, project.name}
        ]
        if not self.is_submitted():
            self.project.data = (chosen or [default.id if default else ""])[0]

    def uses(self, group: str) -> bool:
        """Return whether fields of a folded part differ from their defaults or have errors."""
        fields = [getattr(self, name) for name in OPTIONS[group]]
        return any(field.errors or field.data != _default(field) for field in fields if field)

    def ask_for_secrets_again(self) -> None:
        """Add an error to the secrets of a form with errors: they are not shown again with it."""
        if self.errors or self.form_errors:
            secrets_errors = ["Enter the secrets again."] if self.secrets.data else []
            self.secrets.errors = [*self.secrets.errors, *secrets_errors]

    def request(self, **fixed: object) -> JobRequest:
        """Return the job request, with fixed fields; an unknown appliance is rejected with it."""
        values: dict[str, Any] = {}
        for name, spec_field in spec_fields(JobRequest).items():
            field = self._fields.get(RENAMED.get(name, name))
            value = field.data if field else None
            value = value.strip() if isinstance(value, str) else value
            # An empty field has its default. Fields of numbers return floats and decimals.
            if value not in (None, ""):
                is_number = spec_field.type in (int, float)
                values[name] = spec_field.type(value) if is_number else value
        values |= {
            "secrets_from": self.secrets_from.data or None,
            "appliance_id": self._chosen.id if self._chosen else values.get("appliance_id"),
            **fixed,
        }
        if self.cluster_options:
            values["cluster_options"] = self.chosen_options()
            values["appliance_id"] = self.cluster.data or values["appliance_id"]
        if self.is_without_image:
            values["image"] = ""
        values = {name: value for name, value in values.items() if name not in self._not_chosen}
        values["kind"] = JobKind(values["kind"])
        if self.health_check.data:
            values["health_check"] = msgspec.structs.replace(
                self.health_check.data,
                interval_seconds=self.health_interval.data,
                timeout_seconds=self.health_timeout.data,
                grace_seconds=self.health_grace.data,
                max_failures=self.health_failures.data or 0,
            )
        return JobRequest(**values)

    @property
    def _not_chosen(self) -> Sequence[str]:
        return _OTHER_CHOICES[self.gpu_choice.data]

    def shape(self) -> JobRequest:
        """Return a request with the resources of the form, whose other fields may be invalid."""
        values: dict[str, Any] = {
            "gpus": self.gpus.data,
            "gpu_slice": (self.gpu_slice.data or "").strip(),
            "gpu_memory_bytes": self.gpu_memory.data,
            "gpu_compute": float(self.gpu_compute.data or 0),
        }
        chosen = {name: value for name, value in values.items() if name not in self._not_chosen}
        return JobRequest(
            name="",
            # An image that is yet to be entered is no job without one.
            image="" if self.is_without_image else (self.image.data or "").strip() or "-",
            cluster_options=self.chosen_options() if self.cluster_options else {},
            time_limit_seconds=int(self.time_limit.data or 0) if self.time_limit else 0,
            kind=JobKind(self.kind.data) if self.kind else JobKind.SERVICE,
            cpus=float(self.cpus.data),
            memory_bytes=self.memory.data,
            gpu_models=self.gpu_models.data,
            required_labels=self.required_labels.data,
            project=(self.project.data or None) if self.project else None,
            **chosen,
        )

    def fix(self) -> None:
        """Remove the fields that an update of a service can't change."""
        for name in ("schedule", "time_zone", "overlap", "missed", *FIXED - {"secrets_from"}):
            delattr(self, RENAMED.get(name, name))
        self.remove_clusters()


def changes_of(form: JobForm, present: JobRequest) -> dict[str, Any]:
    """Return the fields of a service that a form changes."""
    wanted = form.request(name=present.name, kind=present.kind)
    names = UPDATABLE - {"secrets"}
    requested = {name: getattr(wanted, name) for name in names}
    changes = {name: value for name, value in requested.items() if value != getattr(present, name)}
    return changes | ({"secrets": wanted.secrets} if wanted.secrets else {})


def schedule_request(form: JobForm, **fixed: object) -> ScheduleRequest:
    """Return the schedule of a form, with fixed fields of its job."""
    return ScheduleRequest(
        name=form.name.data.strip(),
        schedule=form.schedule.data.strip(),
        time_zone=form.time_zone.data.strip() or current_zone_name(),
        overlap=Overlap(form.overlap.data),
        missed=Missed(form.missed.data),
        job=form.request(**fixed),
    )


def values_of(job: Job, scope: Scope) -> dict[str, Any]:
    """Return the values of the form that copies a job; its secrets only for their user."""
    may_copy = job.user_id == scope.user_id and job.secret_names
    return {**values_of_request(request_like(job)), "secrets_from": job.id if may_copy else ""}


def values_of_request(job: JobRequest) -> dict[str, Any]:
    """Return the values of the form for a template's request."""
    renamed = {name: RENAMED.get(name, name) for name in JobRequest.__struct_fields__}
    values = {renamed[name]: getattr(job, name) for name in renamed}
    choice = PROFILE if job.gpu_slice else PART if is_slice_request(job) else WHOLE
    values |= {"kind": job.kind.value, "appliance": job.appliance_id or "", "gpu_choice": choice}
    values |= {name: getattr(job, name) or None for name in ("gpu_compute", "max_gpu_hour_price")}
    values |= values_of_clusters(job)
    if check := job.health_check:
        values |= {
            "health_interval": check.interval_seconds,
            "health_timeout": check.timeout_seconds,
            "health_grace": check.grace_seconds,
            "health_failures": check.max_failures,
        }
    return {name: value for name, value in values.items() if not name.startswith("secrets")}


def _default(field: Field) -> object:
    return field.default() if callable(field.default) else field.default


def values_of_schedule(schedule: JobSchedule) -> dict[str, Any]:
    """Return the values of the form for a schedule, besides those of its job."""
    values: dict[str, Any] = {
        name: getattr(schedule, name) for name in ("name", "schedule", "time_zone")
    }
    return values | {"overlap": schedule.overlap.value, "missed": schedule.missed.value}
