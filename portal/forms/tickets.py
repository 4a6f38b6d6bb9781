"""The forms of tickets: a new one, a message, and a rating."""

from collections.abc import Sequence
from typing import Any

from werkzeug.datastructures import FileStorage
from wtforms import (
    BooleanField,
    MultipleFileField,
    RadioField,
    SelectField,
    StringField,
    TextAreaField,
)
from wtforms.fields import SelectChoice
from wtforms.validators import DataRequired

from marketplace.support.models import SubjectKind
from marketplace.support.requests import File, MessageRequest, TicketRequest
from marketplace.support.states import Party, Recipient
from portal.forms.form import Form

# Fields of the requests in the forms.
RENAMED = {"user": "assignee"}
RATINGS = {5: "Very good", 4: "Good", 3: "Fair", 2: "Poor", 1: "Bad"}
_NOUNS = {SubjectKind.OTHER: "Something else"}
_RECIPIENTS = [
    SelectChoice("", "The provider of what is rented, else the operator"),
    SelectChoice("provider", "The provider"),
    SelectChoice("operator", "The operator of the portal"),
]


class _WithFiles(Form):
    files = MultipleFileField("Files")

    def uploads(self) -> list[File]:
        """Return the files that were chosen."""
        return [
            File(upload.filename or "file", upload.read())
            for upload in self.files.data or ()
            if isinstance(upload, FileStorage) and upload.filename
        ]


class TicketForm(_WithFiles):
    """A new ticket."""

    tenant_id = SelectField("Tenant")
    subject_kind = SelectField(
        "About",
        choices=[
            SelectChoice(kind.value, _NOUNS.get(kind, kind.value.capitalize()))
            for kind in SubjectKind
        ],
        default=SubjectKind.OTHER.value,
    )
    subject_id = StringField("ID")
    recipient = SelectField("To", choices=_RECIPIENTS)
    title = StringField("Title", [DataRequired("Write what it is about.")])
    text = TextAreaField("Message", [DataRequired("Write a message.")])

    def arrange(self, *, tenants: Sequence[tuple[str, str]], has_marketplace: bool) -> None:
        """Leave out what the current user has no choice of.

        Args:
            tenants: id and name of those that an operator may write to; empty for others.
            has_marketplace: whether there may be providers to ask.
        """
        if tenants:
            self.tenant_id.choices = [
                SelectChoice(ident, name) for ident, name in (("", "Choose a tenant"), *tenants)
            ]
            del self.recipient
        else:
            del self.tenant_id
        if "recipient" in self and not has_marketplace:
            del self.recipient
        rented = {SubjectKind.CONTRACT.value, SubjectKind.OFFER.value}
        if tenants or not has_marketplace:
            self.subject_kind.choices = [
                choice for choice in self.subject_kind.choices if choice.value not in rented
            ]

    def request(self) -> TicketRequest:
        """Return what the service gets."""
        values: dict[str, Any] = {
            name: (self[name].data or "").strip()
            for name in ("title", "text", "subject_id", "tenant_id")
            if name in self
        }
        asked = self.recipient.data if "recipient" in self else ""
        values["recipient"] = Recipient(asked) if asked else None
        return TicketRequest(subject_kind=SubjectKind(self.subject_kind.data), **values)


class MessageForm(_WithFiles):
    """A message, or a note."""

    text = TextAreaField("Message", [DataRequired("Write a message.")])
    is_internal = BooleanField("Note for our side alone")
    waits_for = SelectField("Then it waits for")

    def arrange(self, others: Sequence[tuple[Party, str]]) -> None:
        """Set who may be waited for; with one other party, that is no choice."""
        if len(others) <= 1:
            del self.waits_for
            return
        names = [SelectChoice(party.value, name) for party, name in others]
        self.waits_for.choices = [SelectChoice("", "Whoever is to answer"), *names]

    def request(self) -> MessageRequest:
        """Return what the service gets."""
        awaited = self.waits_for.data if "waits_for" in self else ""
        return MessageRequest(
            text=self.text.data or "",
            is_internal=bool(self.is_internal.data),
            waits_for=Party(awaited) if awaited else None,
        )


class RatingForm(Form):
    """A rating of solved support."""

    rating = RadioField(
        "How good was the support?",
        [DataRequired("Choose a rating.")],
        choices=[SelectChoice(str(value), name) for value, name in RATINGS.items()],
    )
    comment = StringField("Comment")
