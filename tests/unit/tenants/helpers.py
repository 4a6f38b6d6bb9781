"""Shorthands of the tests in this folder."""

from datetime import timedelta

from sqlalchemy.orm import Session

from tenants.fleet.appliances import create_enrolment_token, enrol_appliance
from tenants.models import Appliance, User
from tenants.people.signin import find_user, prove, require_entry
from tests.cast import NOON, scope_of

DAY = timedelta(days=1)


def enrolment_secret(session: Session, by: User, *, uses: int = 1) -> str:
    """Return the secret of a token that lasts a day from noon."""
    _, secret = create_enrolment_token(session, scope_of(by), uses=uses, lifetime=DAY, now=NOON)
    return secret


def enrol(session: Session, secret: str, name: str = "gpu-01") -> tuple[Appliance, str]:
    """Enrol an appliance at noon."""
    return enrol_appliance(session, secret=secret, name=name, inventory={}, now=NOON)


def authenticate(session: Session, *, email: str, password: str) -> User:
    """Return the user with this email address and password, whom something lets in."""
    user = prove(find_user(session, email), password)
    require_entry(user)
    return user
