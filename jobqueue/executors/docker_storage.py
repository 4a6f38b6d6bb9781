"""Images and stopped containers of a Docker engine: what there is, and deleting it.

Docker doesn't know when an image was pulled or used last, so a file has when each was seen first,
and used by a job last.
"""

import logging
import shutil
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

import msgspec
import requests
from docker.errors import APIError, DockerException, ImageNotFound, NotFound

from core.clock import Clock, to_ns
from jobqueue.executors.base import ATTEMPT_LABEL, ExecutorError
from jobqueue.executors.docker_mapping import engine_time_ns
from protocol.storage import (
    MAX_ITEMS,
    CleanupOrder,
    CleanupResult,
    StoppedContainer,
    StorageReport,
    StoredImage,
)

log = logging.getLogger(__name__)

_STOPPED = ["exited", "created", "dead"]
# Stopped containers of others that are listed, each at the cost of a request.
MAX_CONTAINERS = 200
_MAX_ERRORS = 20


class _Times(msgspec.Struct, array_like=True):
    seen_at_ns: int
    used_at_ns: int = 0


class DockerStorage:
    """The storage of one engine; thread-safe.

    `client` returns the SDK's client, and `state_path` is the file of the images' times.
    """

    def __init__(self, client: Callable[[], Any], state_path: Path, clock: Clock) -> None:
        self._client = client
        self._state_path = state_path
        self._clock = clock
        self._lock = Lock()

    def note_use(self, image_id: str) -> None:
        """Record that a job uses an image now."""
        with self._lock:
            known, now_ns = self._times(), to_ns(self._clock())
            seen_at_ns = known[image_id].seen_at_ns if image_id in known else now_ns
            self._save(known | {image_id: _Times(seen_at_ns, now_ns)})

    def report(self) -> StorageReport:
        """Return what is on the engine.

        Raises:
            ExecutorError: the engine does not answer.
        """
        try:
            api = self._client().api
            containers = api.containers(all=True)
            images = api.images()[:MAX_ITEMS]
            times = self._note(containers, {one["Id"] for one in images})
            in_use = {one["ImageID"] for one in containers}
            stopped = [
                one
                for one in containers
                if one["State"] in _STOPPED and ATTEMPT_LABEL not in (one.get("Labels") or {})
            ]
            total_bytes, free_bytes = _disk(api.info().get("DockerRootDir", ""))
            return StorageReport(
                images=[
                    StoredImage(
                        image_id=one["Id"],
                        names=_names(one),
                        size_bytes=one["Size"],
                        seen_at_ns=times[one["Id"]].seen_at_ns,
                        used_at_ns=times[one["Id"]].used_at_ns,
                        is_in_use=one["Id"] in in_use,
                    )
                    for one in images
                ],
                containers=[
                    StoppedContainer(
                        container_id=one["Id"],
                        name=(one.get("Names") or [""])[0].removeprefix("/"),
                        image=one["Image"],
                        finished_at_ns=_finished_at_ns(api, one),
                    )
                    for one in stopped[:MAX_CONTAINERS]
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
        kept = {ident for name in keep if (ident := self._image_id(name))}
        containers = sum(
            _deletes(partial(client.api.remove_container, one, v=True), errors)
            for one in order.containers
        )
        images = sum(
            _deletes(partial(self._delete_image, one), errors)
            for one in order.images
            if one not in kept
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

    def _note(self, containers: Collection[Any], images: Collection[str]) -> dict[str, _Times]:
        """Record the images that are new, and those that jobs use now; return the times of all."""
        now_ns = to_ns(self._clock())
        in_use = {one["ImageID"] for one in containers if ATTEMPT_LABEL in (one["Labels"] or {})}
        with self._lock:
            known = self._times()
            times = {ident: known.get(ident) or _Times(now_ns) for ident in images}
            for ident in in_use & times.keys():
                times[ident] = _Times(times[ident].seen_at_ns, now_ns)
            if times != known:
                self._save(times)
            return times

    def _times(self) -> dict[str, _Times]:
        try:
            return msgspec.json.decode(self._state_path.read_bytes(), type=dict[str, _Times])
        except (FileNotFoundError, msgspec.DecodeError):
            return {}

    def _save(self, times: dict[str, _Times]) -> None:
        self._state_path.parent.mkdir(parents=True, exist_ok=True)
        draft = self._state_path.with_suffix(".new")
        draft.write_bytes(msgspec.json.encode(times))
        draft.replace(self._state_path)


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
        found = shutil.disk_usage(folder)
    except OSError:
        return 0, 0
    return found.total, found.free


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
