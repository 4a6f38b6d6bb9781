"""Checks of the answer to a challenge: whether it is right, whole, and fast enough. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from core.clock import from_ns
from marketplace.verification.findings import Finding, failure, note, warning
from marketplace.verification.inventory_checks import SIMULATED, shares_memory
from marketplace.verification.known import KnownModel, model_of
from protocol.challenge_walk import WORD_BYTES, opened, root_of, walk, word_at
from protocol.challenges import (
    CPU,
    ChallengeAnswer,
    ChallengeOrder,
    ChallengeResult,
    DeviceAnswer,
)
from protocol.inventory import GPUInfo, Inventory

GIGA = 1e9
# Of the memory that the inventory lists; contexts of the driver take some hundred MiB.
LEAST_MEMORY_SHARE = 0.85
# Of the host's memory, which has other users.
LEAST_UNIFIED_SHARE = 0.3
# Of the nominal bandwidth: a plain loop gets 80 to 92 %.
LEAST_SPEED_SHARE, MOST_SPEED_SHARE, USUAL_SPEED_SHARE = 0.55, 1.05, 0.8
# Of the bandwidth that the same GPU had in earlier challenges.
LEAST_OWN_SHARE = 0.7
MOST_CLOCK_SKEW_SECONDS = 300.0
# The driver rounds; the image may be pulled before.
SPARE_SECONDS = 5.0
# Of a disk that a job can work with, in bytes per second.
LEAST_DISK_SPEED = 50e6
_ELSEWHERE = "End other processes on the GPU, and verify again."


def answer_findings(
    order: ChallengeOrder,
    result: ChallengeResult,
    inventory: Inventory,
    *,
    ordered_at: datetime,
    answered_at: datetime,
) -> list[Finding]:
    """Return what is wrong with an answer; the times are the portal's."""
    answer = result.answer
    if answer is None:
        problem = result.problem or "no answer"
        return [failure("no_answer", f"The challenge gave no answer: {problem}")]
    devices = {device.uuid: device for device in answer.devices}
    gpus = {gpu.uuid: gpu for gpu in inventory.gpus}
    findings = [*_whole(order, answer, inventory, ordered_at, answered_at)]
    cpu = devices.get(CPU)
    if cpu is None or not is_right(order, cpu):
        findings.append(
            failure("wrong_arithmetic", "The CPU computed something else than the portal.")
        )
    for uuid in order.gpu_uuids:
        device = devices.get(uuid)
        if device is None or device.problem:
            problem = device.problem if device else "it is not in the answer"
            findings.append(_missing(uuid, gpus.get(uuid), problem))
            continue
        findings += _device(order, device, gpus.get(uuid))
    return findings


def is_right(order: ChallengeOrder, device: DeviceAnswer) -> bool:
    """Return whether a device opened the leaves that its root asks for, with the right ends."""
    leaves = order.cpu_leaves if device.uuid == CPU else order.leaves
    wanted = opened(order.seed, device.root, leaves=leaves, count=order.openings)
    if [opening.leaf for opening in device.openings] != wanted:
        return False
    read = partial(word_at, order.seed, rounds=order.rounds)
    depth = leaves.bit_length() - 1
    # 2**40 words are 8 TiB.
    if not 0 < device.words < 2**40 or (device.uuid == CPU and device.words != order.cpu_words):
        return False
    for opening in device.openings:
        try:
            root = root_of(opening.leaf, opening.value, opening.path)
        except (ValueError, OverflowError):
            return False
        if root != device.root or len(opening.path) != depth:
            return False
        end = walk(order.seed, opening.leaf, steps=order.steps, words=device.words, read=read)
        if end != opening.value:
            return False
    return True


def slowed(answer: ChallengeAnswer, best: Mapping[str, float]) -> list[tuple[str, float, float]]:
    """Return the GPUs that were much slower than before: UUID, now, before.

    A GPU without an earlier challenge is compared with what its model usually has.
    """
    slow = []
    for device in answer.devices:
        card = model_of(device.model)
        usual = USUAL_SPEED_SHARE * card.bandwidth_gigabytes * GIGA if card else 0.0
        before = best.get(device.uuid, usual)
        if device.read_bytes_per_second < LEAST_OWN_SHARE * before:
            slow.append((device.uuid, device.read_bytes_per_second, before))
    return slow


def slowed_findings(
    slow: Sequence[tuple[str, float, float]], names: Sequence[str]
) -> Iterator[Finding]:
    """Yield that GPUs are slow while appliances of these names are challenged, too, and slow."""
    for uuid, now, before in slow:
        yield failure(
            "slowed_by_other",
            f"The memory of {uuid} was read at {now / GIGA:,.0f} GB/s while {', '.join(names)} was "
            f"challenged at the same time, which was slow as well. Usual is "
            f"{before / GIGA:,.0f} GB/s. Both seem to use the same GPU.",
            "Enroll each host once, and let one agent report each GPU.",
            gpu=uuid,
            bytes_per_second=now,
            before=before,
            together=list(names),
        )


def _whole(
    order: ChallengeOrder,
    answer: ChallengeAnswer,
    inventory: Inventory,
    ordered_at: datetime,
    answered_at: datetime,
) -> Iterator[Finding]:
    took = (answered_at - ordered_at).total_seconds()
    is_simulated = SIMULATED in inventory.executors
    worked = max((_seconds(device) for device in answer.devices), default=0.0)
    busy = order.busy_seconds if order.gpu_uuids and not is_simulated else 0.0
    if max(answer.seconds, worked) > took + SPARE_SECONDS:
        yield failure(
            "time_impossible",
            f"The answer claims {max(answer.seconds, worked):.0f} s of work, but came after "
            f"{took:.0f} s.",
            claimed_seconds=answer.seconds,
            portal_seconds=took,
        )
    if took + SPARE_SECONDS < busy:
        yield failure(
            "too_early",
            f"The answer came after {took:.0f} s; the GPUs had to be busy for {busy:.0f} s.",
            portal_seconds=took,
        )
    if answer.boot_id and inventory.boot_id and answer.boot_id != inventory.boot_id:
        yield failure(
            "other_boot",
            "The challenge ran on another boot of a kernel than the agent's: "
            "perhaps on another host.",
            "Restart the agent. If it stays, its container engine is on another host.",
            challenge=answer.boot_id,
            inventory=inventory.boot_id,
        )
    skew = abs((from_ns(min(max(answer.clock_ns, 0), 2**62)) - answered_at).total_seconds())
    if skew > MOST_CLOCK_SKEW_SECONDS:
        yield warning(
            "clock_wrong",
            f"The clock of the container differs by {skew:,.0f} s from the portal's.",
            "Synchronize the clock by NTP.",
            seconds=skew,
        )
    disk = answer.disk_written_bytes_per_second
    if order.disk_bytes and disk < LEAST_DISK_SPEED:
        yield warning(
            "disk_slow",
            f"The disk of containers writes {disk / 1e6:,.0f} MB/s."
            if disk
            else "The disk of containers could not be written.",
            "Put the engine's data on an SSD with free space.",
            bytes_per_second=disk,
        )


def _seconds(device: DeviceAnswer) -> float:
    return device.fill_seconds + device.walk_seconds


def _missing(uuid: str, gpu: GPUInfo | None, problem: str) -> Finding:
    name = f"GPU {gpu.index} ({gpu.model})" if gpu else uuid
    return failure(
        "gpu_missing",
        f"{name} gave no answer: {problem}",
        "Check that containers get this GPU: `docker run --gpus all ... nvidia-smi -L`.",
        gpu=gpu.index if gpu else uuid,
        problem=problem,
    )


def _device(order: ChallengeOrder, device: DeviceAnswer, gpu: GPUInfo | None) -> Iterator[Finding]:
    if gpu is None:
        yield failure("gpu_unlisted", f"{device.uuid} is not in the inventory any more.")
        return
    name = f"GPU {gpu.index} ({gpu.model})"
    if not is_right(order, device):
        yield failure(
            "wrong_answer",
            f"{name} computed something else than the portal.",
            "Check the GPU for memory errors: `nvidia-smi -q -d ECC`, `dcgmi diag -r 3`.",
            gpu=gpu.index,
        )
    filled = device.words * WORD_BYTES
    least = LEAST_UNIFIED_SHARE if shares_memory(gpu) else LEAST_MEMORY_SHARE
    if filled < least * gpu.memory_bytes * order.memory_percent / 100:
        yield failure(
            "memory_missing",
            f"{name} lists {gpu.memory_bytes / 2**30:.0f} GiB, but {filled / 2**30:.1f} GiB could "
            "be filled.",
            _ELSEWHERE,
            gpu=gpu.index,
            filled_bytes=filled,
            listed_bytes=gpu.memory_bytes,
        )
    card = model_of(gpu.model)
    yield from _driver(device, gpu, card, name)
    yield from _speed(device, gpu, card, name)


def _driver(
    device: DeviceAnswer, gpu: GPUInfo, card: KnownModel | None, name: str
) -> Iterator[Finding]:
    """Yield where the driver in the container differs from the inventory, or from the model."""
    expected = card.processors if card else 0
    for what, own, other in (
        ("model", device.model.removeprefix("NVIDIA "), gpu.model.removeprefix("NVIDIA ")),
        ("PCI address", device.pci_address[-12:].lower(), gpu.pci_address.lower()),
        ("compute capability", device.compute_capability, gpu.compute_capability),
        ("number of multiprocessors", device.processor_count, expected),
    ):
        if own and other and own != other:
            yield failure(
                "driver_differs",
                f"{name}: in a container, the driver reports another {what}: {own}, not {other}.",
                "Let the agent read the driver of the host whose containers it starts.",
                gpu=gpu.index,
                container=own,
                expected=other,
            )


def _speed(
    device: DeviceAnswer, gpu: GPUInfo, card: KnownModel | None, name: str
) -> Iterator[Finding]:
    speed = device.read_bytes_per_second / GIGA
    if card is None:
        return
    nominal = card.bandwidth_gigabytes
    figures: Any = {"gpu": gpu.index, "gigabytes_per_second": round(speed, 1), "nominal": nominal}
    if speed < LEAST_SPEED_SHARE * nominal:
        yield failure(
            "too_slow",
            f"The memory of {name} was read at {speed:,.0f} GB/s; {card.title} has "
            f"{nominal:,.0f} GB/s.",
            "End other processes on the GPU; check clocks, temperature and power limit.",
            **figures,
        )
    elif speed > MOST_SPEED_SHARE * nominal:
        yield failure(
            "too_fast",
            f"The memory of {name} was read at {speed:,.0f} GB/s, faster than {card.title} can.",
            **figures,
        )
    else:
        yield note(
            "measured",
            f"{name}: memory read at {speed:,.0f} GB/s, copied to at "
            f"{device.copy_bytes_per_second / GIGA:,.1f} GB/s.",
            **figures,
        )
