"""The form that begins a support visit."""

from wtforms import TextAreaField
from wtforms.validators import InputRequired, Length

from portal.forms.base import Form
from tenants.people.support import MAX_REASON_LENGTH, MIN_REASON_LENGTH


class VisitForm(Form):
    """Why an operator has to look."""

    reason = TextAreaField(
        "Reason",
        validators=[InputRequired("Give a reason."), Length(MIN_REASON_LENGTH, MAX_REASON_LENGTH)],
    )
