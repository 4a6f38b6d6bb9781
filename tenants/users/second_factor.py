"""The second factor: codes of an authenticator app (TOTP, RFC 6238), and recovery codes.

A code is valid once: the time step of the last accepted code is stored. The TOTP secret is stored
encrypted, recovery codes as hashes; both are shown only when they are created.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import pyotp
from sqlalchemy import delete, func, or_, select, update
from sqlalchemy.orm import Session

from core.db import changed_one
from core.errors import ConflictError, InvalidInputError, UnauthenticatedError
from core.ids import hash_secret
from core.secretbox import SecretBox
from tenants.models import RecoveryCode, User
from tenants.permissions import Permission
from tenants.scope import Scope
from tenants.users.members import Member, get_user
from tenants.users.passwords import verify_password
from tenants.users.signin import record_for_user

ISSUER = "Vedette"
STEP_SECONDS = 30
# Accept the previous and the next code: clocks differ, and typing takes a while.
WINDOW_STEPS = 1
CODE_DIGITS = 6
RECOVERY_CODES = 10
RECOVERY_GROUPS, RECOVERY_GROUP_LENGTH = 4, 4
# Sixteen of 32 characters hold 80 bits; l, o, 0 and 1 are left out, as they are misread.
RECOVERY_ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"
WRONG_CODE = "second_factor_wrong"


@dataclass(frozen=True, slots=True)
class Setup:
    """The input of an authenticator app: the secret to type, and the URI of the QR code."""

    secret: str
    uri: str


def is_on(user: User) -> bool:
    """Return whether the user's second factor is on."""
    return user.totp_confirmed_at is not None


def begin_setup(session: Session, user_id: str, *, box: SecretBox) -> Setup:
    """Create a secret, which `confirm_setup` activates by a first code.

    Raises:
        ConflictError: the second factor is already on.
    """
    user = _locked(session, user_id)
    _refuse_if_on(user)
    secret = pyotp.random_base32()
    user.totp_secret = box.encrypt(secret)
    user.totp_last_step = None
    session.flush()
    return _setup_of(user, secret)


def pending_setup(user: User, *, box: SecretBox) -> Setup | None:
    """Return the setup that waits for its first code."""
    if is_on(user) or user.totp_secret is None:
        return None
    return _setup_of(user, box.decrypt(user.totp_secret))


def confirm_setup(
    session: Session, user_id: str, code: str, *, box: SecretBox, now: datetime
) -> list[str]:
    """Turn the second factor on by a first code; return the recovery codes, shown only now.

    Raises:
        ConflictError: it is already on, or there is no setup.
        InvalidInputError: the code is wrong.
    """
    user = _locked(session, user_id)
    _refuse_if_on(user)
    if user.totp_secret is None:
        raise ConflictError("There is no setup of a second factor. Start one first.")
    step = _matching_step(box.decrypt(user.totp_secret), code, now=now)
    if step is None:
        error_text = "This code is wrong. Check that your device's clock is right."
        raise InvalidInputError(error_text, code=WRONG_CODE, errors={"code": [error_text]})
    user.totp_confirmed_at = now
    user.totp_last_step = step
    codes = _replace_codes(session, user.id)
    record_for_user(session, user, action="user.second_factor_on", now=now)
    return codes


def check_code(session: Session, user: User, code: str, *, box: SecretBox, now: datetime) -> None:
    """Accept a code of the app, or a recovery code, once.

    Raises:
        UnauthenticatedError: the code is wrong, or was used before.
    """
    if not _accept_app_code(session, user, code, box=box, now=now) and not _accept_recovery_code(
        session, user, code, now=now
    ):
        raise UnauthenticatedError(
            "The code is wrong or was already used. Wait for the next one, or use a recovery code.",
            code=WRONG_CODE,
        )


def recovery_codes_left(session: Session, user_id: str) -> int:
    """Return the number of unused recovery codes."""
    statement = select(func.count()).select_from(RecoveryCode)
    unused = RecoveryCode.used_at.is_(None)
    return session.scalar(statement.where(RecoveryCode.user_id == user_id, unused)) or 0


def unused_codes(session: Session, user_id: str, codes: Sequence[str]) -> list[str]:
    """Return those of the codes that the user can still use, to download them."""
    hashes = {_code_hash(code): code for code in codes[:RECOVERY_CODES]}
    statement = select(RecoveryCode.code_hash).where(
        RecoveryCode.user_id == user_id,
        RecoveryCode.code_hash.in_(list(hashes)),
        RecoveryCode.used_at.is_(None),
    )
    unused = set(session.scalars(statement))
    return [code for hashed, code in hashes.items() if hashed in unused]


def renew_recovery_codes(
    session: Session, user_id: str, *, proof: str, box: SecretBox, now: datetime
) -> list[str]:
    """Create new recovery codes, shown only now; the old ones become invalid.

    Raises:
        ConflictError: the second factor is off.
        InvalidInputError: `proof` is not the password (or a code, for users without a password).
    """
    user = _proved(session, user_id, proof, box=box, now=now)
    codes = _replace_codes(session, user.id)
    record_for_user(session, user, action="user.recovery_codes_renewed", now=now)
    return codes


def turn_off(session: Session, user_id: str, *, proof: str, box: SecretBox, now: datetime) -> None:
    """Turn the second factor off; raises as `renew_recovery_codes` does."""
    user = _proved(session, user_id, proof, box=box, now=now)
    _clear(session, user)
    record_for_user(session, user, action="user.second_factor_off", now=now)


def reset_second_factor(session: Session, scope: Scope, user_id: str, now: datetime) -> Member:
    """Turn off the second factor of another user who lost it.

    Raises:
        ConflictError: it is the caller, or the user is also an operator or in another tenant: then
            only an operator may do it.
    """
    scope.require(Permission.MANAGE_USERS)
    member = get_user(session, scope, user_id)
    if member.id == scope.user_id:
        raise ConflictError("Turn your own second factor off in your settings.")
    user = _locked(session, member.id)
    is_elsewhere = any(membership.tenant_id != scope.tenant_id for membership in user.memberships)
    if scope.tenant_id is not None and (user.is_operator or is_elsewhere):
        raise ConflictError(
            "This account also belongs elsewhere. Ask the portal's operator to reset it."
        )
    _clear(session, user)
    record_for_user(session, user, action="user.second_factor_reset", now=now)
    return member


def _locked(session: Session, user_id: str) -> User:
    """Lock the user's row; return it, freshly read."""
    statement = select(User).where(User.id == user_id).with_for_update()
    return session.scalars(statement.execution_options(populate_existing=True)).one()


def _refuse_if_on(user: User) -> None:
    if is_on(user):
        raise ConflictError("Your second factor is already on. Turn it off before a new setup.")


def _setup_of(user: User, secret: str) -> Setup:
    uri = pyotp.TOTP(secret).provisioning_uri(name=user.email, issuer_name=ISSUER)
    return Setup(secret=secret, uri=uri)


def _proved(session: Session, user_id: str, proof: str, *, box: SecretBox, now: datetime) -> User:
    user = _locked(session, user_id)
    if not is_on(user):
        raise ConflictError("Your second factor is off.")
    if user.password_hash is not None:
        if not verify_password(user.password_hash, proof):
            error_text = "This is not your password."
            raise InvalidInputError(error_text, errors={"proof": [error_text]})
        return user
    try:
        check_code(session, user, proof, box=box, now=now)
    except UnauthenticatedError as error:
        raise InvalidInputError(error.message, errors={"proof": [error.message]}) from error
    return user


def _accept_app_code(
    session: Session, user: User, code: str, *, box: SecretBox, now: datetime
) -> bool:
    if user.totp_secret is None or user.totp_confirmed_at is None:
        return False
    step = _matching_step(box.decrypt(user.totp_secret), code, now=now)
    if step is None:
        return False
    # Guarded: of two concurrent uses of a code, one succeeds.
    not_yet = or_(User.totp_last_step.is_(None), User.totp_last_step < step)
    same = User.totp_secret == user.totp_secret
    statement = update(User).where(User.id == user.id, same, not_yet).values(totp_last_step=step)
    return changed_one(session, statement, synchronize_session=False)


def _accept_recovery_code(session: Session, user: User, code: str, *, now: datetime) -> bool:
    unused = RecoveryCode.used_at.is_(None)
    statement = update(RecoveryCode).where(
        RecoveryCode.user_id == user.id, RecoveryCode.code_hash == _code_hash(code), unused
    )
    if not changed_one(session, statement.values(used_at=now), synchronize_session=False):
        return False
    record_for_user(session, user, action="user.recovery_code_used", now=now)
    return True


def _matching_step(secret: str, code: str, *, now: datetime) -> int | None:
    """Return the time step of the code; the latest if several match."""
    digits = "".join(code.split())
    if len(digits) != CODE_DIGITS or not (digits.isascii() and digits.isdecimal()):
        return None
    totp = pyotp.TOTP(secret, interval=STEP_SECONDS, digits=CODE_DIGITS)
    current = int(now.timestamp()) // STEP_SECONDS
    steps = range(current + WINDOW_STEPS, current - WINDOW_STEPS - 1, -1)
    matching = [step for step in steps if secrets.compare_digest(totp.generate_otp(step), digits)]
    return matching[0] if matching else None


def _replace_codes(session: Session, user_id: str) -> list[str]:
    session.execute(delete(RecoveryCode).where(RecoveryCode.user_id == user_id))
    codes = [
        "-".join(
            "".join(secrets.choice(RECOVERY_ALPHABET) for _ in range(RECOVERY_GROUP_LENGTH))
            for _ in range(RECOVERY_GROUPS)
        )
        for _ in range(RECOVERY_CODES)
    ]
    session.add_all(RecoveryCode(user_id=user_id, code_hash=_code_hash(code)) for code in codes)
    session.flush()
    return codes


def _code_hash(code: str) -> str:
    return hash_secret("".join(code.replace("-", "").split()).lower())


def _clear(session: Session, user: User) -> None:
    user.totp_secret = None
    user.totp_confirmed_at = None
    user.totp_last_step = None
    session.execute(delete(RecoveryCode).where(RecoveryCode.user_id == user.id))
    session.flush()
