"""Signing in and out: the password, perhaps a code, then a session in this browser's cookie.

A right password takes two transactions: one counts the try and finds the user, the other takes the
try back and begins the session. Between them, where the hash is made, no connection is held.
"""

from dataclasses import dataclass
from datetime import timedelta

from flask import request, session, url_for
from sqlalchemy.orm import Session

from core.errors import UnauthenticatedError
from portal.context import database, now, portal, visitor
from portal.door.actors import signing_in
from portal.door.second_factor import wait_for_code
from portal.door.tries import count_here, uncounted_if_unseen
from tenants.audit import person_chains, record, set_actor
from tenants.models import PLATFORM_CHAIN, User
from tenants.people.second_factor import is_on
from tenants.people.signin import (
    better_hash,
    end_session,
    find_user,
    may_enter,
    prove,
    proved_user,
    record_of_person,
    require_entry,
    start_session,
)
from tenants.people.throttling import Try, take_back
from tenants.visitors import Via

SESSION_KEY = "login"


def sign_in(*, email: str, password: str, target: str = "/") -> str:
    """Check email and password and go on as `enter` does; return where to.

    Raises:
        UnauthenticatedError: wrong pair, locked account or suspended tenant.
        TooManyTriesError: there were too many wrong tries of late.
    """
    proof = _prove(email=email, password=password)
    secret = None
    with database() as db:
        user = _user_of(db, proof)
        if may_enter(user) and not is_on(user):
            secret = _new_session(db, user)
        take_back(db, proof.tried)
    require_entry(user)
    if secret is None:
        return _to_second_factor(user, target)
    _keep(secret)
    return target


def check_password(*, email: str, password: str) -> User:
    """Return the user of this email address and password; tries are counted and told.

    Raises:
        UnauthenticatedError: wrong pair, or locked account.
        TooManyTriesError: there were too many wrong tries of late.
    """
    proof = _prove(email=email, password=password)
    with database() as db:
        user = _user_of(db, proof)
        take_back(db, proof.tried)
    return user


def enter(user: User, *, target: str = "/") -> str:
    """Let a user in who has proved who they are by one factor; return where to go on.

    Where they have a second factor that is the form for its code, and they are not in yet.
    """
    if is_on(user):
        return _to_second_factor(user, target)
    open_session(user)
    return target


def open_session(user: User) -> None:
    """Sign this browser in; what it held before is dropped."""
    with database() as db:
        secret = _new_session(db, user)
    _keep(secret)


def sign_out() -> None:
    """End this browser's session on both sides."""
    secret = session_secret()
    here = visitor()
    if secret is not None:
        with database() as db:
            end_session(db, secret)
            if here is not None and here.via is Via.SESSION:
                person = here.user if here.visit is None else here.visit.operator
                record_of_person(db, person, action="session.ended", now=now())
    session.clear()


def session_secret() -> str | None:
    """Return the secret that this browser's cookie holds."""
    secret: str | None = session.get(SESSION_KEY)
    return secret


@dataclass(frozen=True, slots=True)
class _Proof:
    """Somebody who has shown a right password; the try is counted still."""

    user: User
    tried: Try
    new_hash: str | None


def _prove(*, email: str, password: str) -> _Proof:
    with database() as db:
        tried = count_here(db, email)
        found = find_user(db, email)
    try:
        with uncounted_if_unseen(tried):
            user = prove(found, password)
    except UnauthenticatedError:
        _tell_of_failure(found, email)
        raise
    return _Proof(user, tried, better_hash(user, password))


def _user_of(db: Session, proof: _Proof) -> User:
    return proved_user(db, proof.user, new_hash=proof.new_hash)


def _new_session(db: Session, user: User) -> str:
    set_actor(db, signing_in(user), clock=portal().clock)
    secret = start_session(
        db,
        user,
        now=now(),
        lifetime=timedelta(seconds=portal().settings.session_lifetime_seconds),
        address=request.remote_addr or "",
        user_agent=request.user_agent.string,
    )
    record_of_person(db, user, action="session.started", now=now())
    return secret


def _keep(secret: str) -> None:
    session.clear()
    session[SESSION_KEY] = secret
    session.permanent = True


def _to_second_factor(user: User, target: str) -> str:
    wait_for_code(user, target)
    return url_for("second_factor.challenge")


def _tell_of_failure(user: User | None, email: str) -> None:
    # What is no address may be a password, typed into the wrong field.
    address = email if "@" in email else "(not an email address)"
    ident, name = (None, address) if user is None else (user.id, user.email)
    with database() as db:
        # Nobody is looked for too: an answer for a known address takes as many statements.
        for chain in person_chains(db, ident or ""):
            record(
                db,
                action="session.failed",
                target_kind="user",
                target_id=ident,
                target_name=name,
                tenant_id=None if chain == PLATFORM_CHAIN else chain,
                now=now(),
            )
