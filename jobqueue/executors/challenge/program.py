"""The program of a challenge: it runs in a container, and prints its answer as JSON.

It starts one process for each GPU that the container sees, so that all work at once, and measures
CPU and disk beside them. It has Python's standard library alone; the fields of its answer are those
of `protocol.challenges`.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time
from hashlib import sha256
from pathlib import Path
from typing import Any

from jobqueue.executors.challenge.cuda import CUDA, GPU, OUT_OF_MEMORY, CUDAError
from jobqueue.executors.challenge.kernels import FILL, MODULE, READ, THREADS, WALK
from protocol.challenge_walk import BLOCK_WORDS, WORD_BYTES, block, opened, path_of, tree, walk

MODULE_NAME = "jobqueue.executors.challenge.program"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
FILE = Path(tempfile.gettempdir(), "vedette-challenge")
CHUNK_BYTES = 4 * 2**20
COPY_BYTES, COPIES = 128 * 2**20, 4
BLOCKS = 4096
MISSING = "There is no such GPU in the container."


def main(text: str) -> None:
    """Answer an order, which is JSON of `protocol.challenges.ChallengeOrder`."""
    order = json.loads(text)
    started = time.monotonic()
    children = []
    try:
        children = _start_gpus(text) if order["gpu_uuids"] else []
        problem = MISSING
    except CUDAError as error:
        problem = str(error)
    cpu = _cpu(order)
    written, read = _disk(order["disk_bytes"], order["seed"])
    seen = {answer["uuid"]: answer for answer in map(_answer_of, children)}
    wanted = [seen.pop(uuid, {"uuid": uuid, "problem": problem}) for uuid in order["gpu_uuids"]]
    answer = {
        # The last are those whose UUID is another, or unknown.
        "devices": [cpu, *wanted, *seen.values()],
        "disk_written_bytes_per_second": written,
        "disk_read_bytes_per_second": read,
        "boot_id": BOOT_ID.read_text().strip() if BOOT_ID.exists() else "",
        "seconds": time.monotonic() - started,
        "clock_ns": time.time_ns(),
    }
    sys.stdout.write(json.dumps(answer))


def answer_gpu(text: str, index: int) -> dict[str, Any]:
    """Return the answer of the GPU with an index."""
    order, gpu = json.loads(text), GPU(CUDA(), index)
    facts = gpu.facts()
    try:
        return {**facts, **_challenge(gpu, order, facts["processor_count"])}
    except CUDAError as error:
        return {**facts, "problem": str(error)}


def _challenge(gpu: GPU, order: dict[str, Any], processors: int) -> dict[str, Any]:
    gpu.load(MODULE)
    leaves, seed = order["leaves"], ctypes.c_uint64(order["seed"])
    threads = BLOCKS * THREADS
    out = gpu.allocate(max(leaves, threads) * WORD_BYTES)
    memory, words = _allocate(gpu, gpu.free_bytes() * order["memory_percent"] // 100)
    count, blocks = ctypes.c_uint64(words), ctypes.c_uint64(words // BLOCK_WORDS)
    began = time.monotonic()
    rounds = ctypes.c_uint32(order["rounds"])
    gpu.run(FILL, max(1, processors) * 16, THREADS, memory, blocks, seed, rounds)
    filled = time.monotonic()
    steps, ends = ctypes.c_uint32(order["steps"]), ctypes.c_uint64(leaves)
    shape = (-(-leaves // THREADS), THREADS)
    gpu.run(WALK, *shape, memory, count, seed, steps, ends, out)
    walked = time.monotonic()
    proof = _proof(gpu.read(out, leaves), order["seed"], order["openings"])
    fastest, until = 0.0, time.monotonic() + order["busy_seconds"]
    while time.monotonic() < until or not fastest:
        start = time.monotonic()
        gpu.run(READ, BLOCKS, THREADS, memory, count, out)
        fastest = max(fastest, words * WORD_BYTES / (time.monotonic() - start))
    size = min(COPY_BYTES, words * WORD_BYTES)
    start = time.monotonic()
    gpu.copy_to(memory, size, COPIES)
    copied = COPIES * size / (time.monotonic() - start)
    return {
        **proof,
        "words": words,
        "fill_seconds": filled - began,
        "walk_seconds": walked - filled,
        "read_bytes_per_second": fastest,
        "copy_bytes_per_second": copied,
    }


def _allocate(gpu: GPU, size: int) -> tuple[ctypes.c_uint64, int]:
    """Return memory and its words; less than wanted where it is in pieces."""
    while True:
        words = size // (BLOCK_WORDS * WORD_BYTES) * BLOCK_WORDS
        try:
            return gpu.allocate(words * WORD_BYTES), words
        except CUDAError as error:
            size = size * 15 // 16
            if error.code != OUT_OF_MEMORY or size < BLOCK_WORDS * WORD_BYTES:
                raise


def _proof(leaves: list[int], seed: int, count: int) -> dict[str, Any]:
    levels = tree(leaves)
    root = levels[-1][0].hex()
    numbers = opened(seed, root, leaves=len(leaves), count=count)
    return {
        "root": root,
        "openings": [
            {"leaf": leaf, "value": leaves[leaf], "path": path_of(levels, leaf)} for leaf in numbers
        ],
    }


def _cpu(order: dict[str, Any]) -> dict[str, Any]:
    seed, words, began = order["seed"], order["cpu_words"], time.monotonic()
    numbers = range(words // BLOCK_WORDS)
    memory = [word for number in numbers for word in block(seed, number, order["rounds"])]
    filled = time.monotonic()
    leaves = [
        walk(seed, leaf, steps=order["steps"], words=words, read=memory.__getitem__)
        for leaf in range(order["cpu_leaves"])
    ]
    walked = time.monotonic()
    return {
        "uuid": "cpu",
        "words": words,
        "fill_seconds": filled - began,
        "walk_seconds": walked - filled,
        **_proof(leaves, seed, order["openings"]),
    }


def _disk(size: int, seed: int) -> tuple[float, float]:
    """Return how fast a file is written and read, in bytes per second; 0 where it fails."""
    if not size:
        return 0.0, 0.0
    chunk = sha256(str(seed).encode()).digest() * (CHUNK_BYTES // 32)
    chunks = max(1, size // CHUNK_BYTES)
    try:
        began = time.monotonic()
        with FILE.open("wb", buffering=0) as file:
            for _ in range(chunks):
                file.write(chunk)
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        written = time.monotonic()
        with FILE.open("rb", buffering=0) as file:
            is_whole = all(file.read(CHUNK_BYTES) == chunk for _ in range(chunks))
        read = time.monotonic()
    except OSError:
        return 0.0, 0.0
    finally:
        FILE.unlink(missing_ok=True)
    total = chunks * CHUNK_BYTES
    return total / (written - began), total / (read - written) if is_whole else 0.0


def _start_gpus(text: str) -> list[subprocess.Popen[str]]:
    command = [sys.executable, "-m", MODULE_NAME, text]
    return [
        subprocess.Popen([*command, str(index)], stdout=subprocess.PIPE, text=True)  # noqa: S603 - this program
        for index in range(CUDA().count())
    ]


def _answer_of(child: subprocess.Popen[str]) -> dict[str, Any]:
    output, _ = child.communicate()
    try:
        return dict(json.loads(output))
    except ValueError:
        return {"uuid": "", "problem": f"The program of a GPU ended with {child.returncode}."}


if __name__ == "__main__":
    if len(sys.argv) > 2:  # noqa: PLR2004 - the order, and the index of a GPU
        sys.stdout.write(json.dumps(answer_gpu(sys.argv[1], int(sys.argv[2]))))
    else:
        main(sys.argv[1])
