"""`/me/second-factor`: the current user's second factor; only from a signed-in browser."""

from http import HTTPStatus
from typing import Any

from marshmallow import Schema, fields, validate

from portal.api.blueprint import APIBlueprint, Own
from portal.api.schemas import StrictSchema, about, instant
from portal.auth.sign_in import counted_attempt, own_account
from portal.context import database, now, portal
from portal.forms.accounts import MAX_CODE_LENGTH
from tenants.models import User
from tenants.users.second_factor import (
    Setup,
    begin_setup,
    confirm_setup,
    recovery_codes_left,
    renew_recovery_codes,
    turn_off,
)

second_factor = APIBlueprint(
    "SecondFactor", "/me/second-factor", "Your own second factor.", reads=Own.UNLIMITED
)


class SecondFactorSchema(Schema):
    """Status of the second factor."""

    on_since = instant()
    recovery_codes_left = fields.Integer()


class SetupSchema(Schema):
    """The setup secret for an authenticator app."""

    secret = fields.String()
    uri = fields.String(**about("`otpauth://...`, for a QR code."))


class RecoveryCodesSchema(Schema):
    """New recovery codes."""

    recovery_codes = fields.List(fields.String(), **about("Shown only once: save them."))


class CodeSchema(StrictSchema):
    """A code from the authenticator app."""

    code = fields.String(required=True, validate=validate.Length(min=1, max=MAX_CODE_LENGTH))


class ProofSchema(StrictSchema):
    """Proof of identity."""

    proof = fields.String(
        required=True,
        load_only=True,
        validate=validate.Length(min=1, max=1000),
        **about("The password, or a code if the account has none."),
    )


@second_factor.operation("GET", answer=SecondFactorSchema)
def show() -> dict[str, Any]:
    """Return the status of your second factor."""
    with database() as session:
        user = session.get_one(User, own_account().id)
        codes_left = recovery_codes_left(session, user.id)
    return {"on_since": user.totp_confirmed_at, "recovery_codes_left": codes_left}


@second_factor.operation("POST", "/begin", answer=SetupSchema)
def begin() -> Setup:
    """Create a secret for your authenticator app; confirm it to turn the second factor on."""
    with database() as session:
        return begin_setup(session, own_account().id, box=portal().secrets)


@second_factor.operation("POST", "/confirm", body=CodeSchema, answer=RecoveryCodesSchema)
def confirm(body: dict[str, str]) -> dict[str, Any]:
    """Turn your second factor on with a first code."""
    with database() as session:
        codes = confirm_setup(
            session, own_account().id, body["code"], box=portal().secrets, now=now()
        )
    return {"recovery_codes": codes}


@second_factor.operation("POST", "/recovery-codes", body=ProofSchema, answer=RecoveryCodesSchema)
def renew(body: dict[str, str]) -> dict[str, Any]:
    """Create new recovery codes; the previous ones stop working."""
    user = own_account()
    with counted_attempt(f"proof of {user.id}") as session:
        codes = renew_recovery_codes(
            session, user.id, proof=body["proof"], box=portal().secrets, now=now()
        )
    return {"recovery_codes": codes}


@second_factor.operation("POST", "/turn-off", body=ProofSchema, status=HTTPStatus.NO_CONTENT)
def off(body: dict[str, str]) -> None:
    """Turn your second factor off."""
    user = own_account()
    with counted_attempt(f"proof of {user.id}") as session:
        turn_off(session, user.id, proof=body["proof"], box=portal().secrets, now=now())
