"""The forms of how jobs are placed, and what they may use."""

from dataclasses import fields
from typing import Any

from wtforms import BooleanField, FloatField, IntegerField, SelectField
from wtforms.fields import SelectChoice
from wtforms.validators import InputRequired, NumberRange, Optional

from jobqueue.fairshare.settings import OrderPolicy, OrderSettings
from jobqueue.jobs.settings import (
    MAX_COUNT,
    MAX_DAYS,
    MAX_FETCH_MINUTES,
    DataRoot,
    PolicyChoice,
    QueueSettings,
)
from jobqueue.models import DEFAULT_FETCH_MINUTES
from portal.forms.form import CheckboxListField, Form, LinesField
from protocol.gpu_slices import PartitionMode
from protocol.job_spec import ContainerPolicy

ORDER_FIELDS = [field.name for field in fields(OrderSettings)]
ORDER_LABELS = [
    (OrderPolicy.FIFO.value, "Submission and priority"),
    (OrderPolicy.FAIR_TREE.value, "Fair share of past usage (Fair Tree)"),
    (OrderPolicy.DRF.value, "Fair share of what runs (dominant resource)"),
]
ISOLATION_FIELDS = ("isolation_between_users", "isolation_between_projects")
_ISOLATION_LABELS = {
    PartitionMode.TIME_SLICING: "Any, time slicing included",
    PartitionMode.MPS: "MPS or MIG",
    PartitionMode.MIG: "MIG",
    PartitionMode.WHOLE: "Never",
}
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


class NumberField(FloatField):  # type: ignore[misc] # WTForms ships no types
    """A number that is shown without needless digits."""

    def _value(self) -> str:
        is_stored = self.data is not None and not self.raw_data
        return f"{self.data:g}" if is_stored else str(super()._value())


def _isolation_field(label: str, default: str) -> SelectField:
    choices = [(mode.value, text) for mode, text in _ISOLATION_LABELS.items()]
    return SelectField(
        label, choices=[SelectChoice(*choice) for choice in (("", default), *choices)], default=""
    )


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
    isolation_between_users = _isolation_field(
        "Jobs of different users share a GPU by", "Default: any within a project, else MIG"
    )
    isolation_between_projects = _isolation_field(
        "Jobs of different projects share a GPU by", "Default: as different users do"
    )
    allows_gang_egress = BooleanField("Members reach the outside")
    allows_host_network = BooleanField("Allow the appliance's network and RDMA")
    encrypts_gang_networks = BooleanField("Encrypt within a site")
    longest_fetch_minutes = IntegerField(
        "Longest fetch, minutes",
        [Optional(), NumberRange(0, MAX_FETCH_MINUTES)],
    )
    policy = SelectField(
        "Next job by", choices=[SelectChoice(name, label) for name, label in ORDER_LABELS]
    )
    half_life_days = NumberField("Half-life of usage, days", [InputRequired()])
    priority_weight = IntegerField("Points of the highest priority", [InputRequired()])
    fair_share_weight = IntegerField("Points of the first user", [InputRequired()])
    age_weight = IntegerField("Points per day of waiting", [InputRequired()])
    size_weight = IntegerField("Points of the largest job", [InputRequired()])
    gpu_usage_weight = NumberField("Weight of a GPU", [Optional()])
    cpu_usage_weight = NumberField("Weight of a CPU core", [Optional()])
    memory_usage_weight = NumberField("Weight of a GiB of memory", [InputRequired()])

    def settings(self) -> QueueSettings:
        """Return the settings."""
        return QueueSettings(
            placement_policy=self.placement_policy.data,
            max_gpus_per_user=self.max_gpus_per_user.data,
            max_gpus=self.max_gpus.data,
            allows_preemption=self.allows_preemption.data,
            data_roots=self.data_roots.data,
            job_retention_days=self.job_retention_days.data,
            ordering=self._ordering(),
            isolation_between_users=_mode(self.isolation_between_users.data),
            isolation_between_projects=_mode(self.isolation_between_projects.data),
            allows_gang_egress=self.allows_gang_egress.data,
            allows_host_network=self.allows_host_network.data,
            encrypts_gang_networks=self.encrypts_gang_networks.data,
            longest_fetch_minutes=DEFAULT_FETCH_MINUTES
            if self.longest_fetch_minutes.data is None
            else self.longest_fetch_minutes.data,
        )

    def _ordering(self) -> OrderSettings:
        values: dict[str, Any] = {name: self[name].data for name in ORDER_FIELDS}
        return OrderSettings(**values | {"policy": OrderPolicy(self.policy.data)})


def _mode(text: str | None) -> PartitionMode | None:
    return PartitionMode(text) if text else None
