"""Errors of signing in with an identity provider."""

from core.errors import UnauthenticatedError


class RefusedIdentityError(UnauthenticatedError):
    """The identity provider's response does not prove the user's identity."""

    default_code = "oidc_refused"
