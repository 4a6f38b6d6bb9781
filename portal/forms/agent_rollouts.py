"""The form of a rollout of agents."""

from wtforms import IntegerField, StringField
from wtforms.validators import InputRequired, NumberRange, ValidationError

from portal.forms.form import CheckboxListField, DurationField, Form
from tenants.fleet.rollouts import DEFAULT_SOAK_SECONDS, DEFAULT_STAGE_PERCENTS, RolloutRequest

_MAX_FAILURES = 1000


class RolloutForm(Form):
    """Which agents to update, and in what stages."""

    sites = CheckboxListField("Sites", default=list)
    stage_percents = StringField(
        "Stages, % of each site", default=", ".join(map(str, DEFAULT_STAGE_PERCENTS))
    )
    soak_seconds = DurationField("Wait after a stage", default=DEFAULT_SOAK_SECONDS)
    max_failures = IntegerField(
        "Failures to accept",
        [InputRequired("Enter a number."), NumberRange(0, _MAX_FAILURES)],
        default=0,
    )

    def validate_stage_percents(self, field: StringField) -> None:
        """Check that the stages are numbers; the service checks their values."""
        if not all(part.strip().isdecimal() for part in field.data.split(",")):
            raise ValidationError("Write percentages with commas between, such as 10, 50, 100.")

    def request(self) -> RolloutRequest:
        """Return the rollout to start."""
        return RolloutRequest(
            sites=self.sites.data,
            stage_percents=[int(part) for part in self.stage_percents.data.split(",")],
            soak_seconds=round(self.soak_seconds.data),
            max_failures=self.max_failures.data,
        )
