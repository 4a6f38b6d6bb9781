"""Forms about people: sign-in, passwords, invitations, roles, API tokens and tenants."""

from datetime import timedelta
from typing import Any

from wtforms import EmailField, PasswordField, SelectField, SelectMultipleField, StringField
from wtforms.fields import SelectChoice
from wtforms.validators import DataRequired, EqualTo

from portal.forms.base import Form
from tenants.models import Role
from tenants.people.passwords import MIN_PASSWORD_LENGTH
from tenants.people.tokens import TokenLimits, scopes_for

PASSWORD_HELP = f"At least {MIN_PASSWORD_LENGTH} characters."
ROLE_CHOICES = [
    SelectChoice(Role.MEMBER.value, "Member: jobs and alert rules"),
    SelectChoice(Role.VIEWER.value, "Viewer: looks only"),
    SelectChoice(Role.ADMIN.value, "Admin: manages the tenant"),
]
# Days that an API token lasts; empty is for ever.
LIFETIMES = {"30": "In 30 days", "90": "In 90 days", "365": "In a year", "": "Never"}
OPERATOR_CHOICES = [SelectChoice(Role.OPERATOR.value, "Operator: manages the platform")]


_OLD = {"autocomplete": "current-password"}
_NEW = {"autocomplete": "new-password"}


class LoginForm(Form):
    """Email address and password."""

    email = EmailField("Email address", [DataRequired("Enter your email address.")])
    password = PasswordField("Password", [DataRequired("Enter your password.")])


class TokenForm(Form):
    """A new API token: what it is for, what it may do and how long."""

    name = StringField("Name", [DataRequired("Say what the token is for.")])
    lifetime = SelectField(
        "Expires",
        choices=[SelectChoice(days, label) for days, label in LIFETIMES.items()],
        default="30",
    )
    scopes = SelectMultipleField("May do")

    def __init__(self, role: Role, **options: Any) -> None:  # noqa: ANN401 - Flask-WTF's
        super().__init__(**options)
        self.scopes.choices = [SelectChoice(name, name) for name in scopes_for(role)]

    @property
    def limits(self) -> TokenLimits:
        """How much the token may do, and how long."""
        days = self.lifetime.data
        return TokenLimits(
            tuple(self.scopes.data or ()), timedelta(days=int(days)) if days else None
        )


class InvitationForm(Form):
    """Whom to invite, and as what."""

    email = EmailField("Email address", [DataRequired("Enter an email address.")])
    role = SelectField("Role", choices=ROLE_CHOICES)


class OperatorInvitationForm(InvitationForm):
    """Whom to invite to the operators."""

    role = SelectField("Role", choices=OPERATOR_CHOICES)


class RoleForm(Form):
    """What somebody is from now on."""

    role = SelectField("Role", choices=ROLE_CHOICES)


class NewPersonForm(Form):
    """Somebody who was invited and has no account yet."""

    name = StringField(
        "Your name", [DataRequired("Enter your name.")], render_kw={"autocomplete": "name"}
    )
    password = PasswordField("Password", [DataRequired("Enter a password.")], render_kw=_NEW)
    repeated = PasswordField(
        "Password again",
        [
            DataRequired("Enter the password again."),
            EqualTo("password", "The two passwords differ."),
        ],
        render_kw=_NEW,
    )


class KnownPersonForm(Form):
    """Somebody who was invited and has an account."""

    known_password = PasswordField(
        "Your password", [DataRequired("Enter your password.")], render_kw=_OLD
    )


class ForgottenForm(Form):
    """Whose password was forgotten."""

    email = EmailField(
        "Email address",
        [DataRequired("Enter your email address.")],
        render_kw={"autocomplete": "username"},
    )


class NewPasswordForm(Form):
    """The next password, twice."""

    new = PasswordField("New password", [DataRequired("Enter a new password.")], render_kw=_NEW)
    repeated = PasswordField(
        "New password again",
        [
            DataRequired("Enter the new password again."),
            EqualTo("new", "The two new passwords differ."),
        ],
        render_kw=_NEW,
    )


class PasswordForm(NewPasswordForm):
    """The current password and the next one, twice."""

    current = PasswordField(
        "Current password", [DataRequired("Enter your current password.")], render_kw=_OLD
    )


class TenantForm(Form):
    """A new tenant."""

    name = StringField("Name", [DataRequired("Enter the customer's name.")])
    slug = StringField("Short name")


class ActionForm(Form):
    """A button: nothing but the CSRF token."""
