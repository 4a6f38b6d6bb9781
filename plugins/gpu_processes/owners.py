"""Finds the owner of a process: its control group names the container, which runs a job."""

import logging
import os
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger(__name__)

# Docker, containerd, CRI-O and Podman all name a container's control group by its id, with the
# cgroupfs driver (`/docker/ID`) as with systemd's (`docker-ID.scope`).
_CONTAINER_ID = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
SHORT_ID_DIGITS = 12


@dataclass(frozen=True, slots=True)
class Owner:
    """Owner of a process; fields that don't apply are empty."""

    kind: str
    job: str = ""
    container: str = ""

    def tags(self) -> dict[str, str]:
        """Return the tags of its points."""
        tags = {"owner": self.kind, "job": self.job, "container": self.container}
        return {name: value for name, value in tags.items() if value}


HOST = Owner("host")
# The program of MPS's server, as the kernel cuts it: what its clients compute is listed as theirs.
MPS_SERVER = "nvidia-cuda-mps"


def container_ids(cgroup: str) -> list[str]:
    """Return the IDs of the containers of a process, outermost first.

    Args:
        cgroup: `/proc/PID/cgroup`, of version 1 or 2.
    """
    return list(dict.fromkeys(_CONTAINER_ID.findall(cgroup)))


class Owners:
    """Finds the owner of each process, and logs those without a job.

    Args:
        proc: where `/proc` is.
        job_of_container: returns the job ID of each container ID.
    """

    def __init__(self, proc: Path, job_of_container: Callable[[], Mapping[str, str]]) -> None:
        self._proc = proc
        self._job_of_container = job_of_container
        self._external: set[int] = set()
        self._unreadable: set[int] = set()

    def of(self, pids: Collection[int]) -> dict[int, Owner]:
        """Return the owner of each running process.

        A process without readable files has usually exited. If the driver lists it again, it is
        hidden from this user and counted as the host's.
        """
        jobs = self._job_of_container()
        owners: dict[int, Owner] = {}
        unreadable = set()
        for pid in set(pids) - {os.getpid(), os.getppid()}:
            cgroup = self._read(pid, "cgroup")
            if cgroup is not None:
                if self.name_of(pid) != MPS_SERVER:
                    owners[pid] = _owner(cgroup, jobs)
            else:
                unreadable.add(pid)
                if pid in self._unreadable:
                    owners[pid] = HOST
        self._unreadable = unreadable
        self._log_external(owners)
        return owners

    def name_of(self, pid: int) -> str:
        """Return the name of a process's program, up to 15 characters; "" if it is hidden."""
        return (self._read(pid, "comm") or "").strip()

    def _log_external(self, owners: Mapping[int, Owner]) -> None:
        external = {pid for pid, owner in owners.items() if owner.kind != "job"}
        for pid in sorted(external - self._external):
            name = self.name_of(pid) or "?"
            where = f"container {owners[pid].container}" if owners[pid].container else "the host"
            log.info("process %d (%s) of %s uses a GPU without a job", pid, name, where)
        self._external = external

    def _read(self, pid: int, name: str) -> str | None:
        try:
            return (self._proc / str(pid) / name).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None


def _owner(cgroup: str, jobs: Mapping[str, str]) -> Owner:
    ids = container_ids(cgroup)
    for container in ids:
        if container in jobs:
            return Owner("job", jobs[container], container[:SHORT_ID_DIGITS])
    return Owner("container", container=ids[0][:SHORT_ID_DIGITS]) if ids else HOST
