"""Access points: the addresses at which agents reach the portal, as it tells them.

The list is part of the answer to a heartbeat, when the agent has another revision of it.
"""

from typing import Annotated

import msgspec

MAX_ACCESS_POINTS = 64
MAX_WEIGHT = 1000
# The revision of the empty list: no access points are configured, or the agent has no list yet.
NO_ACCESS_POINTS = "-"


class AccessPointAddress(msgspec.Struct, frozen=True, kw_only=True):
    """An address, without a trailing slash.

    `weight` is its share of the appliances that reach several about equally fast; those with 0 are
    left by their agents, and used only when no other answers.
    """

    url: Annotated[str, msgspec.Meta(pattern=r"\Ahttps?://", max_length=255)]
    weight: Annotated[int, msgspec.Meta(ge=0, le=MAX_WEIGHT)] = 100


class AccessPointList(msgspec.Struct, frozen=True, kw_only=True):
    """All addresses for an appliance; the agent adds those of its own configuration, last."""

    revision: Annotated[str, msgspec.Meta(max_length=64)]
    points: Annotated[list[AccessPointAddress], msgspec.Meta(max_length=MAX_ACCESS_POINTS)]
