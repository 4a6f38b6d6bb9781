"""The form of a budget."""

from collections.abc import Sequence

from wtforms import SelectField, StringField
from wtforms.fields import SelectChoice
from wtforms.validators import DataRequired

from jobqueue.jobs.end_notices import EMAIL
from marketplace.budgets.models import Budget, BudgetAction, BudgetTarget
from marketplace.budgets.requests import BudgetRequest
from marketplace.budgets.service import TargetChoice
from portal.forms.form import CheckboxListField, DurationField, Form

ACTIONS = {
    BudgetAction.NOTIFY: "Notify only",
    BudgetAction.STOP_NEW_JOBS: "Hold new jobs with GPUs",
    BudgetAction.STOP_JOBS: "Hold new jobs, and stop running ones",
}
_GROUPS = {
    BudgetTarget.TENANT: "Tenant",
    BudgetTarget.PROJECT: "Projects",
    BudgetTarget.USER: "Users",
}
# Fields of the request in the form.
RENAMED = {"target_id": "for_whom"}


class BudgetForm(Form):
    """A new budget, or a change of one."""

    for_whom = SelectField("For")
    amount = StringField("Amount a month", [DataRequired("Enter an amount.")])
    action = SelectField(
        "When it is spent",
        choices=[SelectChoice(action.value, text) for action, text in ACTIONS.items()],
    )
    grace_seconds = DurationField("Running jobs stop after", default=3600.0)
    notify = CheckboxListField("Notify", default=lambda: [EMAIL])

    def offer(
        self, targets: Sequence[TargetChoice], receivers: Sequence[str], present: Budget | None
    ) -> None:
        """Set whom it can be for, and whom it can notify."""
        listed = {f"{kind.value}:{ident}": (kind, name) for kind, ident, name in targets}
        if present is not None:  # what it is for may be gone
            listed.setdefault(self.value_of(present), (present.target, present.target_name))
        self.for_whom.choices = [
            SelectChoice(value, name, optgroup=_GROUPS[kind])
            for value, (kind, name) in sorted(
                listed.items(), key=lambda item: list(_GROUPS).index(item[1][0])
            )
        ]
        email = (EMAIL, "Admins and billing users, and the user, by email")
        gone = [name for name in (present.notify if present else ()) if name != EMAIL]
        names = dict.fromkeys([*receivers, *gone])
        self.notify.choices = [email, *((name, f"Receiver {name}") for name in names)]

    @staticmethod
    def value_of(budget: Budget) -> str:
        """Return the choice that stands for whose budget it is."""
        return f"{budget.target.value}:{budget.target_id}"

    def request(self) -> BudgetRequest:
        """Return the budget that was entered."""
        target, _, ident = self.for_whom.data.partition(":")
        return BudgetRequest(
            target=BudgetTarget(target),
            target_id=ident,
            amount=self.amount.data,
            action=BudgetAction(self.action.data),
            grace_seconds=int(self.grace_seconds.data),
            notify=self.notify.data,
        )
