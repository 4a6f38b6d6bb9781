"""Results of jobs between agent and portal: files of output folders, and metrics of training.

A file's content is uploaded in parts of at most 64 MiB, each named by its SHA-256, as those of
datasets are (`protocol.datasets`); the portal says which it does not have yet.
"""

from typing import Annotated

import msgspec

from protocol.datasets import MAX_PATH_LENGTH, Count, Digest

MAX_FILES = 1000
"""Of one announcement."""
MEASUREMENT = "job_metric"
"""Of metrics that a job prints: tags `job`, `attempt` and `name`, fields `value` and `step`."""


class ResultPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a file's content."""

    sha256: Digest
    size_bytes: Count


class ResultFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of an output folder; `path` begins with the folder's path in the container."""

    path: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_PATH_LENGTH)]
    size_bytes: Count
    modified_at_ns: int
    sha256: Digest
    parts: list[ResultPart] = []


class ResultUpload(msgspec.Struct, frozen=True, kw_only=True):
    """POST /agent/v1/results: files of an attempt, new or changed.

    Files whose parts are all there are stored at once; the others when they are announced again.
    """

    attempt_id: str
    files: Annotated[list[ResultFile], msgspec.Meta(max_length=MAX_FILES)]


class PartTarget(msgspec.Struct, frozen=True, kw_only=True):
    """Where to PUT a part: `url` is absolute for a bucket, else a path of the agent API."""

    sha256: str
    url: str


class ResultReply(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to `ResultUpload`: the parts that are missing, and files that were refused, by path.

    `is_unknown`: the appliance has no such attempt; nothing more of it should be sent.
    """

    missing: list[PartTarget] = []
    refused: dict[str, str] = {}
    is_unknown: bool = False


class OutputFolders(msgspec.Struct, frozen=True, kw_only=True):
    """The output folders of an attempt, and the files that earlier attempts left.

    `restore` is fetched before it starts, from `GET /agent/v1/results/ATTEMPT/files/INDEX`, if the
    appliance does not have them.
    """

    paths: list[str]
    restore: list[ResultFile] = []
