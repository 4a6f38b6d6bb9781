"""The forms of projects, their members and quotas."""

from collections.abc import Sequence

from wtforms import BooleanField, IntegerField, SelectField, StringField
from wtforms.fields import SelectChoice
from wtforms.validators import DataRequired, InputRequired, NumberRange, Optional

from core.quantities import format_size, parse_size
from jobqueue.projects.models import Project, ProjectQuota, QuotaResource
from jobqueue.projects.quotas import LIMITS, QuotaRequest
from jobqueue.projects.service import MAX_SHARES, ProjectRequest
from portal.forms.form import Form

_SHARES = [InputRequired("Enter a number."), NumberRange(1, MAX_SHARES)]
_RESOURCES = [
    SelectChoice(QuotaResource.GPUS.value, "GPUs"),
    SelectChoice(QuotaResource.CPUS.value, "CPU cores"),
    SelectChoice(QuotaResource.MEMORY_BYTES.value, "Memory"),
]


class ProjectForm(Form):
    """A new project, or a change of one."""

    name = StringField("Name", [DataRequired("Enter a name.")])
    parent = SelectField("Below", choices=[])
    shares = IntegerField("Shares", _SHARES, default=1)
    budget_label = StringField("Budget label", default="")
    description = StringField("Description", default="")

    def offer(self, projects: Sequence[Project]) -> None:
        """Set the projects that it can be below."""
        none = SelectChoice("", "The tenant")
        self.parent.choices = [none, *(SelectChoice(row.id, row.name) for row in projects)]

    def request(self) -> ProjectRequest:
        """Return the project that was entered."""
        return ProjectRequest(
            name=self.name.data,
            parent=self.parent.data or "",
            shares=self.shares.data,
            budget_label=self.budget_label.data or "",
            description=self.description.data or "",
        )


class MemberForm(Form):
    """A member to add or change."""

    user = StringField("Email address", [DataRequired("Enter an email address.")])
    user_shares = IntegerField("Shares", _SHARES, default=1)
    is_default = BooleanField("Default project", default=False)


class QuotaForm(Form):
    """The quota of one resource; an empty limit is none."""

    resource = SelectField("Resource", choices=_RESOURCES)
    gpu_model = StringField("GPU model", default="")
    guaranteed = StringField("Guaranteed", [Optional()], default="")
    maximum = StringField("Maximum", [Optional()], default="")
    lending_limit = StringField("Lending limit", [Optional()], default="")
    borrowing_limit = StringField("Borrowing limit", [Optional()], default="")

    def changed(self, quotas: Sequence[ProjectQuota]) -> list[QuotaRequest] | None:
        """Return a project's quotas with this one; None if an amount is invalid."""
        resource = QuotaResource(self.resource.data)
        amounts: dict[str, int | None] = {}
        for name in LIMITS:
            text = (self[name].data or "").strip()
            try:
                amounts[name] = _amount(resource, text) if text else None
            except ValueError:
                example = "512 GiB" if resource is QuotaResource.MEMORY_BYTES else "8"
                self[name].errors = [f"Enter an amount such as {example}, or leave it empty."]
        if any(self[name].errors for name in LIMITS):
            self.status = 422
            return None
        guaranteed = amounts.pop("guaranteed") or 0
        wanted = QuotaRequest(
            resource=resource,
            gpu_model=(self.gpu_model.data or "").strip(),
            guaranteed=guaranteed,
            **amounts,
        )
        others = [request_of(quota) for quota in quotas]
        return [*(other for other in others if other.key != wanted.key), wanted]


def request_of(quota: ProjectQuota) -> QuotaRequest:
    """Return a stored quota as it is entered."""
    return QuotaRequest(
        resource=quota.resource,
        gpu_model=quota.gpu_model,
        **{name: getattr(quota, name) for name in LIMITS},
    )


def shown_amount(resource: QuotaResource, amount: float | None) -> str:
    """Return an amount as pages show it; None is no limit."""
    if amount is None:
        return "none"
    return format_size(int(amount)) if resource is QuotaResource.MEMORY_BYTES else f"{amount:g}"


def _amount(resource: QuotaResource, text: str) -> int:
    return parse_size(text) if resource is QuotaResource.MEMORY_BYTES else int(text)
