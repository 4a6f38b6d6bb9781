"""The variables of gangs: each with its value, and why it has that."""

from dataclasses import dataclass
from typing import NamedTuple
from zlib import crc32

from jobqueue.gangs.members import network_of
from jobqueue.models import Job
from protocol.gangs import Gang, JobNetwork

_LOOPBACK = "127.0.0.1"
# Ports on the appliance's own network, where several gangs may meet.
_FIRST_HOST_PORT, _HOST_PORTS = 20_000, 10_000


class Variable(NamedTuple):
    """An environment variable that a member gets unless its job sets it."""

    name: str
    value: str
    reason: str


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a member in its gang.

    Attributes:
        hosts: by rank, what the others reach each member by.
        addresses: by rank.
        processes: of each member; one for each GPU, or one.
        run_id: differs between gangs.
    """

    job: Job
    network: JobNetwork
    rank: int
    hosts: list[str]
    addresses: list[str]
    processes: int
    run_id: str

    @property
    def size(self) -> int:
        """The number of members."""
        return len(self.hosts)

    def port(self, usual: int) -> int:
        """Return the port for a purpose: the usual one, unless other gangs may listen there."""
        if self.network is not JobNetwork.HOST or not self.run_id:
            return usual
        return _FIRST_HOST_PORT + crc32(f"{self.run_id}/{usual}".encode()) % _HOST_PORTS


def place_of(job: Job, gang: Gang | None) -> Place:
    """Return the place of a member; a job without a gang is the only member of its own."""
    members = [] if gang is None else gang.members
    return Place(
        job=job,
        network=network_of(job),
        rank=0 if gang is None else gang.rank,
        hosts=[_LOOPBACK] if gang is None else gang.hosts,
        addresses=[member.address for member in members] or [_LOOPBACK],
        processes=job.gpus or 1,
        run_id="" if gang is None else gang.gang_id,
    )
