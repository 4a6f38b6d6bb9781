"""A forgotten password is set anew by a link, once."""

import pytest
from sqlalchemy.orm import Session

from core.errors import InvalidInputError, NotFoundError, UnauthenticatedError
from tenants.models import User
from tenants.users.resets import RESET_LIFETIME, create_reset, find_reset, use_reset
from tenants.users.sessions import session_principal, start_session
from tenants.users.throttling import count_attempt
from tests.cast import NOON, PASSWORD, Cast
from tests.unit.tenants.helpers import DAY, authenticate

NEXT = "another horse battery"


def secret_of(session: Session, user: User) -> str:
    made = create_reset(session, user.email, now=NOON)
    assert made is not None
    return made[1]


def test_a_link_sets_a_new_password(session: Session, cast: Cast) -> None:
    use_reset(session, secret_of(session, cast.bob), password=NEXT, now=NOON)
    assert authenticate(session, email=cast.bob.email, password=NEXT).id == cast.bob.id
    with pytest.raises(UnauthenticatedError):
        authenticate(session, email=cast.bob.email, password=PASSWORD)


def test_a_link_works_once(session: Session, cast: Cast) -> None:
    secret = secret_of(session, cast.bob)
    use_reset(session, secret, password=NEXT, now=NOON)
    with pytest.raises(NotFoundError, match="already used or has expired"):
        use_reset(session, secret, password=NEXT, now=NOON)


def test_using_one_link_voids_the_others(session: Session, cast: Cast) -> None:
    first, second = secret_of(session, cast.bob), secret_of(session, cast.bob)
    use_reset(session, second, password=NEXT, now=NOON)
    with pytest.raises(NotFoundError):
        find_reset(session, first, now=NOON)


def test_a_link_lasts_an_hour(session: Session, cast: Cast) -> None:
    secret = secret_of(session, cast.bob)
    with pytest.raises(NotFoundError):
        use_reset(session, secret, password=NEXT, now=NOON + RESET_LIFETIME)


def test_a_short_password_leaves_the_link_valid(session: Session, cast: Cast) -> None:
    secret = secret_of(session, cast.bob)
    with pytest.raises(InvalidInputError) as caught:
        use_reset(session, secret, password="short", now=NOON)
    assert list(caught.value.errors) == ["new"]
    assert find_reset(session, secret, now=NOON).id == cast.bob.id


def test_every_browser_is_signed_out(session: Session, cast: Cast) -> None:
    cookie = start_session(session, cast.bob, now=NOON, lifetime=DAY)
    use_reset(session, secret_of(session, cast.bob), password=NEXT, now=NOON)
    assert session_principal(session, cookie, now=NOON) is None


def test_an_account_that_had_to_wait_is_free_again(session: Session, cast: Cast) -> None:
    for _ in range(5):
        count_attempt(session, account=cast.bob.email, address=None, now=NOON)
    use_reset(session, secret_of(session, cast.bob), password=NEXT, now=NOON)
    count_attempt(session, account=cast.bob.email, address=None, now=NOON)


def test_an_unknown_address_gets_no_link(session: Session) -> None:
    assert create_reset(session, "nobody@acme.example", now=NOON) is None


def test_a_deactivated_user_gets_no_link_and_uses_none(session: Session, cast: Cast) -> None:
    secret = secret_of(session, cast.bob)
    session.get_one(User, cast.bob.id).is_active = False
    session.flush()
    assert create_reset(session, cast.bob.email, now=NOON) is None
    with pytest.raises(NotFoundError):
        use_reset(session, secret, password=NEXT, now=NOON)


def test_a_user_without_a_password_gets_no_link(session: Session, cast: Cast) -> None:
    session.get_one(User, cast.bob.id).password_hash = None
    session.flush()
    assert create_reset(session, cast.bob.email, now=NOON) is None
