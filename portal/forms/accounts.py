"""Forms about people: sign-in, profile, API tokens, users and tenants."""

from wtforms import EmailField, PasswordField, SelectField, StringField
from wtforms.fields import SelectChoice
from wtforms.validators import DataRequired, EqualTo

from portal.forms.base import Form
from tenants.models import Role

ROLE_CHOICES = [
    SelectChoice(Role.MEMBER.value, "Member: jobs and alert rules"),
    SelectChoice(Role.VIEWER.value, "Viewer: looks only"),
    SelectChoice(Role.ADMIN.value, "Admin: manages the tenant"),
]


class LoginForm(Form):
    """Email address and password."""

    email = EmailField("Email address", [DataRequired("Enter your email address.")])
    password = PasswordField("Password", [DataRequired("Enter your password.")])


class PasswordForm(Form):
    """The current password and the next one, twice."""

    current = PasswordField("Current password", [DataRequired("Enter your current password.")])
    new = PasswordField("New password", [DataRequired("Enter a new password.")])
    repeated = PasswordField(
        "New password again",
        [
            DataRequired("Enter the new password again."),
            EqualTo("new", "The two new passwords differ."),
        ],
    )


class TokenForm(Form):
    """What a new API token is called."""

    name = StringField("Name", [DataRequired("Say what the token is for.")])


class UserForm(Form):
    """A new user."""

    name = StringField("Name", [DataRequired("Enter the person's name.")])
    email = EmailField("Email address", [DataRequired("Enter an email address.")])
    role = SelectField("Role", choices=ROLE_CHOICES)
    password = PasswordField("First password", [DataRequired("Enter a first password.")])


class TenantForm(Form):
    """A new tenant."""

    name = StringField("Name", [DataRequired("Enter the customer's name.")])
    slug = StringField("Short name")


class ActionForm(Form):
    """A button: nothing but the CSRF token."""
