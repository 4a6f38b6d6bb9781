"""`/me/second-factor`: one's own second factor, for scripts of a browser that is signed in."""

from http import HTTPStatus
from typing import Any

from marshmallow import Schema, fields, validate

from portal.api.blueprint import resource
from portal.api.needs import Own
from portal.api.schemas import StrictSchema, instant
from portal.context import database, now, portal
from portal.door.second_factor import own_account
from portal.door.tries import counted_try
from portal.forms.second_factor import MAX_CODE_LENGTH
from tenants.models import User
from tenants.people.second_factor import (
    Setup,
    begin_setup,
    codes_left,
    confirm_setup,
    renew_codes,
    turn_off,
)

second_factor = resource(
    "SecondFactor", "/me/second-factor", "Your own second factor.", reads=Own.UNLIMITED
)


class SecondFactorSchema(Schema):
    """Whether the second factor is on."""

    on_since = instant()
    recovery_codes_left = fields.Integer()


class SetupSchema(Schema):
    """What an authenticator app needs; shown to its owner alone."""

    secret = fields.String()
    uri = fields.String(metadata={"description": "`otpauth://...`, for a QR code."})


class RecoveryCodesSchema(Schema):
    """New recovery codes."""

    recovery_codes = fields.List(
        fields.String(), metadata={"description": "Shown only now: keep them."}
    )


class CodeSchema(StrictSchema):
    """A code of the authenticator app."""

    code = fields.String(required=True, validate=validate.Length(min=1, max=MAX_CODE_LENGTH))


class ProofSchema(StrictSchema):
    """That it is oneself who asks."""

    proof = fields.String(
        required=True,
        load_only=True,
        validate=validate.Length(min=1, max=1000),
        metadata={"description": "The password; a code, where the account has no password."},
    )


@second_factor.operation("GET", answer=SecondFactorSchema)
def show() -> dict[str, Any]:
    """Return whether your second factor is on."""
    with database() as session:
        user = session.get_one(User, own_account().id)
        left = codes_left(session, user.id)
    return {"on_since": user.totp_confirmed_at, "recovery_codes_left": left}


@second_factor.operation("POST", "/begin", answer=SetupSchema)
def begin() -> Setup:
    """Make a secret for your authenticator app; it counts once confirmed."""
    with database() as session:
        return begin_setup(session, own_account().id, box=portal().secrets)


@second_factor.operation("POST", "/confirm", body=CodeSchema, answer=RecoveryCodesSchema)
def confirm(body: dict[str, str]) -> dict[str, Any]:
    """Turn your second factor on by a first code."""
    with database() as session:
        codes = confirm_setup(
            session, own_account().id, body["code"], box=portal().secrets, now=now()
        )
    return {"recovery_codes": codes}


@second_factor.operation("POST", "/recovery-codes", body=ProofSchema, answer=RecoveryCodesSchema)
def renew(body: dict[str, str]) -> dict[str, Any]:
    """Make new recovery codes; the old ones are good no more."""
    user = own_account()
    with counted_try(f"proof of {user.id}") as session:
        codes = renew_codes(session, user.id, proof=body["proof"], box=portal().secrets, now=now())
    return {"recovery_codes": codes}


@second_factor.operation("POST", "/turn-off", body=ProofSchema, status=HTTPStatus.NO_CONTENT)
def off(body: dict[str, str]) -> None:
    """Turn your second factor off."""
    user = own_account()
    with counted_try(f"proof of {user.id}") as session:
        turn_off(session, user.id, proof=body["proof"], box=portal().secrets, now=now())
