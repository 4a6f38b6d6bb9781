"""What the agent adds to readings of GPUs: the job that holds the GPU, and names of lost ones."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from plugins.base import ADDRESS_PREFIX, GPUTags
from timeseries.points import Point

# A reading with one of these says itself whose it is.
_SAYS_OWNER = frozenset({"job", "owner"})


def named(points: Sequence[Point], known: Callable[[], GPUTags]) -> list[Point]:
    """Return the points, a GPU that can't say its UUID any more with the one that it had.

    Args:
        known: see `PluginContext.known_gpus`; asked only where there is such a GPU.
    """
    if not any(_is_nameless(point) for point in points):
        return list(points)
    tags_at = known()
    return [
        replace(point, tags={**point.tags, **tags_at[point.tags["gpu"]]})
        if _is_nameless(point) and point.tags["gpu"] in tags_at
        else point
        for point in points
    ]


def with_jobs(points: Sequence[Point], holders: Mapping[str, str]) -> list[Point]:
    """Return the points, each of a GPU that a job holds with the tag `job`.

    The slices of a GPU that is held as a whole are the job's too.

    Args:
        holders: UUID of a GPU or slice to the id of the job that holds it.
    """
    if not holders:
        return list(points)
    held = {
        point.tags["gpu"]: holders[uuid]
        for point in points
        if point.measurement == "gpu" and (uuid := point.tags.get("uuid", "")) in holders
    }
    return [
        replace(point, tags={**point.tags, "job": job})
        if (job := _job(point, holders, held)) is not None
        else point
        for point in points
    ]


def _is_nameless(point: Point) -> bool:
    if point.measurement != "gpu":
        return False
    uuid = point.tags.get("uuid", "")
    return not uuid or uuid.startswith(ADDRESS_PREFIX)


def _job(point: Point, holders: Mapping[str, str], held: Mapping[str, str]) -> str | None:
    tags = point.tags
    if not tags.keys().isdisjoint(_SAYS_OWNER):
        return None
    job = holders.get(tags.get("uuid", ""))
    if job is None and point.measurement == "gpu_slice":
        return held.get(tags.get("gpu", ""))
    return job
