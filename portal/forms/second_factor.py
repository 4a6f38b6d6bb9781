"""Forms of the second factor: a code at sign-in, the first code, and proof for changes."""

from wtforms import PasswordField, StringField
from wtforms.validators import DataRequired, Length

from portal.forms.base import Form

MAX_CODE_LENGTH = 40


class CodeForm(Form):
    """A code of the authenticator app, or a recovery code."""

    code = StringField(
        "Code",
        [DataRequired("Enter the code."), Length(max=MAX_CODE_LENGTH, message="This is no code.")],
    )


class ProofForm(Form):
    """The password once more, before something that weakens the account's protection."""

    proof = PasswordField("Password", [DataRequired("Enter your password.")])


class CodeProofForm(Form):
    """A code once more, from somebody who has no password here."""

    proof = StringField(
        "Code",
        [
            DataRequired("Enter a code of your authenticator app."),
            Length(max=MAX_CODE_LENGTH, message="This is no code."),
        ],
    )
