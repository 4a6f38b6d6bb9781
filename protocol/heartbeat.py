"""The body of `POST /agent/v1/heartbeat`."""

import msgspec

from protocol.agent_update import UpdateReport
from protocol.gpu_processes import GPUProcesses
from protocol.health import ApplianceHealth
from protocol.inventory import Inventory


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """POST /agent/v1/heartbeat: sent every 10 s, and after the executors have changed.

    Without an `inventory`, the portal's stays as it is: the portal rejected this one.
    Without `gpu_processes`, the agent does not know them.
    `instance_id` is new in each run of the agent: alternating ones reveal a cloned identity.
    `can_update` says that the host has the update service, `update` what came of the last order.
    `access_point` is the address that the agent uses now. `access_points_revision` is the revision
    of the list of addresses that it has, `-` if it supports lists and has none, empty if it
    supports none. The portal answers with its list if that has another revision; to agents that
    support none it never sends one.
    """

    agent_version: str
    sent_at_ns: int
    inventory: Inventory | None = None
    buffered_points: int = 0
    dropped_points: int = 0
    health: ApplianceHealth | None = None
    gpu_processes: GPUProcesses | None = None
    instance_id: str = ""
    can_update: bool = False
    update: UpdateReport | None = None
    access_point: str = ""
    access_points_revision: str = ""
