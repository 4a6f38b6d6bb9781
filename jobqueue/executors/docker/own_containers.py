"""Containers of the agent itself, such as probes, and images for them that are made here.

They are confined as those of jobs, one at a time of each name. An image has one static program of a
few bytes, so that no registry is needed.

A probe is a container that ends at once, started as those of attempts are. What keeps any job from
starting, such as a missing bridge or a broken GPU runtime, fails it, too.
"""

import contextlib
import io
import platform
import struct
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import requests
from docker.errors import DockerException, NotFound

from jobqueue.executors.base import OWNER_LABEL, ExecutorError
from jobqueue.executors.docker import mapping
from jobqueue.executors.registry_token import CurrentRegistryToken
from protocol.attempts import AttemptSpec, ProbeOrder

_LOAD_ADDRESS = 0x400000
ELF_MACHINES: Mapping[str, int] = {"x86_64": 62, "aarch64": 183}
"""The number of a processor in ELF, by `platform.machine()`."""
# Of probes.
REPOSITORY, TAG = "vedette-probe", "1"
NAME = "vedette-probe"
PROGRAM = "probe"
WAIT_SECONDS = 60
MEMORY_BYTES = 64 * 2**20
# exit(0), by `platform.machine()`.
MACHINES: Mapping[str, bytes] = {
    "x86_64": bytes.fromhex("31ff b83c000000 0f05"),  # xor edi, edi; mov eax, 60; syscall
    "aarch64": bytes.fromhex("000080d2 a80b80d2 010000d4"),  # mov x0, 0; mov x8, 93; svc 0
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnContainers:
    """Creates and removes them on one engine.

    Attributes:
        client: connects to the engine.
        owner: the appliance's id.
        registry_token: the credentials of the portal's registry.
        pids_limit: most processes of a container.
    """

    client: Callable[[], Any]
    owner: str
    registry_token: CurrentRegistryToken
    pids_limit: int

    def create(
        self,
        client: Any,  # noqa: ANN401 - untyped SDK
        spec: AttemptSpec,
        options: Mapping[str, object] | None = None,
    ) -> Any:  # noqa: ANN401 - untyped SDK
        """Create the container of a spec, with options beside those of an attempt's."""
        created = mapping.container_options(
            spec, owner=self.owner, pids_limit=self.pids_limit, engine=client.info()
        )
        created |= {"name": self._name(spec.name), "labels": {OWNER_LABEL: self.owner}}
        return client.containers.create(**created | dict(options or {}))

    def remove(self, client: Any, name: str) -> None:  # noqa: ANN401 - untyped SDK
        """Remove the container of a name, if there is one, with its volumes."""
        with contextlib.suppress(NotFound):
            client.containers.get(self._name(name)).remove(force=True, v=True)

    def _name(self, name: str) -> str:
        return f"{name}-{self.owner}"


def image_of(machine: str, program_name: str, code: bytes) -> bytes:
    """Return the file system of an image with one program, as a tar archive."""
    program = _program(ELF_MACHINES[machine], code)
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        entry = tarfile.TarInfo(program_name)
        entry.size, entry.mode = len(program), 0o755
        tar.addfile(entry, io.BytesIO(program))
    return archive.getvalue()


def _program(machine: int, code: bytes) -> bytes:
    """Return an ELF file with one segment: its headers and the code.

    Source: Tool Interface Standard, "Executable and Linking Format"; ELF-64 Object File Format.
    """
    header_bytes, segment_bytes = 64, 56
    code_at = header_bytes + segment_bytes
    size = code_at + len(code)
    identity = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)  # 64 bits, little-endian, version 1
    entry = _LOAD_ADDRESS + code_at
    sizes = (header_bytes, segment_bytes, 1, 0, 0, 0)
    header = struct.pack(
        "<16sHHIQQQIHHHHHH", identity, 2, machine, 1, entry, header_bytes, 0, 0, *sizes
    )
    address = _LOAD_ADDRESS
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, address, address, size, size, 0x1000)
    return header + segment + code


class DockerProbe:
    """Runs probes on one engine."""

    def __init__(self, containers: OwnContainers) -> None:
        self._containers = containers

    def run(self, order: ProbeOrder) -> str:
        """Run a container that ends at once; return why it failed, or ""."""
        try:
            client = self._containers.client()
            if order.image:
                credentials = self._containers.registry_token.credentials_for(order.image)
                client.api.inspect_distribution(order.image, auth_config=credentials)
            return self._run_container(client, order)
        except (DockerException, requests.RequestException, ExecutorError) as error:
            return mapping.explain(error)

    def _run_container(self, client: Any, order: ProbeOrder) -> str:  # noqa: ANN401 - untyped SDK
        archive = image_archive(platform.machine())
        client.api.import_image_from_data(archive, repository=REPOSITORY, tag=TAG)
        self._containers.remove(client, NAME)  # what an agent that was killed has left
        spec = AttemptSpec(
            attempt_id="",
            job_id="",
            name=NAME,
            image=f"{REPOSITORY}:{TAG}",
            command=[f"/{PROGRAM}"],
            gpu_uuids=order.gpu_uuids,
            memory_bytes=MEMORY_BYTES,
        )
        try:
            container = self._containers.create(client, spec)
            container.start()
            status = container.wait(timeout=WAIT_SECONDS)["StatusCode"]
        finally:
            self._containers.remove(client, NAME)
        return "" if status == 0 else f"The probe exited with code {status}."


def image_archive(machine: str) -> bytes:
    """Return the file system of the image, as a tar archive."""
    return image_of(machine, PROGRAM, MACHINES[machine])
