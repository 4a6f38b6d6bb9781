"""Reads what an identity provider claims about somebody."""

from collections.abc import Mapping
from typing import Any

from core.errors import UnauthenticatedError
from core.settings import ServerSettings
from tenants.models.signin import SUBJECT_LENGTH
from tenants.people.oidc import Identity


class RefusedIdentityError(UnauthenticatedError):
    """The provider's answer does not prove who somebody is."""

    default_code = "oidc_refused"


def identity_of(claims: Mapping[str, Any], settings: ServerSettings) -> Identity:
    """Return who the claims are about, read as the settings say.

    Raises:
        RefusedIdentityError: they name nobody, or leave the groups for another place.
    """
    email, subject = claims.get("email"), claims["sub"]
    if not isinstance(subject, str) or not 0 < len(subject) <= SUBJECT_LENGTH:
        raise RefusedIdentityError("The identity provider names nobody in particular.")
    verified = claims.get("email_verified")
    is_verified = verified is True or verified == "true"
    return Identity(
        issuer=str(claims["iss"]),
        subject=subject,
        email=email if isinstance(email, str) else "",
        is_email_verified=is_verified or settings.oidc_trust_email,
        name=str(claims.get("name") or claims.get("preferred_username") or ""),
        groups=_groups(claims, settings.oidc_groups_claim),
    )


def _groups(claims: Mapping[str, Any], name: str) -> frozenset[str]:
    """Return the groups; `realm_access.roles` names a claim inside another."""
    value: object = claims.get(name)
    if value is None and "." in name:
        value = claims
        for part in name.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
    if value is None and name in (claims.get("_claim_names") or {}):
        raise RefusedIdentityError(
            "You are in more groups than the identity provider tells of. Have it send only those "
            "that are assigned to this application."
        )
    if isinstance(value, str):
        value = [value]
    return frozenset(str(one) for one in value) if isinstance(value, list) else frozenset()
