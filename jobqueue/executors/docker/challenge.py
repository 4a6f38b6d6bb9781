"""Challenges on a Docker engine: the program in a container that is confined as those of jobs."""

import contextlib
import io
import tarfile
from pathlib import Path
from threading import Event
from typing import Any

import msgspec
import requests
from docker.errors import DockerException, ImageNotFound

import protocol.challenge_walk
from jobqueue.executors import challenge
from jobqueue.executors.base import ExecutorError
from jobqueue.executors.challenge.program import MODULE_NAME
from jobqueue.executors.docker import mapping
from jobqueue.executors.docker.own_containers import OwnContainers
from jobqueue.executors.docker.pull import PullError, pull
from protocol.attempts import AttemptSpec
from protocol.challenges import ChallengeAnswer, ChallengeOrder, ChallengeResult, shortened

NAME = "vedette-challenge"
MEMORY_BYTES = MEMORY_BYTES_OF_GPU = 2**30
# Of the answer of 128 GPUs with all that they may open.
MAX_ANSWER_BYTES = 4 * 2**20
FOLDER = f"/{NAME}"


class DockerChallenges:
    """Runs challenges on one engine."""

    def __init__(self, containers: OwnContainers) -> None:
        self._containers = containers
        self._cancelled = Event()

    def run(self, order: ChallengeOrder) -> ChallengeResult:
        """Run the program in a container; what keeps it from an answer is the problem."""
        self._cancelled.clear()
        answer, problem = None, ""
        try:
            client = self._containers.client()
            self._containers.remove(client, NAME)  # what an agent that was killed has left
            self._pull(client, order.image)
            answer = self._run_container(client, order)
        except (DockerException, requests.RequestException) as error:
            problem = mapping.explain(error)
        except (ExecutorError, PullError, msgspec.MsgspecError) as error:
            problem = str(error)
        if self._cancelled.is_set():
            return ChallengeResult(number=order.number, is_interrupted=True)
        return ChallengeResult(number=order.number, answer=answer, problem=shortened(problem))

    def cancel(self) -> None:
        """Remove the container: its GPUs are free when this returns."""
        self._cancelled.set()
        with contextlib.suppress(DockerException, requests.RequestException, ExecutorError):
            self._containers.remove(self._containers.client(), NAME)

    def _pull(self, client: Any, image: str) -> None:  # noqa: ANN401 - untyped SDK
        try:
            client.images.get(image)
        except ImageNotFound:
            credentials = self._containers.registry_token.credentials_for(image)
            progress = lambda _text: not self._cancelled.is_set()  # noqa: E731 - one use
            pull(client.api, image, credentials=credentials, on_progress=progress)

    def _run_container(self, client: Any, order: ChallengeOrder) -> ChallengeAnswer:  # noqa: ANN401 - untyped SDK
        text = msgspec.json.encode(order).decode()
        spec = AttemptSpec(
            attempt_id="",
            job_id="",
            name=NAME,
            image=order.image,
            command=["python3", "-m", MODULE_NAME, text],
            working_dir=FOLDER,
            gpu_uuids=order.gpu_uuids,
            memory_bytes=MEMORY_BYTES + MEMORY_BYTES_OF_GPU * len(order.gpu_uuids),
        )
        options = {"nano_cpus": None, "entrypoint": list[str](), "network_disabled": True}
        try:
            container = self._containers.create(client, spec, options)
            container.put_archive("/", program_archive())
            if not self._cancelled.is_set():
                container.start()
            status = container.wait(timeout=order.limit_seconds)["StatusCode"]
            output = bytearray()
            for part in container.logs(stream=True, stderr=status != 0):
                output += part
                if len(output) > MAX_ANSWER_BYTES:
                    raise ExecutorError("The program printed too much.")
        finally:
            self._containers.remove(client, NAME)
        if status:
            words = output.decode("utf-8", "replace").strip().rpartition("\n")[2]
            raise ExecutorError(f"The program ended with code {status}: {words}")
        return msgspec.json.decode(bytes(output), type=ChallengeAnswer)


def program_archive() -> bytes:
    """Return the program with its modules, as a tar archive for the root of a container."""
    own = Path(challenge.__path__[0])
    walk = Path(protocol.challenge_walk.__file__)
    package = "jobqueue/executors/challenge"
    files = {f"{package}/{name}.py": own / f"{name}.py" for name in ("cuda", "kernels", "program")}
    content = {name: path.read_bytes() for name, path in files.items()}
    content["protocol/challenge_walk.py"] = walk.read_bytes()
    for folder in ("protocol", "jobqueue", "jobqueue/executors", package):
        content[f"{folder}/__init__.py"] = b""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, data in content.items():
            entry = tarfile.TarInfo(f"{FOLDER[1:]}/{name}")
            entry.size, entry.mode = len(data), 0o644
            tar.addfile(entry, io.BytesIO(data))
    return archive.getvalue()
