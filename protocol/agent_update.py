"""Updates of an agent that the portal asks for: the order, and what came of it.

The order is part of the answer to a heartbeat, the report is part of the next heartbeats. Only an
agent with an update service gets orders.
"""

from enum import StrEnum
from typing import Annotated

import msgspec

from protocol.access_points import AccessPointList

Sha256 = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]
OrderID = Annotated[str, msgspec.Meta(pattern=r"\A[0-9A-Za-z-]{1,64}\Z")]
MAX_MESSAGE_LENGTH = 500


class UpdateOrder(msgspec.Struct, frozen=True, kw_only=True):
    """A version of the agent to install.

    Attributes:
        update_id: of this appliance's part of a rollout.
        requirements_sha256: of the portal's list of packages; another one must not be installed.
    """

    update_id: OrderID
    version: str
    requirements_sha256: Sha256


class UpdateResult(StrEnum):
    """What the update service says of an order; the last two are final."""

    INSTALLING = "installing"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


class UpdateReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of the last order; `message` is the end of the installer's output if it failed."""

    update_id: OrderID
    result: UpdateResult
    message: str = ""


class HeartbeatReply(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a heartbeat, where the portal wants something."""

    update: UpdateOrder | None = None
    access_points: AccessPointList | None = None
