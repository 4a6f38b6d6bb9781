"""The forms of appliances: how they join, what they are called, what is done to several."""

from datetime import timedelta

from wtforms import IntegerField, SelectField, SelectMultipleField, StringField
from wtforms.fields import SelectChoice
from wtforms.validators import InputRequired, NumberRange, ValidationError

from portal.forms.base import Form
from portal.forms.fields import PairsField

LIFETIME_CHOICES = [
    SelectChoice("1", "1 hour"),
    SelectChoice("24", "1 day"),
    SelectChoice("168", "1 week"),
    SelectChoice("720", "30 days"),
]
MAX_USES = 1000
BULK_ACTIONS = ("drain", "undrain", "label", "unlabel")


class EnrolmentForm(Form):
    """Which appliances may join, and until when."""

    name = StringField("Name", default="")
    site = StringField("Site", default="")
    region = StringField("Region", default="")
    labels = PairsField("Labels", default=dict)
    uses = IntegerField(
        "Appliances",
        [InputRequired("Enter how many may join."), NumberRange(1, MAX_USES)],
        default=1,
    )
    lifetime = SelectField("Valid for", choices=LIFETIME_CHOICES, default="24")

    @property
    def chosen_lifetime(self) -> timedelta:
        """How long the token is good for."""
        return timedelta(hours=int(self.lifetime.data))


class ApplianceForm(Form):
    """What people call an appliance, and where it stands."""

    name = StringField("Name", [InputRequired("Enter a name.")])
    site = StringField("Site", default="")
    region = StringField("Region", default="")
    labels = PairsField("Labels", default=dict)


class BulkForm(Form):
    """What to do to the ticked appliances."""

    appliance_id = SelectMultipleField(
        "Appliances", [InputRequired("Tick at least one appliance.")], validate_choice=False
    )
    action = SelectField("Action", choices=list(BULK_ACTIONS))
    label = StringField("Label")

    @property
    def pairs(self) -> dict[str, str]:
        """The label as a key with its value."""
        key, _, value = self.label.data.partition("=")
        return {key.strip(): value.strip()}

    def validate_label(self, field: StringField) -> None:
        """Ask for a label where one is put on or taken off."""
        key, equals, _ = (field.data or "").partition("=")
        if self.action.data == "label" and not (key.strip() and equals):
            raise ValidationError("Write the label as KEY=VALUE, such as rack=b12.")
        if self.action.data == "unlabel" and not key.strip():
            raise ValidationError("Name the label to take off, such as rack.")
