"""The forms of how jobs are placed, and what they may use."""

from wtforms import BooleanField, IntegerField, SelectField
from wtforms.fields import SelectChoice
from wtforms.validators import NumberRange, Optional

from jobqueue.jobs.queue_settings import MAX_COUNT, MAX_DAYS, DataRoot, QueueSettings
from jobqueue.queue.container_policies import PolicyChoice
from portal.forms.form import CheckboxListField, Form, LinesField
from protocol.job_spec import ContainerPolicy

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
