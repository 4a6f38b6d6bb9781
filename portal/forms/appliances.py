"""Forms for appliances: enrollment tokens, names and labels, and bulk actions."""

from datetime import timedelta
from typing import Any

from wtforms import IntegerField, SelectField, SelectMultipleField, StringField
from wtforms.fields import SelectChoice
from wtforms.validators import InputRequired, NumberRange, ValidationError

from jobqueue.dispatch.appliance_lifecycle import BulkAction, BulkRequest
from portal.forms.form import Form, PairsField

LIFETIME_CHOICES = [
    SelectChoice("1", "1 hour"),
    SelectChoice("24", "1 day"),
    SelectChoice("168", "1 week"),
    SelectChoice("720", "30 days"),
]
WRITE_LIFETIME_CHOICES = [
    SelectChoice("30", "30 days"),
    SelectChoice("365", "1 year"),
    SelectChoice("1095", "3 years"),
]
WAIT_CHOICES = [
    SelectChoice("", "Continue to their end"),
    SelectChoice("0", "Stop now and queue again"),
    SelectChoice("0.25", "Stop after 15 minutes and queue again"),
    SelectChoice("1", "Stop after 1 hour and queue again"),
    SelectChoice("6", "Stop after 6 hours and queue again"),
    SelectChoice("24", "Stop after 1 day and queue again"),
    SelectChoice("168", "Stop after 1 week and queue again"),
]
MAX_USES = 1000
BULK_ACTIONS = ("drain", "undrain", "label", "unlabel", "move", "retire", "reinstate")


class EnrollmentForm(Form):
    """A new enrollment token."""

    name = StringField("Name", default="")
    site = StringField("Site", default="")
    region = StringField("Region", default="")
    labels = PairsField("Labels", default=dict)
    uses = IntegerField(
        "Appliances",
        [InputRequired("Enter the number of appliances."), NumberRange(1, MAX_USES)],
        default=1,
    )
    lifetime = SelectField("Valid for", choices=LIFETIME_CHOICES, default="24")

    @property
    def chosen_lifetime(self) -> timedelta:
        """How long the token is valid."""
        return timedelta(hours=int(self.lifetime.data))


class WriteTokenForm(Form):
    """A new write token."""

    appliance_pattern = StringField(
        "Appliances", [InputRequired("Enter a host's name, a pattern, or * for all.")], default="*"
    )
    name = StringField("Name", default="")
    lifetime = SelectField("Valid for", choices=WRITE_LIFETIME_CHOICES, default="365")

    @property
    def chosen_lifetime(self) -> timedelta:
        """How long the token is valid."""
        return timedelta(days=int(self.lifetime.data))


class ApplianceForm(Form):
    """An appliance's name, location and labels."""

    name = StringField("Name", [InputRequired("Enter a name.")])
    site = StringField("Site", default="")
    region = StringField("Region", default="")
    labels = PairsField("Labels", default=dict)


class DrainForm(Form):
    """How long an appliance waits for its running jobs."""

    wait = SelectField("Running jobs", choices=WAIT_CHOICES, default="")

    @property
    def chosen_wait(self) -> timedelta | None:
        """The time to wait; None lets jobs run to their end."""
        return timedelta(hours=float(self.wait.data)) if self.wait.data else None


class BulkForm(DrainForm):
    """An action on the selected appliances; the time to wait is of the action `drain`."""

    appliance_id = SelectMultipleField(
        "Appliances", [InputRequired("Select at least one appliance.")], validate_choice=False
    )
    action = SelectField("Action", choices=list(BULK_ACTIONS))
    label = StringField("Label")
    site = StringField("Site", default="")

    def request(self) -> BulkRequest:
        """Return the bulk request."""
        key, _, value = (self.label.data or "").partition("=")
        name, ids = self.action.data, self.appliance_id.data
        if name == "label":
            return _bulk(ids, BulkAction.LABEL, labels={key.strip(): value.strip()})
        if name == "unlabel":
            return _bulk(ids, BulkAction.LABEL, labels={key.strip(): None})
        if name == "move":
            return _bulk(ids, BulkAction.MOVE, site=(self.site.data or "").strip())
        if name == "drain" and self.chosen_wait is not None:
            return _bulk(ids, BulkAction.DRAIN, wait_seconds=self.chosen_wait.total_seconds())
        return _bulk(ids, BulkAction(name))

    def validate_site(self, field: StringField) -> None:
        """Require a site to move to."""
        if self.action.data == "move" and not (field.data or "").strip():
            raise ValidationError("Enter a site, for example Oslo.")

    def validate_label(self, field: StringField) -> None:
        """Require a label to add or remove."""
        key, equals, _ = (field.data or "").partition("=")
        if self.action.data == "label" and not (key.strip() and equals):
            raise ValidationError("Enter a label as KEY=VALUE, for example rack=b12.")
        if self.action.data == "unlabel" and not key.strip():
            raise ValidationError("Enter the key of a label, for example rack.")


def _bulk(appliance_ids: list[str], action: BulkAction, **values: Any) -> BulkRequest:  # noqa: ANN401 - its fields
    return BulkRequest(appliance_ids=appliance_ids, action=action, **values)
