"""The form of a receiver."""

from wtforms import SelectField, StringField
from wtforms.fields import SelectChoice
from wtforms.validators import DataRequired

from alerting.states import ReceiverKind
from portal.forms.base import Form

KIND_CHOICES = [
    SelectChoice(ReceiverKind.EMAIL.value, "Email"),
    SelectChoice(ReceiverKind.WEBHOOK.value, "Webhook"),
]


class ReceiverForm(Form):
    """Where messages go."""

    name = StringField("Name", [DataRequired("Give the receiver a name.")])
    kind = SelectField("Kind", choices=KIND_CHOICES)
    target = StringField("Address", [DataRequired("Enter an email address or a URL.")])
