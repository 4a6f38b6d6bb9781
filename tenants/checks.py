"""Validation of names, slugs, email addresses and roles; each check returns the errors."""

import re
import unicodedata

from email_validator import EmailNotValidError, validate_email

from core.errors import InvalidInputError
from tenants.models import Role

MAX_NAME_LENGTH = 200
MAX_SLUG_LENGTH = 64
_SLUG = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


def raise_if_invalid(errors: dict[str, list[str]], summary: str) -> None:
    """Raise `InvalidInputError` with all errors, if there are any."""
    field_errors = {field: texts for field, texts in errors.items() if texts}
    if field_errors:
        details = " ".join(text for texts in field_errors.values() for text in texts)
        raise InvalidInputError(f"{summary}. {details}", errors=field_errors)


def normalize_email(email: str) -> tuple[str, list[str]]:
    """Return an address as it is stored (lower case), with its errors."""
    try:
        checked = validate_email(email.strip(), check_deliverability=False)
    except EmailNotValidError as error:
        return email, [f"{email!r} is not an email address: {error}"]
    return checked.normalized.lower(), []


def role_errors(role: Role, tenant_id: str | None) -> list[str]:
    """Check that operators have no tenant and all others have one."""
    if role is Role.OPERATOR and tenant_id is not None:
        return ["Operators belong to no tenant. Omit the tenant or choose another role."]
    if role is not Role.OPERATOR and tenant_id is None:
        return [f"A user with the role {role.value!r} needs a tenant. Choose one."]
    return []


def name_errors(name: str) -> list[str]:
    """Check a display name."""
    if not name:
        return ["The name is empty. Enter one."]
    if len(name) > MAX_NAME_LENGTH:
        return [f"The name has {len(name)} characters; use at most {MAX_NAME_LENGTH}."]
    return []


def slug_of(name: str) -> str:
    """Return the slug that a tenant's name suggests: `Acme Labs` becomes `acme-labs`."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9]+", "-", plain)[:MAX_SLUG_LENGTH].strip("-")


def slug_errors(slug: str) -> list[str]:
    """Check a tenant's slug."""
    if len(slug) <= MAX_SLUG_LENGTH and _SLUG.fullmatch(slug):
        return []
    error = (
        f"The slug {slug!r} is invalid. Use 1 to {MAX_SLUG_LENGTH} characters a-z and 0-9 with "
        "single hyphens between them, such as 'acme-labs'."
    )
    return [error]
