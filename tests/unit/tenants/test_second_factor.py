"""The second factor: set up by a first code, each code good once, recovery codes, reset."""

from datetime import datetime, timedelta

import pyotp
import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from core.errors import (
    ConflictError,
    ForbiddenError,
    InvalidInputError,
    NotFoundError,
    UnauthenticatedError,
)
from core.secretbox import SecretBox, new_key
from tenants.models import Membership, RecoveryCode, Role, User
from tenants.users.second_factor import (
    RECOVERY_CODES,
    begin_setup,
    check_code,
    confirm_setup,
    is_on,
    pending_setup,
    recovery_codes_left,
    renew_recovery_codes,
    reset_second_factor,
    turn_off,
    unused_codes,
)
from tests.cast import NOON, PASSWORD, Cast, scope_of

STEP = timedelta(seconds=30)
FULL_WIDTH_DIGITS = "\uff11\uff12\uff13\uff14\uff15\uff16"


@pytest.fixture
def box() -> SecretBox:
    return SecretBox([new_key()])


class Phone:
    """An authenticator app that holds a user's secret."""

    def __init__(self, secret: str) -> None:
        self._totp = pyotp.TOTP(secret)

    def code(self, now: datetime) -> str:
        return self._totp.at(now)


def set_up(session: Session, user: User, box: SecretBox) -> tuple[Phone, list[str]]:
    """Turn the second factor on at noon."""
    phone = Phone(begin_setup(session, user.id, box=box).secret)
    return phone, confirm_setup(session, user.id, phone.code(NOON), box=box, now=NOON)


def row(session: Session, user: User) -> User:
    return session.get_one(User, user.id)


def test_it_counts_only_after_a_first_right_code(
    session: Session, cast: Cast, box: SecretBox
) -> None:
    phone = Phone(begin_setup(session, cast.bob.id, box=box).secret)
    assert not is_on(row(session, cast.bob))
    with pytest.raises(InvalidInputError, match="This code is wrong"):
        confirm_setup(session, cast.bob.id, "000000", box=box, now=NOON)
    assert not is_on(row(session, cast.bob))
    confirm_setup(session, cast.bob.id, phone.code(NOON), box=box, now=NOON)
    assert row(session, cast.bob).totp_confirmed_at == NOON


def test_the_app_gets_the_name_of_the_user(session: Session, cast: Cast, box: SecretBox) -> None:
    setup = begin_setup(session, cast.bob.id, box=box)
    parsed = pyotp.parse_uri(setup.uri)
    assert (parsed.issuer, parsed.name) == ("Vedette", "bob@acme.example")
    assert pending_setup(row(session, cast.bob), box=box) == setup


def test_the_secret_is_stored_encrypted_and_the_codes_as_hashes(
    session: Session, cast: Cast, box: SecretBox
) -> None:
    secret = begin_setup(session, cast.bob.id, box=box).secret
    codes = confirm_setup(session, cast.bob.id, Phone(secret).code(NOON), box=box, now=NOON)
    stored = row(session, cast.bob).totp_secret
    assert stored is not None
    assert secret not in stored
    hashes = session.scalars(select(RecoveryCode.code_hash)).all()
    assert len(hashes) == len(set(codes)) == RECOVERY_CODES
    assert not set(hashes) & set(codes)


def test_a_second_setup_needs_the_first_one_turned_off(
    session: Session, cast: Cast, box: SecretBox
) -> None:
    set_up(session, cast.bob, box)
    with pytest.raises(ConflictError, match="already on"):
        begin_setup(session, cast.bob.id, box=box)


@pytest.mark.parametrize("steps", [-1, 0, 1])
def test_the_code_of_now_and_its_neighbors_are_good(
    session: Session, cast: Cast, box: SecretBox, steps: int
) -> None:
    phone, _ = set_up(session, cast.bob, box)
    now = NOON + 10 * STEP
    check_code(session, row(session, cast.bob), phone.code(now + steps * STEP), box=box, now=now)


@pytest.mark.parametrize("steps", [-2, 2])
def test_older_and_later_codes_are_not(
    session: Session, cast: Cast, box: SecretBox, steps: int
) -> None:
    phone, _ = set_up(session, cast.bob, box)
    now = NOON + 10 * STEP
    with pytest.raises(UnauthenticatedError):
        check_code(
            session, row(session, cast.bob), phone.code(now + steps * STEP), box=box, now=now
        )


def test_a_code_is_valid_once(session: Session, cast: Cast, box: SecretBox) -> None:
    phone, _ = set_up(session, cast.bob, box)
    now = NOON + 10 * STEP
    check_code(session, row(session, cast.bob), phone.code(now), box=box, now=now)
    for later in (now, now + STEP):
        with pytest.raises(UnauthenticatedError, match="already used"):
            check_code(session, row(session, cast.bob), phone.code(now), box=box, now=later)


def test_a_code_before_the_last_accepted_one_is_invalid(
    session: Session, cast: Cast, box: SecretBox
) -> None:
    phone, _ = set_up(session, cast.bob, box)
    now = NOON + 10 * STEP
    check_code(session, row(session, cast.bob), phone.code(now), box=box, now=now)
    with pytest.raises(UnauthenticatedError):
        check_code(session, row(session, cast.bob), phone.code(now - STEP), box=box, now=now)


def test_the_code_of_the_setup_does_not_sign_in_too(
    session: Session, cast: Cast, box: SecretBox
) -> None:
    phone, _ = set_up(session, cast.bob, box)
    with pytest.raises(UnauthenticatedError):
        check_code(session, row(session, cast.bob), phone.code(NOON), box=box, now=NOON)


@pytest.mark.parametrize("code", ["", "12345", "abcdef", FULL_WIDTH_DIGITS, "0" * 40])
def test_what_is_no_code_is_refused(
    session: Session, cast: Cast, box: SecretBox, code: str
) -> None:
    set_up(session, cast.bob, box)
    with pytest.raises(UnauthenticatedError):
        check_code(session, row(session, cast.bob), code, box=box, now=NOON + 10 * STEP)


def test_a_code_may_be_typed_in_groups(session: Session, cast: Cast, box: SecretBox) -> None:
    phone, _ = set_up(session, cast.bob, box)
    now = NOON + 10 * STEP
    code = phone.code(now)
    check_code(session, row(session, cast.bob), f" {code[:3]} {code[3:]} ", box=box, now=now)


def test_a_recovery_code_is_valid_once_however_it_is_typed(
    session: Session, cast: Cast, box: SecretBox
) -> None:
    _, codes = set_up(session, cast.bob, box)
    typed = codes[0].upper().replace("-", " ")
    check_code(session, row(session, cast.bob), typed, box=box, now=NOON)
    assert recovery_codes_left(session, cast.bob.id) == RECOVERY_CODES - 1
    with pytest.raises(UnauthenticatedError):
        check_code(session, row(session, cast.bob), codes[0], box=box, now=NOON)


def test_recovery_codes_are_their_owners_alone(
    session: Session, cast: Cast, box: SecretBox
) -> None:
    _, codes = set_up(session, cast.bob, box)
    set_up(session, cast.alice, box)
    with pytest.raises(UnauthenticatedError):
        check_code(session, row(session, cast.alice), codes[0], box=box, now=NOON)
    assert unused_codes(session, cast.alice.id, codes) == []
    assert unused_codes(session, cast.bob.id, codes) == codes


def test_new_codes_end_the_old_ones(session: Session, cast: Cast, box: SecretBox) -> None:
    _, old = set_up(session, cast.bob, box)
    new = renew_recovery_codes(session, cast.bob.id, proof=PASSWORD, box=box, now=NOON)
    assert recovery_codes_left(session, cast.bob.id) == RECOVERY_CODES
    with pytest.raises(UnauthenticatedError):
        check_code(session, row(session, cast.bob), old[0], box=box, now=NOON)
    check_code(session, row(session, cast.bob), new[0], box=box, now=NOON)


def test_turning_off_needs_the_password(session: Session, cast: Cast, box: SecretBox) -> None:
    set_up(session, cast.bob, box)
    with pytest.raises(InvalidInputError, match="not your password"):
        turn_off(session, cast.bob.id, proof="wrong", box=box, now=NOON)
    turn_off(session, cast.bob.id, proof=PASSWORD, box=box, now=NOON)
    bob = row(session, cast.bob)
    assert (bob.totp_secret, bob.totp_confirmed_at, bob.totp_last_step) == (None, None, None)
    assert recovery_codes_left(session, cast.bob.id) == 0


def test_a_user_without_a_password_turns_it_off_by_a_code(
    session: Session, cast: Cast, box: SecretBox
) -> None:
    phone, _ = set_up(session, cast.bob, box)
    row(session, cast.bob).password_hash = None
    now = NOON + 10 * STEP
    with pytest.raises(InvalidInputError):
        turn_off(session, cast.bob.id, proof=PASSWORD, box=box, now=now)
    turn_off(session, cast.bob.id, proof=phone.code(now), box=box, now=now)
    assert not is_on(row(session, cast.bob))


def test_an_admin_resets_a_member_and_an_operator_anybody(
    session: Session, cast: Cast, box: SecretBox
) -> None:
    for who in (cast.alice, cast.olivia):
        set_up(session, cast.bob, box)
        reset_second_factor(session, scope_of(who), cast.bob.id, NOON)
        assert not is_on(row(session, cast.bob))
        assert recovery_codes_left(session, cast.bob.id) == 0


def test_members_and_other_tenants_users_reset_nobody(
    session: Session, cast: Cast, box: SecretBox
) -> None:
    set_up(session, cast.bob, box)
    with pytest.raises(ForbiddenError):
        reset_second_factor(session, scope_of(cast.bob), cast.alice.id, NOON)
    with pytest.raises(NotFoundError):
        reset_second_factor(session, scope_of(cast.charlie), cast.bob.id, NOON)
    assert is_on(row(session, cast.bob))


def test_nobody_gets_around_the_password_by_resetting_themselves(
    session: Session, cast: Cast, box: SecretBox
) -> None:
    set_up(session, cast.alice, box)
    with pytest.raises(ConflictError, match="in your settings"):
        reset_second_factor(session, scope_of(cast.alice), cast.alice.id, NOON)


def test_an_admin_does_not_weaken_an_account_that_others_rely_on(
    session: Session, cast: Cast, box: SecretBox
) -> None:
    set_up(session, cast.bob, box)
    session.add(
        Membership(user_id=cast.bob.id, tenant_id=cast.globex.id, role=Role.MEMBER, created_at=NOON)
    )
    session.flush()
    session.expire_all()
    with pytest.raises(ConflictError, match="also belongs elsewhere"):
        reset_second_factor(session, scope_of(cast.alice), cast.bob.id, NOON)
    reset_second_factor(session, scope_of(cast.olivia), cast.bob.id, NOON)
