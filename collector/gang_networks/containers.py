"""The containers that hold the namespaces of gangs' networks on this appliance.

A *switch* holds the bridge of a gang, a *sandbox* the network of one member, which the member's own
container joins. Both only wait: their image is a static program of a few bytes. They, not the
agent, keep the namespaces, so these last while the agent restarts, and end with them, whoever
removes them. Their labels say whose they are.
"""

import contextlib
import logging
import platform
import socket
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any

import docker
import requests
from docker.errors import APIError, DockerException, ImageNotFound, NotFound

from collector.gang_networks.errors import BusyError, NetworkError
from collector.gang_networks.namespaces import opened
from jobqueue.executors.base import OWNER_LABEL
from jobqueue.executors.docker.mapping import container_name, explain
from jobqueue.executors.docker.own_containers import image_of
from protocol.attempts import AttemptSpec
from protocol.gangs import Gang

log = logging.getLogger(__name__)

GANG_LABEL = "io.vedette.gang"
SANDBOX_LABEL = "io.vedette.sandbox"
"""Of a member's sandbox: the attempt's id."""
REPOSITORY, TAG = "vedette-pause", "1"
PROGRAM = "pause"
CALL_TIMEOUT_SECONDS = 30
MEMORY_BYTES = 16 * 2**20
_RUNNING = "running"
# Waits for signals, again and again, by `platform.machine()`.
CODE: Mapping[str, bytes] = {
    # mov eax, 34 (pause); syscall; jmp back
    "x86_64": bytes.fromhex("b822000000 0f05 ebf7"),
    # x0 to x3 are 0; mov x8, 73 (ppoll); svc 0; b back
    "aarch64": bytes.fromhex("000080d2 010080d2 020080d2 030080d2 280980d2 010000d4 faffff17"),
}


def sandbox_name(attempt_id: str) -> str:
    """Return the name of a member's sandbox."""
    return f"vedette-net-{attempt_id}"


class NetworkContainers:
    """The switches and sandboxes of one agent on its engine. For one thread."""

    def __init__(self, url: str, owner: str) -> None:
        self._url = url
        self._owner = owner
        self._lock = Lock()
        self._connected: Any = None

    def ensure_switch(self, gang_id: str) -> Any:  # noqa: ANN401 - untyped SDK object
        """Return the switch of a gang; made if there is none that runs."""
        name = f"vedette-switch-{gang_id}-{self._owner[-8:]}"
        options = {
            "labels": {GANG_LABEL: gang_id},
            "network_mode": "none",
            # Nothing goes from the bridge to a tunnel but inside of it.
            "sysctls": {"net.ipv4.ip_forward": "0"},
        }
        return self._ensure(name, options)

    def ensure_sandbox(self, spec: AttemptSpec, gang: Gang, *, allows_egress: bool) -> Any:  # noqa: ANN401
        """Return the sandbox of a member; made if there is none that runs."""
        hosts = {member.name: member.address for member in gang.members}
        hosts |= {f"member-{member.rank}": member.address for member in gang.members}
        own = next(member.name for member in gang.members if member.rank == gang.rank)
        options = {
            "labels": {GANG_LABEL: gang.gang_id, SANDBOX_LABEL: spec.attempt_id},
            "network_mode": "bridge" if allows_egress else "none",
            "hostname": own,
            "extra_hosts": hosts,
        }
        return self._ensure(sandbox_name(spec.attempt_id), options)

    def sandbox(self, attempt_id: str) -> Any:  # noqa: ANN401
        """Return the sandbox of a member if it runs, else None."""
        container = self._get(sandbox_name(attempt_id))
        return container if container is not None and container.status == _RUNNING else None

    def has_started(self, attempt_id: str) -> bool:
        """Return whether the member's own container is there."""
        return self._get(container_name(attempt_id)) is not None

    def remove_others(
        self, attempt_ids: Collection[str], on_step: Callable[[str], object]
    ) -> set[str]:
        """Remove the sandboxes of other attempts, and switches that no attempt is left for.

        Args:
            attempt_ids: the attempts whose sandboxes stay.
            on_step: called before each removal.

        Returns:
            The gangs that are left.
        """
        with self._calling() as client:
            labels = [GANG_LABEL, f"{OWNER_LABEL}={self._owner}"]
            containers = client.containers.list(
                all=True, filters={"label": labels}, ignore_removed=True
            )
            sandboxes = [seen for seen in containers if SANDBOX_LABEL in seen.labels]
            left = [seen for seen in sandboxes if seen.labels[SANDBOX_LABEL] in attempt_ids]
            gang_ids = {seen.labels[GANG_LABEL] for seen in left}
            for container in containers:
                is_sandbox = SANDBOX_LABEL in container.labels
                if container not in left and (
                    is_sandbox or container.labels[GANG_LABEL] not in gang_ids
                ):
                    on_step("clean container")
                    with contextlib.suppress(NotFound):
                        container.remove(force=True, v=True)
            return gang_ids

    def close(self) -> None:
        """Disconnect; the containers stay."""
        with self._lock:
            client, self._connected = self._connected, None
        if client is not None:
            client.close()

    def _ensure(self, name: str, options: Mapping[str, Any]) -> Any:  # noqa: ANN401
        container = self._get(name)
        if container is not None and container.status == _RUNNING:
            return container
        with self._calling() as client:
            if container is not None:
                # The engine's restart ended it, and with it all that was in its namespace.
                container.remove(force=True, v=True)
            self._import_image(client)
            container = client.containers.create(
                f"{REPOSITORY}:{TAG}",
                [f"/{PROGRAM}"],
                **{**options, "labels": {**options["labels"], OWNER_LABEL: self._owner}},
                name=name,
                cap_drop=["ALL"],
                security_opt=["no-new-privileges:true"],
                read_only=True,
                mem_limit=MEMORY_BYTES,
                pids_limit=16,
            )
            container.start()
            container.reload()
        if container.status != _RUNNING:
            raise NetworkError(f"The container {name} ended at once.")
        return container

    def _import_image(self, client: Any) -> None:  # noqa: ANN401
        try:
            client.images.get(f"{REPOSITORY}:{TAG}")
        except ImageNotFound:
            machine = platform.machine()
            archive = image_of(machine, PROGRAM, CODE[machine])
            client.api.import_image_from_data(archive, repository=REPOSITORY, tag=TAG)

    def _get(self, name: str) -> Any:  # noqa: ANN401
        with self._calling() as client:
            try:
                return client.containers.get(name)
            except NotFound:
                return None

    @contextmanager
    def _calling(self) -> Iterator[Any]:
        try:
            yield self._client()
        except APIError as error:
            if error.is_server_error():
                raise BusyError(f"The Docker engine failed: {explain(error)}.") from error
            raise NetworkError(f"The Docker engine refused: {explain(error)}.") from error
        except (DockerException, requests.RequestException, OSError) as error:
            raise BusyError(f"The Docker engine does not answer: {error}.") from error

    def _client(self) -> Any:  # noqa: ANN401
        with self._lock:
            if self._connected is None:
                if self._url.startswith("unix://"):  # the SDK leaks a socket if none listens
                    with socket.socket(socket.AF_UNIX) as probe:
                        probe.connect(self._url.removeprefix("unix://"))
                self._connected = docker.DockerClient(
                    base_url=self._url, timeout=CALL_TIMEOUT_SECONDS
                )
            return self._connected


@contextmanager
def namespace_of(container: Any) -> Iterator[int]:  # noqa: ANN401
    """Yield the network namespace of a running container."""
    try:
        with opened(Path(f"/proc/{container.attrs['State']['Pid']}/ns/net")) as namespace:
            yield namespace
    except FileNotFoundError as error:
        raise BusyError(f"The container {container.name} has just ended.") from error
