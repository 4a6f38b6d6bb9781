"""Container storage of an appliance: its images and stopped containers, and which to delete.

The agent reports them every ten minutes, sooner when jobs with other images have come or gone, and
when `DesiredState.storage_generation` changes. The answer is what the portal wants deleted, by the
tenant's policy and the jobs that wait there now.
"""

from typing import Annotated

import msgspec

MAX_ITEMS = 2000
MAX_REPORT_BYTES = 2 * 1024 * 1024
Text = Annotated[str, msgspec.Meta(max_length=500)]


class StoredImage(msgspec.Struct, frozen=True, kw_only=True):
    """An image of the engine.

    Attributes:
        names: tags and digests, such as `acme/train:1`.
        size_bytes: with the layers that it shares with others.
        seen_at_ns: when the agent saw it first.
        used_at_ns: when a job used it last; 0 if none did.
        is_in_use: whether a container has it, running or not.
    """

    image_id: Text
    names: Annotated[list[Text], msgspec.Meta(max_length=100)] = []
    size_bytes: int = 0
    seen_at_ns: int = 0
    used_at_ns: int = 0
    is_in_use: bool = False


class StoppedContainer(msgspec.Struct, frozen=True, kw_only=True):
    """A stopped container that belongs to no job; the agent deletes those of jobs itself."""

    container_id: Text
    name: Text = ""
    image: Text = ""
    finished_at_ns: int = 0


class CleanupResult(msgspec.Struct, frozen=True, kw_only=True):
    """What the last cleanup of the agent deleted."""

    finished_at_ns: int
    images: int = 0
    containers: int = 0
    freed_bytes: int = 0
    errors: Annotated[list[Text], msgspec.Meta(max_length=20)] = []


class StorageReport(msgspec.Struct, frozen=True, kw_only=True):
    """POST /agent/v1/storage; the disk is the one of the engine's data, 0 if unknown."""

    images: Annotated[list[StoredImage], msgspec.Meta(max_length=MAX_ITEMS)] = []
    containers: Annotated[list[StoppedContainer], msgspec.Meta(max_length=MAX_ITEMS)] = []
    disk_total_bytes: int = 0
    disk_free_bytes: int = 0
    cleanup: CleanupResult | None = None


class CleanupOrder(msgspec.Struct, frozen=True, kw_only=True):
    """The answer: the ids of what to delete. The agent skips what is in use by then."""

    images: list[str] = []
    containers: list[str] = []


def full_image_name(name: str) -> str:
    """Return an image's name with registry and tag or digest, as `docker.io/library/python:3`."""
    repository, _, digest = name.partition("@")
    host, slash, _ = repository.partition("/")
    if not slash:
        repository = f"docker.io/library/{repository}"
    elif not ("." in host or ":" in host or host == "localhost"):
        repository = f"docker.io/{repository}"
    path, _, last = repository.rpartition("/")
    bare, _, tag = last.partition(":")
    return f"{path}/{bare}@{digest}" if digest else f"{path}/{bare}:{tag or 'latest'}"
