"""Which group of the identity provider gives what.

`gpu-admins=acme:admin` gives a role in a tenant, `platform-ops=operator` the platform.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from tenants.models import Role

OPERATOR = Role.OPERATOR.value
TENANT_ROLES = (Role.VIEWER, Role.MEMBER, Role.ADMIN)  # the higher, the further right


@dataclass(frozen=True, slots=True)
class Grants:
    """What groups give: a role by tenant (by slug as written, by id once known), the platform."""

    roles: dict[str, Role]
    is_operator: bool

    def __bool__(self) -> bool:
        """Whether they give anything at all."""
        return self.is_operator or bool(self.roles)


class GroupRoles:
    """Which group gives what.

    Args:
        entries: group, and `slug:role` or `operator`.
    """

    def __init__(self, entries: Iterable[tuple[str, str]] = ()) -> None:
        self._entries = tuple(entries)

    @classmethod
    def parse(cls, text: str) -> tuple["GroupRoles", list[str]]:
        """Return what `group=slug:role,group=operator` says, and the faults in it.

        Entries are parted by semicolons where there is one, for names of directories have commas.
        """
        entries, faults = [], []
        for entry in filter(None, map(str.strip, text.split(";" if ";" in text else ","))):
            group, _, grant = (part.strip() for part in entry.rpartition("="))
            slug, _, role = grant.partition(":")
            is_known = grant == OPERATOR or (slug and role in set(TENANT_ROLES))
            if group and is_known:
                entries.append((group, grant))
            else:
                faults.append(
                    f"oidc_roles: {entry!r} is not understood. Write group=tenant:role with the "
                    "role viewer, member or admin, or group=operator."
                )
        return cls(entries), faults

    def grants(self, groups: frozenset[str]) -> Grants:
        """Return what these groups give together; the highest role of a tenant counts."""
        given = [grant for group, grant in self._entries if group in groups]
        roles: dict[str, Role] = {}
        for grant in given:
            slug, _, role = grant.partition(":")
            if role:
                roles[slug] = max(roles.get(slug, Role.VIEWER), Role(role), key=TENANT_ROLES.index)
        return Grants(roles=roles, is_operator=OPERATOR in given)
