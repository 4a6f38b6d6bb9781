"""Names of nodes as appliances: `NODE.CONNECTOR`, with a number where another one has it."""

import re
from collections.abc import Mapping
from typing import Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.db import chunked
from protocol.clusters import ClusterNode
from tenants.models import Appliance

_MAX_NAME_LENGTH: Final = 100
_TRIES: Final = 3
_NUMBER: Final = re.compile(r"-[0-9a-f]{1,12}$")


def base_name(node: ClusterNode, connector: Appliance) -> str:
    """Return the name that a node's row has unless another appliance has it."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", node.name).lstrip("._-") or "node"
    return f"{plain}.{connector.name}"[:_MAX_NAME_LENGTH]


def is_named(name: str, base: str) -> bool:
    """Return whether a name is the base, or the base with a number because it was taken."""
    if name == base:
        return True
    number = _NUMBER.search(name)
    if number is None:
        return False
    is_whole = number.start() == len(base) or len(name) == _MAX_NAME_LENGTH
    return is_whole and name[: number.start()] == base[: number.start()]


def free_names(session: Session, tenant_id: str, bases: Mapping[str, str]) -> dict[str, str]:
    """Return a name that no appliance of the tenant has, by id; taken ones get a number."""
    names: dict[str, str] = {}
    used: set[str] = set()
    suffixes = ("", *(f"-{number}" for number in range(2, _TRIES + 1)), None)
    for suffix in suffixes:
        wanted = {
            ident: _numbered(base, f"-{ident[-12:]}" if suffix is None else suffix)
            for ident, base in bases.items()
            if ident not in names
        }
        # Some databases compare names without regard to case.
        taken: set[str] = set()
        for chunk in chunked(set(wanted.values())):
            named = Appliance.tenant_id == tenant_id, Appliance.name.in_(chunk)
            taken.update(map(str.lower, session.scalars(select(Appliance.name).where(*named))))
        for ident, name in wanted.items():
            if name.lower() not in taken and name.lower() not in used:
                names[ident] = name
                used.add(name.lower())
    return names


def _numbered(base: str, suffix: str) -> str:
    return f"{base[: _MAX_NAME_LENGTH - len(suffix)]}{suffix}"
