"""The arithmetic of challenges: kernels, program and portal compute the same, cheaply or not."""

import json
import sys
from functools import partial
from subprocess import run

import msgspec
import pytest

from jobqueue.executors.challenge.kernels import FILL, MODULE, READ, WALK
from jobqueue.executors.simulated.challenge import SimulatedChallenges
from protocol.challenge_walk import (
    BLOCK_WORDS,
    MASK,
    block,
    mix,
    opened,
    path_of,
    root_of,
    tree,
    walk,
    word_at,
)
from protocol.challenges import ChallengeAnswer, ChallengeOrder, DeviceAnswer
from tests.cast import FrozenClock
from tests.unit.jobqueue_executors.ptx import run_kernel

SEED, ROUNDS = 0x1234_5678_9ABC_DEF0, 2
BASE, OUT = 1 << 32, 1 << 40
ORDER = ChallengeOrder(
    number=1, seed=SEED, image="python:3.13-slim", leaves=16, steps=4, rounds=1, cpu_words=1024,
    cpu_leaves=8, disk_bytes=2**22, busy_seconds=0.0,
)  # fmt: skip


def test_mix_is_the_finalizer_of_splitmix64() -> None:
    # The first output of Vigna's splitmix64.c with the state 0.
    assert mix(0x9E3779B97F4A7C15) == 0xE220A8397B1DCDAF


def test_the_kernels_compute_what_the_portal_does() -> None:
    memory: dict[int, int] = {}
    words, steps, leaves = 3 * BLOCK_WORDS, 5, 8
    run_kernel(
        MODULE, FILL, shape=(2, 1), memory=memory, ptr=BASE, blocks=3, seed=SEED, rounds=ROUNDS
    )
    expected = [word for number in range(3) for word in block(SEED, number, ROUNDS)]
    assert [memory[BASE + 8 * at] for at in range(words)] == expected
    run_kernel(
        MODULE, WALK, shape=(3, 3), memory=memory, ptr=BASE, words=words, seed=SEED,
        steps=steps, leaves=leaves, out=OUT,
    )  # fmt: skip
    read = partial(word_at, SEED, rounds=ROUNDS)
    ends = [walk(SEED, leaf, steps=steps, words=words, read=read) for leaf in range(leaves)]
    assert [memory[OUT + 8 * leaf] for leaf in range(leaves)] == ends
    assert OUT + 8 * leaves not in memory
    run_kernel(MODULE, READ, shape=(1, 4), memory=memory, ptr=BASE, words=words, out=OUT)
    assert sum(memory[OUT + 8 * at] for at in range(4)) & MASK == sum(expected) & MASK


def test_a_root_opens_leaves_that_lead_back_to_it() -> None:
    leaves = [mix(number) for number in range(64)]
    levels = tree(leaves)
    root = levels[-1][0].hex()
    numbers = opened(SEED, root, leaves=64, count=8)
    assert len(set(numbers)) > 1
    for leaf in numbers:
        assert root_of(leaf, leaves[leaf], path_of(levels, leaf)) == root
        assert root_of(leaf, leaves[leaf] ^ 1, path_of(levels, leaf)) != root
    assert opened(SEED, "0" * 64, leaves=64, count=8) != numbers


def test_the_program_answers_for_the_cpu_without_gpus() -> None:
    order = msgspec.structs.replace(ORDER, gpu_uuids=["GPU-1"])
    text = msgspec.json.encode(order).decode()
    command = [sys.executable, "-m", "jobqueue.executors.challenge.program", text]
    output = run(command, capture_output=True, check=True, timeout=60).stdout
    answer = msgspec.json.decode(output, type=ChallengeAnswer)
    cpu, gpu = answer.devices
    read = partial(word_at, SEED, rounds=1)
    for opening in cpu.openings:
        assert root_of(opening.leaf, opening.value, opening.path) == cpu.root
        assert opening.value == walk(SEED, opening.leaf, steps=4, words=1024, read=read)
    assert gpu.uuid == "GPU-1"
    assert "libcuda.so.1" in gpu.problem
    assert answer.disk_written_bytes_per_second > 0
    assert answer.disk_read_bytes_per_second > 0
    assert json.loads(output).keys() == set(ChallengeAnswer.__struct_fields__)


def test_a_simulated_appliance_answers_for_its_gpus(clock: FrozenClock) -> None:
    device = DeviceAnswer(uuid="GPU-1", model="NVIDIA H200", memory_bytes=141 * 2**30)
    busy: list[str] = []
    challenges = SimulatedChallenges(
        clock, lambda: [device], on_start=lambda _: busy.append("start"),
        on_end=lambda _: busy.append("end"),
    )  # fmt: skip
    order = msgspec.structs.replace(ORDER, gpu_uuids=["GPU-1", "GPU-2"])
    answer = challenges.run(order).answer
    assert answer is not None
    _, gpu, missing = answer.devices
    assert gpu.words * 8 == pytest.approx(0.97 * 141 * 2**30, rel=0.01)
    assert root_of(gpu.openings[0].leaf, gpu.openings[0].value, gpu.openings[0].path) == gpu.root
    assert missing.problem
    assert busy == ["start", "end"]
    large = challenges.run(msgspec.structs.replace(order, leaves=2**18))
    assert "too large" in large.problem
