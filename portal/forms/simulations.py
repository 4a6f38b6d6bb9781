"""The form of a simulation."""

from datetime import datetime, timedelta

from wtforms import SelectField
from wtforms.fields import SelectChoice

from jobqueue.fairshare.settings import OrderPolicy
from jobqueue.simulation.recording import USUAL_ORDER
from jobqueue.simulation.scenarios import Changes
from jobqueue.usage.measuring import Period
from portal.forms.form import CheckboxListField, Form, LinesField
from portal.forms.job_settings import ORDER_LABELS, POLICY_LABELS

_PERIODS = [
    ("1", "Last 24 hours"),
    ("7", "Last 7 days"),
    ("30", "Last 30 days"),
    ("90", "Last 90 days"),
]
_ORDERS = [
    ("fifo", "Submission, whatever the priority"),
    *(
        (USUAL_ORDER if order == OrderPolicy.FIFO.value else order, label)
        for order, label in ORDER_LABELS
    ),
]
_PREEMPTION = {"": None, "yes": True, "no": False}


class SimulationForm(Form):
    """Whose jobs to replay, and what to change."""

    days = SelectField(
        "Jobs of", choices=[SelectChoice(days, label) for days, label in _PERIODS], default="30"
    )
    policies = CheckboxListField("Placement policies", default=list)
    orders = CheckboxListField("Next job by", default=list)
    added = LinesField("Appliances to add", parse=str.strip, format=str)
    allows_preemption = SelectField(
        "Preemption",
        choices=[
            SelectChoice("", "As today"),
            SelectChoice("yes", "Allowed"),
            SelectChoice("no", "Not allowed"),
        ],
    )
    shares = LinesField("Other shares", parse=str.strip, format=str)
    quotas = LinesField("Other quotas", parse=str.strip, format=str)

    def offer(self) -> None:
        """Set the policies and orders to choose from."""
        self.policies.choices, self.orders.choices = POLICY_LABELS, _ORDERS

    def period(self, now: datetime) -> Period:
        """Return the period until now."""
        return Period(now - timedelta(days=int(self.days.data)), now)

    def changes(self) -> Changes:
        """Return what differs from today."""
        return Changes(
            policies=self.policies.data,
            orders=self.orders.data,
            added=self.added.data,
            allows_preemption=_PREEMPTION[self.allows_preemption.data],
            shares=self.shares.data,
            quotas=self.quotas.data,
        )
