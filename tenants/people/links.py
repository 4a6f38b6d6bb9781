"""Links in emails: a secret, signed by this portal, in an address of it.

The signature turns away what was never sent before the database is asked. How long a link is good
and that it is good once is the business of what the secret stands for.
"""

from enum import StrEnum

from itsdangerous import BadSignature, URLSafeSerializer

from core.errors import NotFoundError


class Purpose(StrEnum):
    """What a link is for; one for another purpose is none."""

    PASSWORD = "password"  # noqa: S105 - a purpose
    INVITATION = "invitation"


_PATHS = {Purpose.PASSWORD: "password/reset", Purpose.INVITATION: "invitation"}


def make_link(purpose: Purpose, secret: str, *, key: str, public_url: str) -> str:
    """Return the address to send.

    Args:
        purpose: what it is for.
        secret: what it stands for.
        key: the portal's signing key.
        public_url: the address that users open.
    """
    return f"{public_url}/{_PATHS[purpose]}/{_signer(purpose, key).dumps(secret)}"


def read_link(purpose: Purpose, token: str, *, key: str) -> str:
    """Return the secret of a link's last part.

    Raises:
        NotFoundError: this portal did not make it, or not for this.
    """
    try:
        return str(_signer(purpose, key).loads(token))
    except BadSignature as error:
        raise NotFoundError(
            "This link is not whole. Copy all of it from the message, or ask for a new one.",
            code="bad_link",
        ) from error


def _signer(purpose: Purpose, key: str) -> URLSafeSerializer:
    return URLSafeSerializer(key, salt=f"vedette {purpose.value}")
