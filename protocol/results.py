"""Results of jobs between agent and portal: files of output folders, and metrics of training.

A file's content is uploaded in parts of at most 64 MiB, each named by its SHA-256, as those of
datasets are (`protocol.datasets`); the portal says which it does not have yet. The portal's list of
a job's files mirrors the folders: a file that the job deletes leaves it, too.
"""

from typing import Annotated

import msgspec

from protocol.datasets import MAX_PATH_LENGTH, PART_BYTES, Count, Digest

MAX_FILES = 1000
"""Of one announcement."""
MAX_JOB_FILES = 10_000
"""Of all output folders of a job."""
MAX_FILE_PARTS = 16_384
"""Of a file: 1 TiB."""
MAX_ANNOUNCED_PARTS = 20_000
"""Of all files of an announcement, so that its body stays small."""
MAX_MESSAGE_LENGTH = 1000
MEASUREMENT = "job_metric"
"""Of metrics that a job prints: tags `job`, `attempt` and `name`, fields `value` and `step`."""
MAX_METRIC_NAME_LENGTH = 100

ResultPath = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_PATH_LENGTH)]


class ResultPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a file's content."""

    sha256: Digest
    size_bytes: Annotated[int, msgspec.Meta(ge=0, le=PART_BYTES)]


class ResultFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of an output folder; `path` begins with the folder's path in the container."""

    path: ResultPath
    size_bytes: Count
    modified_at_ns: int
    sha256: Digest
    parts: Annotated[list[ResultPart], msgspec.Meta(max_length=MAX_FILE_PARTS)] = []


class ResultUpload(msgspec.Struct, frozen=True, kw_only=True):
    """POST /agent/v1/results: files of an attempt, new or changed.

    Files whose parts are all there are stored at once; the others when they are announced again.

    Attributes:
        uploaded: parts of `files` that were put into the tenant's bucket, which the portal can't
            look into.
        removed: files that the job has deleted since they were stored.
        pending_files: files that wait to be uploaded, with `pending_bytes`.
        message: what is left out, and what to do about it.
    """

    attempt_id: str
    files: Annotated[list[ResultFile], msgspec.Meta(max_length=MAX_FILES)] = []
    uploaded: Annotated[list[Digest], msgspec.Meta(max_length=MAX_ANNOUNCED_PARTS)] = []
    removed: Annotated[list[ResultPath], msgspec.Meta(max_length=MAX_FILES)] = []
    pending_files: Count = 0
    pending_bytes: Count = 0
    message: Annotated[str, msgspec.Meta(max_length=MAX_MESSAGE_LENGTH)] = ""


class PartTarget(msgspec.Struct, frozen=True, kw_only=True):
    """Where to PUT a part: `url` is absolute for a bucket, else a path of the agent API."""

    sha256: str
    url: str


class ResultReply(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to `ResultUpload`.

    Attributes:
        stored: the paths of announced files that the portal has now.
        missing: parts to upload before the next announcement, not all of very many.
        refused: files that won't be stored as they are, by path, and why.
        is_unknown: the appliance has no such attempt; nothing more of it should be sent.
    """

    stored: list[str] = []
    missing: list[PartTarget] = []
    refused: dict[str, str] = {}
    is_unknown: bool = False


class ResultPage(msgspec.Struct, frozen=True, kw_only=True):
    """GET /agent/v1/results/ATTEMPT?after=PATH: the files that the attempt's job has, by path.

    The page ends before the last file if `has_more`.
    """

    files: list[ResultFile] = []
    has_more: bool = False


class PartSource(msgspec.Struct, frozen=True, kw_only=True):
    """GET /agent/v1/results/ATTEMPT/parts/SHA256: where to GET a part, as `PartTarget` says."""

    url: str


class OutputFolders(msgspec.Struct, frozen=True, kw_only=True):
    """The output folders of an attempt.

    An appliance that has the folders of `previous_attempt_id` gives them to this attempt as they
    are. Another one fetches the job's files first, unless it is empty: the job has never run.
    """

    paths: list[str]
    previous_attempt_id: str = ""


def is_result_path(path: str, outputs: list[str]) -> bool:
    """Return whether a path is that of a file below one of the output folders."""
    if not path.isprintable() or any(part in {"", ".", ".."} for part in path.split("/")[1:]):
        return False
    return any(path.startswith(f"{output.rstrip('/')}/") for output in outputs)
