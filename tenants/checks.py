"""What a tenant's and a user's fields must look like; each check returns the faults it found."""

import re
import unicodedata

from email_validator import EmailNotValidError, validate_email

from core.errors import InvalidInputError
from tenants.models import Role

MAX_NAME_LENGTH = 200
MAX_SLUG_LENGTH = 64
_SLUG = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


def refuse(errors: dict[str, list[str]], summary: str) -> None:
    """Raise `InvalidInputError` with all faults together, if there are any."""
    found = {field: faults for field, faults in errors.items() if faults}
    if found:
        details = " ".join(fault for faults in found.values() for fault in faults)
        raise InvalidInputError(f"{summary}. {details}", errors=found)


def normalise_email(email: str) -> tuple[str, list[str]]:
    """Return an address as it is stored (lower case), with its faults."""
    try:
        checked = validate_email(email.strip(), check_deliverability=False)
    except EmailNotValidError as error:
        return email, [f"{email!r} is not an email address: {error}"]
    return checked.normalized.lower(), []


def role_faults(role: Role, tenant_id: str | None) -> list[str]:
    """Check that operators have no tenant and all others have one."""
    if role is Role.OPERATOR and tenant_id is not None:
        return ["An operator belongs to no tenant. Leave the tenant out or choose another role."]
    if role is not Role.OPERATOR and tenant_id is None:
        return [f"A user with the role {role.value!r} belongs to a tenant. Name one."]
    return []


def name_faults(name: str) -> list[str]:
    """Check a name that people read."""
    if not name:
        return ["The name is empty. Enter one."]
    if len(name) > MAX_NAME_LENGTH:
        return [f"The name has {len(name)} characters; use at most {MAX_NAME_LENGTH}."]
    return []


def slug_of(name: str) -> str:
    """Return the short name that a tenant's name suggests: `Acme Labs` gives `acme-labs`."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9]+", "-", plain)[:MAX_SLUG_LENGTH].strip("-")


def slug_faults(slug: str) -> list[str]:
    """Check a tenant's short name."""
    if len(slug) <= MAX_SLUG_LENGTH and _SLUG.fullmatch(slug):
        return []
    fault = (
        f"The slug {slug!r} is not 1 to {MAX_SLUG_LENGTH} characters of a-z, 0-9 and single "
        "hyphens between them. Give one, such as 'acme-labs'."
    )
    return [fault]
