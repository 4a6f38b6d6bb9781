"""The agents' protocol, version 1: bodies of `/agent/v1/*`, shared by the agent and the portal."""

import msgspec

from jobqueue.executors.base import AttemptObservation, AttemptSpec


class GPUInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU of an appliance, as its driver names it."""

    index: int
    uuid: str
    model: str
    memory_bytes: int


class Inventory(msgspec.Struct, frozen=True, kw_only=True):
    """What an appliance has; without `executors` it takes no jobs and only sends telemetry."""

    hostname: str
    os: str = ""
    kernel: str = ""
    cpu_model: str = ""
    cpu_count: int = 1
    memory_bytes: int = 0
    driver_version: str = ""
    gpus: list[GPUInfo] = []
    executors: list[str] = []


class EnrolRequest(msgspec.Struct, frozen=True, kw_only=True):
    """POST /agent/v1/enroll: trade a one-time token for an identity."""

    token: str
    name: str
    inventory: Inventory
    site: str = ""
    region: str = ""
    labels: dict[str, str] = {}


class EnrolReply(msgspec.Struct, frozen=True, kw_only=True):
    """The identity: keep `agent_token` secret, it is shown only here."""

    appliance_id: str
    tenant_id: str
    agent_token: str


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """POST /agent/v1/heartbeat: alive, with what is here. Sent every 10 s and after a change."""

    agent_version: str
    sent_at_ns: int
    inventory: Inventory
    buffered_points: int = 0
    dropped_points: int = 0


class DesiredState(msgspec.Struct, frozen=True, kw_only=True):
    """GET /agent/v1/desired?generation=N&wait_seconds=S: answered at once when N is not current.

    `attempts` should run; `stopping` should end. An attempt in neither list is unknown here: the
    agent stops and removes it.
    """

    generation: int
    attempts: list[AttemptSpec] = []
    stopping: list[str] = []


class ObservedReport(msgspec.Struct, frozen=True, kw_only=True):
    """POST /agent/v1/observed: sent on every change, and every 10 s."""

    attempts: list[AttemptObservation]


class LogAck(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to POST /agent/v1/attempts/ID/log?offset=N: the next offset that is wanted.

    A chunk at another offset than the stored size is not stored; the agent goes on from
    `next_offset`. `is_full` says that the log reached its limit and no more is taken.
    """

    next_offset: int
    is_full: bool = False
