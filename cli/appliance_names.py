"""Appliances as people call them on the command line: by their names, or by their ids."""

import uuid

from cli.client import PortalClient
from core.errors import InvalidInputError

# Those in service are listed without a state; a name is unique in its tenant, whatever the state.
_STATES = (None, "retired")


def appliance_id(client: PortalClient, called: str) -> str:
    """Return the id of the appliance that is called so.

    Raises:
        InvalidInputError: none of the tenant's has this name.
    """
    if _is_id(called):
        return called
    for state in _STATES:
        query = {"search": called, "sort": "name", "is_brief": True, "page_size": 500}
        for item in client.get("/appliances", life=state, **query)["items"]:
            if item["name"] == called:
                return str(item["id"])
    raise InvalidInputError(f"There is no appliance {called!r}. See: vedette appliance list")


def _is_id(text: str) -> bool:
    try:
        uuid.UUID(text)
    except ValueError:
        return False
    return True
