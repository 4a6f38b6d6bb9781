"""Probes of a Docker engine: a container that ends at once, started as those of attempts are.

Its image is a static program of a few bytes, so that no registry is needed. What keeps any job from
starting, such as a missing bridge or a broken GPU runtime, fails it, too.
"""

import platform
from collections.abc import Mapping
from typing import Any

import requests
from docker.errors import DockerException

from jobqueue.executors.base import ExecutorError
from jobqueue.executors.docker import mapping
from jobqueue.executors.docker.own_containers import OwnContainers
from jobqueue.executors.docker.static_image import image_of
from protocol.attempts import AttemptSpec, ProbeOrder

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
