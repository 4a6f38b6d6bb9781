"""The form that makes an enrolment token."""

from datetime import timedelta

from wtforms import IntegerField, SelectField, StringField
from wtforms.fields import SelectChoice
from wtforms.validators import InputRequired, NumberRange

from portal.forms.base import Form
from portal.forms.fields import PairsField

LIFETIME_CHOICES = [
    SelectChoice("1", "1 hour"),
    SelectChoice("24", "1 day"),
    SelectChoice("168", "1 week"),
    SelectChoice("720", "30 days"),
]
MAX_USES = 1000


class EnrolmentForm(Form):
    """Which appliances may join, and until when."""

    site = StringField("Site")
    region = StringField("Region")
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
