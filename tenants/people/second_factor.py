"""The second factor: codes of an authenticator app (TOTP, RFC 6238), and recovery codes on paper.

A code counts once: the time step of the last one taken is kept, and none up to it is taken again.
The shared secret is stored encrypted, recovery codes as hashes; both are shown only when made.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

import pyotp
from sqlalchemy import CursorResult, delete, func, or_, select, update
from sqlalchemy.orm import Session

from core.errors import ConflictError, InvalidInputError, UnauthenticatedError
from core.ids import hash_secret
from core.secretbox import SecretBox
from tenants.models import RecoveryCode, User
from tenants.people.members import Member, get_user
from tenants.people.passwords import verify_password
from tenants.people.signin import record_of_person
from tenants.permissions import Permission
from tenants.scope import Scope

ISSUER = "Vedette"
STEP_SECONDS = 30
# Clocks differ, and typing takes a while: the code before and the one after are good too.
WINDOW_STEPS = 1
CODE_DIGITS = 6
RECOVERY_CODES = 10
RECOVERY_GROUPS, RECOVERY_GROUP_LENGTH = 4, 4
# Sixteen of 32 characters hold 80 bits; l, o, 0 and 1 are left out, as they are misread.
RECOVERY_ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"
WRONG_CODE = "second_factor_wrong"


@dataclass(frozen=True, slots=True)
class Setup:
    """What an authenticator app needs: the secret for typing, and the address for its camera."""

    secret: str
    uri: str


def is_on(user: User) -> bool:
    """Whether this user is asked for a code at sign-in."""
    return user.totp_confirmed_at is not None


def begin_setup(session: Session, user_id: str, *, box: SecretBox) -> Setup:
    """Make a new secret, which counts once `confirm_setup` has seen a code of it.

    Raises:
        ConflictError: the second factor is on already.
    """
    user = _locked(session, user_id)
    _refuse_if_on(user)
    secret = pyotp.random_base32()
    user.totp_secret = box.encrypt(secret)
    user.totp_last_step = None
    session.flush()
    return _setup_of(user, secret)


def setup_under_way(user: User, *, box: SecretBox) -> Setup | None:
    """Return what was made by `begin_setup` and waits for its first code."""
    if is_on(user) or user.totp_secret is None:
        return None
    return _setup_of(user, box.decrypt(user.totp_secret))


def confirm_setup(
    session: Session, user_id: str, code: str, *, box: SecretBox, now: datetime
) -> list[str]:
    """Turn the second factor on by a first code; return the recovery codes, shown only now.

    Raises:
        ConflictError: it is on already, or no setup was begun.
        InvalidInputError: the code is wrong.
    """
    user = _locked(session, user_id)
    _refuse_if_on(user)
    if user.totp_secret is None:
        raise ConflictError("No setup of a second factor is under way. Begin one first.")
    step = _matching_step(box.decrypt(user.totp_secret), code, now=now)
    if step is None:
        fault = "This is not the code of now. Check that your device's clock is right."
        raise InvalidInputError(fault, code=WRONG_CODE, errors={"code": [fault]})
    user.totp_confirmed_at = now
    user.totp_last_step = step
    codes = _replace_codes(session, user.id)
    record_of_person(session, user, action="user.second_factor_on", now=now)
    return codes


def check_code(session: Session, user: User, code: str, *, box: SecretBox, now: datetime) -> None:
    """Take a code of the app, or a recovery code, once.

    Raises:
        UnauthenticatedError: the code is wrong, or was used before.
    """
    if not _takes_app_code(session, user, code, box=box, now=now) and not _takes_recovery_code(
        session, user, code, now=now
    ):
        raise UnauthenticatedError(
            "The code is wrong or was used already. Wait for the next one, or use a recovery code.",
            code=WRONG_CODE,
        )


def codes_left(session: Session, user_id: str) -> int:
    """Return how many recovery codes were not used yet."""
    statement = select(func.count()).select_from(RecoveryCode)
    unused = RecoveryCode.used_at.is_(None)
    return session.scalar(statement.where(RecoveryCode.user_id == user_id, unused)) or 0


def own_unused_codes(session: Session, user_id: str, codes: Sequence[str]) -> list[str]:
    """Return those of the codes that this user can still use, to write them to a file."""
    hashes = {_code_hash(code): code for code in codes[:RECOVERY_CODES]}
    statement = select(RecoveryCode.code_hash).where(
        RecoveryCode.user_id == user_id,
        RecoveryCode.code_hash.in_(list(hashes)),
        RecoveryCode.used_at.is_(None),
    )
    known = set(session.scalars(statement))
    return [code for hashed, code in hashes.items() if hashed in known]


def renew_codes(
    session: Session, user_id: str, *, proof: str, box: SecretBox, now: datetime
) -> list[str]:
    """Make new recovery codes, shown only now; the old ones are good no more.

    Raises:
        ConflictError: the second factor is off.
        InvalidInputError: `proof` is not the password (or a code, where there is no password).
    """
    user = _proved(session, user_id, proof, box=box, now=now)
    codes = _replace_codes(session, user.id)
    record_of_person(session, user, action="user.recovery_codes_renewed", now=now)
    return codes


def turn_off(session: Session, user_id: str, *, proof: str, box: SecretBox, now: datetime) -> None:
    """Ask this user for no code any more.

    Raises:
        ConflictError: it is off already.
        InvalidInputError: `proof` is not the password (or a code, where there is no password).
    """
    user = _proved(session, user_id, proof, box=box, now=now)
    _clear(session, user)
    record_of_person(session, user, action="user.second_factor_off", now=now)


def reset_second_factor(session: Session, scope: Scope, user_id: str, now: datetime) -> Member:
    """Take the second factor off somebody who lost it.

    Raises:
        ConflictError: it is one's own, or of somebody who is more than this tenant's member:
            there the operator alone may do it.
    """
    scope.require(Permission.MANAGE_USERS)
    member = get_user(session, scope, user_id)
    if member.id == scope.user_id:
        raise ConflictError("Turn your own second factor off in your settings.")
    user = _locked(session, member.id)
    is_elsewhere = any(one.tenant_id != scope.tenant_id for one in user.memberships)
    if scope.tenant_id is not None and (user.is_operator or is_elsewhere):
        raise ConflictError(
            "This account is not your tenant's alone. Ask the operator of the portal to reset it."
        )
    _clear(session, user)
    record_of_person(session, user, action="user.second_factor_reset", now=now)
    return member


def _locked(session: Session, user_id: str) -> User:
    """Return the user's row, fresh and held until the end of the transaction."""
    statement = select(User).where(User.id == user_id).with_for_update()
    return session.scalars(statement.execution_options(populate_existing=True)).one()


def _refuse_if_on(user: User) -> None:
    if is_on(user):
        raise ConflictError("Your second factor is on already. Turn it off before a new setup.")


def _setup_of(user: User, secret: str) -> Setup:
    uri = pyotp.TOTP(secret).provisioning_uri(name=user.email, issuer_name=ISSUER)
    return Setup(secret=secret, uri=uri)


def _proved(session: Session, user_id: str, proof: str, *, box: SecretBox, now: datetime) -> User:
    user = _locked(session, user_id)
    if not is_on(user):
        raise ConflictError("Your second factor is off.")
    if user.password_hash is not None:
        if not verify_password(user.password_hash, proof):
            fault = "This is not your password."
            raise InvalidInputError(fault, errors={"proof": [fault]})
        return user
    try:
        check_code(session, user, proof, box=box, now=now)
    except UnauthenticatedError as error:
        raise InvalidInputError(error.message, errors={"proof": [error.message]}) from error
    return user


def _takes_app_code(
    session: Session, user: User, code: str, *, box: SecretBox, now: datetime
) -> bool:
    if user.totp_secret is None or user.totp_confirmed_at is None:
        return False
    step = _matching_step(box.decrypt(user.totp_secret), code, now=now)
    if step is None:
        return False
    # Two who hold the same code race here: the database lets one of them move the step.
    not_yet = or_(User.totp_last_step.is_(None), User.totp_last_step < step)
    same = User.totp_secret == user.totp_secret
    statement = update(User).where(User.id == user.id, same, not_yet).values(totp_last_step=step)
    return _changed_one(session, statement)


def _takes_recovery_code(session: Session, user: User, code: str, *, now: datetime) -> bool:
    unused = RecoveryCode.used_at.is_(None)
    statement = update(RecoveryCode).where(
        RecoveryCode.user_id == user.id, RecoveryCode.code_hash == _code_hash(code), unused
    )
    if not _changed_one(session, statement.values(used_at=now)):
        return False
    record_of_person(session, user, action="user.recovery_code_used", now=now)
    return True


def _changed_one(session: Session, statement: Any) -> bool:  # noqa: ANN401 - an UPDATE
    result = session.execute(statement, execution_options={"synchronize_session": False})
    return cast("CursorResult[Any]", result).rowcount == 1


def _matching_step(secret: str, code: str, *, now: datetime) -> int | None:
    """Return the time step that the code belongs to; the latest where several would fit."""
    digits = "".join(code.split())
    if len(digits) != CODE_DIGITS or not (digits.isascii() and digits.isdecimal()):
        return None
    totp = pyotp.TOTP(secret, interval=STEP_SECONDS, digits=CODE_DIGITS)
    here = int(now.timestamp()) // STEP_SECONDS
    steps = range(here + WINDOW_STEPS, here - WINDOW_STEPS - 1, -1)
    fitting = [step for step in steps if secrets.compare_digest(totp.generate_otp(step), digits)]
    return fitting[0] if fitting else None


def _replace_codes(session: Session, user_id: str) -> list[str]:
    session.execute(delete(RecoveryCode).where(RecoveryCode.user_id == user_id))
    codes = [_new_code() for _ in range(RECOVERY_CODES)]
    session.add_all(RecoveryCode(user_id=user_id, code_hash=_code_hash(code)) for code in codes)
    session.flush()
    return codes


def _new_code() -> str:
    groups = (
        "".join(secrets.choice(RECOVERY_ALPHABET) for _ in range(RECOVERY_GROUP_LENGTH))
        for _ in range(RECOVERY_GROUPS)
    )
    return "-".join(groups)


def _code_hash(code: str) -> str:
    return hash_secret("".join(code.replace("-", "").split()).lower())


def _clear(session: Session, user: User) -> None:
    user.totp_secret = None
    user.totp_confirmed_at = None
    user.totp_last_step = None
    session.execute(delete(RecoveryCode).where(RecoveryCode.user_id == user.id))
    session.flush()
