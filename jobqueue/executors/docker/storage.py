"""Images and stopped containers of a Docker engine: what there is, and deleting it."""

import shutil
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any

import requests
from docker.errors import APIError, DockerException, ImageNotFound, NotFound

from core.clock import Clock, to_ns
from jobqueue.executors.base import ATTEMPT_LABEL, ExecutorError
from jobqueue.executors.docker.mapping import engine_time_ns
from jobqueue.executors.image_times import ImageTimes
from protocol.storage import (
    MAX_ITEMS,
    CleanupOrder,
    CleanupResult,
    StoppedContainer,
    StorageReport,
    StoredImage,
)

_STOPPED = ["exited", "created", "dead"]
# Stopped containers of others that are listed, each at the cost of a request.
MAX_CONTAINERS = 200
_MAX_ERRORS = 20


class DockerStorage:
    """The storage of one engine; thread-safe.

    `client` returns the SDK's client, and `state_path` is the file of the images' times.
    """

    def __init__(self, client: Callable[[], Any], state_path: Path, clock: Clock) -> None:
        self._client = client
        self._times = ImageTimes(state_path, clock)
        self._clock = clock

    def note_use(self, image_id: str) -> None:
        """Record that a job uses an image now."""
        self._times.note_use(image_id)

    def report(self) -> StorageReport:
        """Return what is on the engine.

        Raises:
            ExecutorError: the engine does not answer.
        """
        try:
            api = self._client().api
            containers = api.containers(all=True)
            images = api.images()[:MAX_ITEMS]
            in_use = {container["ImageID"] for container in containers}
            jobs = [
                container
                for container in containers
                if ATTEMPT_LABEL in (container["Labels"] or {})
            ]
            times = self._times.update(
                {image["Id"] for image in images}, in_use={job["ImageID"] for job in jobs}
            )
            stopped = [
                container
                for container in containers
                if container["State"] in _STOPPED
                and ATTEMPT_LABEL not in (container.get("Labels") or {})
            ]
            total_bytes, free_bytes = _disk(api.info().get("DockerRootDir", ""))
            return StorageReport(
                images=[
                    StoredImage(
                        image_id=image["Id"],
                        names=_names(image),
                        size_bytes=image["Size"],
                        seen_at_ns=times[image["Id"]].seen_at_ns,
                        used_at_ns=times[image["Id"]].used_at_ns,
                        is_in_use=image["Id"] in in_use,
                    )
                    for image in images
                ],
                containers=[
                    StoppedContainer(
                        container_id=container["Id"],
                        name=(container.get("Names") or [""])[0].removeprefix("/"),
                        image=container["Image"],
                        finished_at_ns=_finished_at_ns(api, container),
                    )
                    for container in stopped[:MAX_CONTAINERS]
                ],
                disk_total_bytes=total_bytes,
                disk_free_bytes=free_bytes,
            )
        except (DockerException, requests.RequestException) as error:
            raise ExecutorError(f"can't read the container storage: {error}") from error

    def clean(self, order: CleanupOrder, *, keep: Collection[str]) -> CleanupResult:
        """Delete what the portal ordered, but no image of the names to keep; return the result.

        The engine itself refuses to delete what a container uses.

        Raises:
            ExecutorError: the engine does not answer.
        """
        client = self._client()
        before = self._free_bytes()
        errors: list[str] = []
        protected = {ident for name in keep if (ident := self._image_id(name))}
        containers = sum(
            _deletes(partial(client.api.remove_container, container, v=True), errors)
            for container in order.containers
        )
        images = sum(
            _deletes(partial(self._delete_image, image), errors)
            for image in order.images
            if image not in protected
        )
        return CleanupResult(
            finished_at_ns=to_ns(self._clock()),
            images=images,
            containers=containers,
            freed_bytes=max(self._free_bytes() - before, 0),
            errors=errors[:_MAX_ERRORS],
        )

    def _delete_image(self, image_id: str) -> None:
        api = self._client().api
        # By its names: by its id, the engine refuses one with several of them.
        for name in api.inspect_image(image_id).get("RepoTags") or [image_id]:
            api.remove_image(name)

    def _image_id(self, name: str) -> str:
        try:
            return str(self._client().api.inspect_image(name)["Id"])
        except ImageNotFound:
            return ""
        except (DockerException, requests.RequestException) as error:
            raise ExecutorError(f"can't inspect {name}: {error}") from error

    def _free_bytes(self) -> int:
        try:
            return _disk(self._client().info().get("DockerRootDir", ""))[1]
        except (DockerException, requests.RequestException) as error:
            raise ExecutorError(f"can't read the container storage: {error}") from error


def _names(image: Any) -> list[str]:  # noqa: ANN401 - the engine's JSON
    names = [*(image.get("RepoTags") or []), *(image.get("RepoDigests") or [])]
    return [name for name in names if not name.startswith("<none>")][:100]


def _finished_at_ns(api: Any, container: Any) -> int:  # noqa: ANN401 - untyped SDK
    created_ns = int(container["Created"]) * 1_000_000_000
    try:
        text = api.inspect_container(container["Id"])["State"].get("FinishedAt", "")
    except NotFound:
        return created_ns
    return engine_time_ns(text) or created_ns


def _disk(folder: str) -> tuple[int, int]:
    """Return total and free bytes of the disk with the engine's data; 0 if it isn't here."""
    try:
        usage = shutil.disk_usage(folder)
    except OSError:
        return 0, 0
    return usage.total, usage.free


def _deletes(delete: Callable[[], object], errors: list[str]) -> bool:
    try:
        delete()
    except APIError as error:
        if error.status_code != requests.codes.not_found:
            errors.append(str(error.explanation or error)[:500])
        return False
    except (DockerException, requests.RequestException) as error:
        raise ExecutorError(f"can't clean up: {error}") from error
    return True
