"""The processes on an appliance's GPUs, as its agent lists them: names only, never arguments."""

from typing import Annotated

import msgspec

from protocol.inventory import Text

MAX_GPU_PROCESSES = 512


class GPUProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process on a GPU, or on a MIG slice, whose UUID `uuid` is then.

    `name` is the kernel's name of its program, "" if hidden from the agent. `memory_bytes` is 0 if
    the driver does not report it. `owner` is `job`, `container` (one that runs no job) or `host`;
    `job` is a job's ID, `container` the start of a container's.
    """

    pid: int
    name: Text
    gpu: int
    uuid: Text
    owner: Text
    memory_bytes: int = 0
    job: Text = ""
    container: Text = ""


GPUProcesses = Annotated[list[GPUProcess], msgspec.Meta(max_length=MAX_GPU_PROCESSES)]
