"""Challenges of a real Docker engine: without a GPU, those of the CPU and the disk."""

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from threading import Thread

import docker
import pytest

from jobqueue.executors.base import Challenges
from jobqueue.executors.docker.executor import DockerExecutor
from protocol.challenge_walk import root_of, walk, word_at
from protocol.challenges import ChallengeOrder, ChallengeResult
from tests.fixtures.docker_engine import DockerEngine
from tests.fixtures.polling import eventually
from tests.fixtures.python_image import python_image

__all__ = ["python_image"]

pytestmark = [pytest.mark.needs_docker, pytest.mark.timeout(300)]
SEED = 77


@pytest.fixture
def challenges(docker_engine: DockerEngine, tmp_path: Path) -> Iterator[Challenges]:
    executor = DockerExecutor(owner="dgx-01", spool_dir=tmp_path / "spool", url=docker_engine.url)
    answering = executor.challenges()
    assert answering is not None
    yield answering
    executor.close()


def order(image: str, *, rounds: int = 8) -> ChallengeOrder:
    return ChallengeOrder(
        number=1, seed=SEED, image=image, disk_bytes=2**24, rounds=rounds, limit_seconds=120
    )


def containers(engine: DockerEngine) -> list[str]:
    client = docker.DockerClient(base_url=engine.url)
    try:
        listed = client.containers.list(all=True, filters={"name": "vedette-challenge"})
        return [container.status for container in listed]
    finally:
        client.close()


@pytest.mark.nightly
def test_a_container_computes_what_the_portal_can_check(
    challenges: Challenges, docker_engine: DockerEngine, python_image: str
) -> None:
    wanted = order(python_image)
    result = challenges.run(wanted)
    assert result.problem == ""
    assert result.answer is not None
    cpu = result.answer.devices[0]
    read = partial(word_at, SEED, rounds=wanted.rounds)
    for opening in cpu.openings:
        end = walk(SEED, opening.leaf, steps=wanted.steps, words=wanted.cpu_words, read=read)
        assert opening.value == end
        assert root_of(opening.leaf, end, opening.path) == cpu.root
    assert result.answer.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert result.answer.disk_written_bytes_per_second > 0
    assert containers(docker_engine) == []


@pytest.mark.nightly
def test_a_job_that_comes_ends_the_challenge(
    challenges: Challenges, docker_engine: DockerEngine, python_image: str
) -> None:
    results: list[ChallengeResult] = []
    long = order(python_image, rounds=2000)
    thread = Thread(target=lambda: results.append(challenges.run(long)))
    thread.start()
    eventually(lambda: containers(docker_engine) == ["running"], within_seconds=60)
    began = time.monotonic()
    challenges.cancel()
    assert containers(docker_engine) == []
    assert time.monotonic() - began < 20
    thread.join(30)
    assert [result.is_interrupted for result in results] == [True]
    assert challenges.run(order(python_image)).answer is not None


def test_what_keeps_a_challenge_from_an_answer_is_its_problem(
    challenges: Challenges, docker_engine: DockerEngine
) -> None:
    result = challenges.run(order(docker_engine.image))
    assert result.answer is None
    assert "python3" in result.problem
    assert containers(docker_engine) == []
