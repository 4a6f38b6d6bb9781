"""Challenges: what an appliance computes for the portal, so that its hardware is what it claims.

The portal orders a challenge with the desired state, for an appliance without jobs. The agent runs
a program in a container on all of its GPUs at once, stops it as soon as a job should start, and
reports the result until the order is gone.
"""

from typing import Annotated

import msgspec

from protocol.inventory import MAX_GPUS, Text

# 2**32 leaves.
MAX_PATH = 32
MAX_OPENINGS = 16
MAX_PROBLEM_LENGTH = 500
CPU = "cpu"
Hash = Annotated[str, msgspec.Meta(max_length=64)]
Word = Annotated[int, msgspec.Meta(ge=0)]


class ChallengeOrder(msgspec.Struct, frozen=True, kw_only=True):
    """The agent should run a challenge.

    Attributes:
        number: one that the agent has answered is not run again.
        seed: of everything that is computed, 0 to 2**63 - 1.
        image: of the container; it has Python 3.9 or later as `python3`.
        gpu_uuids: all of them are challenged at once.
        memory_percent: how much of a GPU's free memory is filled.
        rounds: of mixing, for a word.
        leaves: walks over each GPU's memory, a power of two.
        steps: of a walk.
        openings: how many leaves of each GPU are reported.
        busy_seconds: for how long each GPU reads its memory.
        cpu_words: memory that the CPU walks over.
        cpu_leaves: walks over it, a power of two.
        disk_bytes: written and read.
        network_bytes: received from the portal and sent to it.
        limit_seconds: for the container, without the pull of its image.
    """

    number: int
    seed: int
    image: str
    gpu_uuids: list[str] = []
    memory_percent: int = 97
    rounds: int = 8
    leaves: int = 2**18
    steps: int = 64
    openings: int = 2
    busy_seconds: float = 20.0
    cpu_words: int = 2**15
    cpu_leaves: int = 64
    disk_bytes: int = 256 * 2**20
    network_bytes: int = 8 * 2**20
    limit_seconds: float = 180.0


class Opening(msgspec.Struct, frozen=True, kw_only=True):
    """A leaf, its value, and the hashes that lead to the root."""

    leaf: Word
    value: Word
    path: Annotated[list[Hash], msgspec.Meta(max_length=MAX_PATH)]


class DeviceAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What a GPU, or the CPU, answered; figures are 0 where they are unknown.

    Attributes:
        uuid: of the GPU, or `cpu`.
        model, pci_address, memory_bytes, processor_count, clock_hertz, compute_capability: as the
            driver reports them in the container.
        words: that were in memory.
        root: of the tree of leaves.
        openings: those that the root asks for.
        fill_seconds: to fill the memory.
        walk_seconds: for all walks.
        read_bytes_per_second: of the device's memory.
        copy_bytes_per_second: from the host's memory to the device.
        problem: why there is no answer.
    """

    uuid: Text
    model: Text = ""
    pci_address: Text = ""
    memory_bytes: int = 0
    processor_count: int = 0
    clock_hertz: int = 0
    compute_capability: Text = ""
    words: Word = 0
    root: Hash = ""
    openings: Annotated[list[Opening], msgspec.Meta(max_length=MAX_OPENINGS)] = []
    fill_seconds: float = 0.0
    walk_seconds: float = 0.0
    read_bytes_per_second: float = 0.0
    copy_bytes_per_second: float = 0.0
    problem: Annotated[str, msgspec.Meta(max_length=MAX_PROBLEM_LENGTH)] = ""


class ChallengeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What the program prints.

    Attributes:
        devices: the CPU and the GPUs.
        disk_written_bytes_per_second, disk_read_bytes_per_second: 0 if unknown.
        boot_id: of the kernel under the container.
        seconds: from the start of the program to its end.
        clock_ns: the appliance's time at the end.
    """

    devices: Annotated[list[DeviceAnswer], msgspec.Meta(max_length=MAX_GPUS + 1)] = []
    disk_written_bytes_per_second: float = 0.0
    disk_read_bytes_per_second: float = 0.0
    boot_id: Text = ""
    seconds: float = 0.0
    clock_ns: int = 0


class ChallengeResult(msgspec.Struct, frozen=True, kw_only=True):
    """How the challenge with a number ended.

    Attributes:
        number: of the order.
        answer: what the program printed; None if it did not end well.
        problem: why it did not.
        is_interrupted: a job came, or the agent stopped: the appliance is not to blame.
        received_bytes_per_second, sent_bytes_per_second: between the agent and the portal.
    """

    number: int
    answer: ChallengeAnswer | None = None
    problem: Annotated[str, msgspec.Meta(max_length=MAX_PROBLEM_LENGTH)] = ""
    is_interrupted: bool = False
    received_bytes_per_second: float = 0.0
    sent_bytes_per_second: float = 0.0


def shortened(text: str) -> str:
    """Return a problem that fits into the message."""
    text = text.strip()
    return text if len(text) <= MAX_PROBLEM_LENGTH else text[: MAX_PROBLEM_LENGTH - 1] + "…"
