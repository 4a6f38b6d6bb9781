"""Shorthands of the tests in this folder."""

from datetime import timedelta

from sqlalchemy.orm import Session

from protocol.inventory import Inventory
from tenants.enrollment import create_enrollment_token, enroll_appliance
from tenants.models import Appliance, User
from tenants.users.signin import find_user, require_can_sign_in, verify_credentials
from tests.cast import NOON, scope_of

DAY = timedelta(days=1)


def enrollment_secret(session: Session, by: User, *, uses: int = 1) -> str:
    """Return the secret of a token that lasts a day from noon."""
    _, secret = create_enrollment_token(session, scope_of(by), uses=uses, lifetime=DAY, now=NOON)
    return secret


def enroll(session: Session, secret: str, name: str = "gpu-01") -> tuple[Appliance, str]:
    """Enroll an appliance at noon."""
    return enroll_appliance(
        session, secret=secret, name=name, inventory=Inventory(hostname="gpu-01"), now=NOON
    )


def authenticate(session: Session, *, email: str, password: str) -> User:
    """Return the user with this email address and password, whom something lets in."""
    user = verify_credentials(find_user(session, email), password)
    require_can_sign_in(user)
    return user
