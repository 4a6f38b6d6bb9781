"""An offer as a provider writes it."""

from typing import Annotated

import msgspec

from core.spec import About
from marketplace.offers.calendar import MAX_WINDOWS, Window
from marketplace.terms import Terms

MAX_APPLIANCES = 1000


class OfferRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A new offer, or the replacement of one."""

    name: Annotated[str, About("Customers see it as the place where their jobs run.")]
    terms: Annotated[Terms, About("Its terms; a contract has a copy of them.")]
    description: str = ""
    appliance_ids: Annotated[
        list[str], About("Appliances, by ID or name.", maximum=MAX_APPLIANCES)
    ] = msgspec.field(default_factory=list)
    labels: Annotated[
        dict[str, str], About("Labels of other appliances that it covers; all must match.")
    ] = msgspec.field(default_factory=dict)
    calendar: Annotated[
        list[Window], About("When jobs may start; empty is always.", maximum=MAX_WINDOWS)
    ] = msgspec.field(default_factory=list)
    needs_approval: Annotated[bool, About("Whether you accept each contract yourself.")] = False
