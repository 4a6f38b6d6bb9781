"""Forms for sign-in, passwords, second factor, invitations, roles and API tokens."""

from datetime import timedelta
from typing import Any

from wtforms import (
    EmailField,
    PasswordField,
    SelectField,
    SelectMultipleField,
    StringField,
    TextAreaField,
)
from wtforms.fields import SelectChoice
from wtforms.validators import DataRequired, EqualTo, InputRequired, Length

from core.schedule_times import area_zones
from portal.forms.form import Form
from tenants.models import Role
from tenants.users.passwords import MIN_PASSWORD_LENGTH
from tenants.users.support import MAX_REASON_LENGTH, MIN_REASON_LENGTH
from tenants.users.tokens import TokenLimits, scopes_for

PASSWORD_HELP = f"At least {MIN_PASSWORD_LENGTH} characters."
ROLE_CHOICES = [
    SelectChoice(Role.MEMBER.value, "Member: jobs and alert rules"),
    SelectChoice(Role.VIEWER.value, "Viewer: read-only"),
    SelectChoice(Role.BILLING.value, "Billing: read-only, and costs, prices and budgets"),
    SelectChoice(Role.ADMIN.value, "Admin: manages the tenant"),
]
OPERATOR_CHOICES = [SelectChoice(Role.OPERATOR.value, "Operator: manages the platform")]
LIFETIME_CHOICES = [
    SelectChoice("30", "30 days"),
    SelectChoice("90", "90 days"),
    SelectChoice("365", "1 year"),
    SelectChoice("", "Never"),
]
MAX_CODE_LENGTH = 40

_OLD = {"autocomplete": "current-password"}
_NEW = {"autocomplete": "new-password"}
_USERNAME = {"autocomplete": "username"}


def _repeated(name: str, label: str) -> PasswordField:
    required = DataRequired("Enter the password again.")
    validators = [required, EqualTo(name, "The passwords don't match.")]
    return PasswordField(label, validators, render_kw=_NEW)


class ForgottenForm(Form):
    """Requests a password reset link."""

    email = EmailField(
        "Email address", [DataRequired("Enter your email address.")], render_kw=_USERNAME
    )


class LoginForm(ForgottenForm):
    """Email address and password."""

    password = PasswordField("Password", [DataRequired("Enter your password.")], render_kw=_OLD)


class TimeZoneForm(Form):
    """The time zone in which the user reads times."""

    time_zone = SelectField("Time zone")

    def __init__(self, chosen: str, browser: str, **options: Any) -> None:  # noqa: ANN401 - Flask-WTF's
        super().__init__(data={"time_zone": chosen}, **options)
        names = sorted({"UTC", *filter(None, [chosen]), *area_zones()})
        self.time_zone.choices = [
            SelectChoice("", f"Browser's time zone ({browser})"),
            *[SelectChoice(name, name) for name in names],
        ]


class TokenForm(Form):
    """A new API token."""

    name = StringField("Name", [DataRequired("Enter a name.")])
    lifetime = SelectField("Expires", choices=LIFETIME_CHOICES, default="30")
    scopes = SelectMultipleField("Scopes")

    def __init__(self, role: Role, **options: Any) -> None:  # noqa: ANN401 - Flask-WTF's
        super().__init__(**options)
        self.scopes.choices = [SelectChoice(name, name) for name in scopes_for(role)]

    @property
    def limits(self) -> TokenLimits:
        """The token's scopes and lifetime."""
        days = self.lifetime.data
        return TokenLimits(
            tuple(self.scopes.data or ()), timedelta(days=int(days)) if days else None
        )


class InvitationForm(Form):
    """An invitation to a tenant."""

    email = EmailField("Email address", [DataRequired("Enter an email address.")])
    role = SelectField("Role", choices=ROLE_CHOICES)


class OperatorInvitationForm(InvitationForm):
    """An invitation to the operators."""

    role = SelectField("Role", choices=OPERATOR_CHOICES)


class RoleForm(Form):
    """A user's role."""

    role = SelectField("Role", choices=ROLE_CHOICES)


class NewAccountForm(Form):
    """Accepts an invitation with a new account."""

    name = StringField(
        "Your name", [DataRequired("Enter your name.")], render_kw={"autocomplete": "name"}
    )
    password = PasswordField("Password", [DataRequired("Enter a password.")], render_kw=_NEW)
    repeated = _repeated("password", "Confirm password")


class ExistingAccountForm(Form):
    """Accepts an invitation with an existing account."""

    known_password = PasswordField(
        "Your password", [DataRequired("Enter your password.")], render_kw=_OLD
    )


class NewPasswordForm(Form):
    """A new password, twice."""

    new = PasswordField("New password", [DataRequired("Enter a new password.")], render_kw=_NEW)
    repeated = _repeated("new", "Confirm new password")


class PasswordForm(NewPasswordForm):
    """The current password and a new one."""

    current = PasswordField(
        "Current password", [DataRequired("Enter your current password.")], render_kw=_OLD
    )


class CodeForm(Form):
    """A code from the authenticator app, or a recovery code."""

    code = StringField(
        "Code",
        [DataRequired("Enter the code."), Length(max=MAX_CODE_LENGTH, message="Invalid code.")],
        render_kw={"autocomplete": "one-time-code", "autocapitalize": "off", "spellcheck": "false"},
    )


class ProofForm(Form):
    """The password again, to change the second factor."""

    proof = PasswordField("Password", [DataRequired("Enter your password.")])


class CodeProofForm(Form):
    """A code instead of the password, for users who have no password here."""

    proof = StringField(
        "Code",
        [
            DataRequired("Enter a code from your authenticator app."),
            Length(max=MAX_CODE_LENGTH, message="Invalid code."),
        ],
    )


class SupportForm(Form):
    """The reason for a support session."""

    reason = TextAreaField(
        "Reason", [InputRequired("Enter a reason."), Length(MIN_REASON_LENGTH, MAX_REASON_LENGTH)]
    )
