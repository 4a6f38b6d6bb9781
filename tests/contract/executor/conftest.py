"""The executors under the contract, each with the images and times that suit it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pytest

from core.clock import utc_now
from core.ids import new_id
from jobqueue.executors.base import AttemptSpec, Executor
from jobqueue.executors.docker import DockerExecutor
from jobqueue.executors.simulated import SimulatedExecutor
from tests.fixtures.docker_engine import docker_engine
from tests.fixtures.empty_registry import empty_registry

__all__ = ["docker_engine", "empty_registry"]

MEBIBYTE = 2**20
SPEED = 10
FIRST_AT = utc_now()


def fast_clock() -> datetime:
    """Return a time that passes faster than ours, so that simulated attempts do too."""
    return FIRST_AT + SPEED * (utc_now() - FIRST_AT)


@dataclass(frozen=True)
class Bench:
    """An executor with the words that make it run, fail and miss an image.

    `reopen` gives an executor as the next agent process would have it; `has_containers` says that
    its attempts are containers.
    """

    executor: Executor
    reopen: Callable[[], Executor]
    image: str
    missing_image: str
    has_containers: bool

    def spec(self, *, seconds: float = 0.0, exit_code: int = 0, **changes: object) -> AttemptSpec:
        """Return a batch attempt that says hello, takes a while and ends with a code."""
        script = f"echo hello; sleep {seconds}; exit {exit_code}"
        fields: dict[str, object] = {
            "attempt_id": new_id(),
            "job_id": new_id(),
            "name": "hello",
            "image": self.image,
            "command": ["/bin/sh", "-c", script],
            "env": {"SIM_SECONDS": str(seconds), "SIM_EXIT_CODE": str(exit_code)},
            "memory_bytes": 64 * MEBIBYTE,
        }
        return AttemptSpec(**{**fields, **changes})  # type: ignore[arg-type] # the caller's names

    def service(self) -> AttemptSpec:
        """Return a service that would run for an hour."""
        return self.spec(seconds=3600, is_service=True)


@pytest.fixture(
    params=[
        "simulated",
        pytest.param("docker", marks=[pytest.mark.needs_docker]),
    ]
)
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    """Give each executor in turn; close what the test opened."""
    opened: list[Executor] = []
    image = missing_image = ""

    def open_simulated() -> Executor:
        opened.append(
            SimulatedExecutor(
                fast_clock,
                on_work=lambda *_: None,
                on_end=lambda *_: None,
                state_path=tmp_path / "attempts.json",
            )
        )
        return opened[-1]

    def open_docker() -> Executor:
        url = request.getfixturevalue("docker_engine").url
        opened.append(DockerExecutor(spool_dir=tmp_path / "spool", url=url))
        return opened[-1]

    if request.param == "docker":
        image = request.getfixturevalue("docker_engine").image
        missing_image = request.getfixturevalue("empty_registry") + "/missing:1"
        reopen = open_docker
    else:
        image, missing_image, reopen = "hello:1", "missing:1", open_simulated
    has_containers = request.param == "docker"
    yield Bench(reopen(), reopen, image, missing_image, has_containers)
    for attempt in opened[-1].observe():
        opened[-1].remove(attempt.attempt_id)
    for executor in opened:
        executor.close()
