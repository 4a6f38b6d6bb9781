"""Exactly one container per attempt: each victim is killed at each step, before and after it.

Every case runs one job on the same portal, agent and engine. One runs always, all every night.
`DELIVERY_TABLE=FILE` writes the results as the table of docs/delivery.md.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread

import docker
import pytest

from tests.delivery.world import World, running_world
from tests.fixtures.docker_engine import IMAGE
from tests.fixtures.polling import eventually
from tests.integration.test_jobs import FINAL, Portal

pytestmark = [pytest.mark.needs_docker, pytest.mark.timeout(300)]

STEPS = {
    "submit": "the portal stores the job",
    "place": "the scheduler stores the attempt with its resources",
    "receive": "the agent stores the desired state",
    "create": "the engine creates the container",
    "start": "the engine starts the container",
    "record running": "the portal stores that the attempt runs",
    "report end": "the agent reports how the attempt ended",
    "remove": "the engine deletes the container",
}
VICTIMS = ("portal", "agent", "engine", "network")
MOMENTS = ("before", "after")
# Where most could go wrong: the container exists, and its agent does not.
ALWAYS = {("create", "agent", "after")}
CASES = [
    pytest.param(
        step, victim, moment, marks=[] if (step, victim, moment) in ALWAYS else pytest.mark.nightly
    )
    for step in STEPS
    for victim in VICTIMS
    for moment in MOMENTS
]
RESULTS: dict[tuple[str, str, str], str] = {}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[World, Portal]]:
    """One portal, agent and engine for all cases."""
    with running_world(tmp_path_factory.mktemp("delivery")) as running:
        yield running


@pytest.mark.parametrize(("step", "victim", "moment"), CASES)
def test_one_container_per_attempt_whatever_dies(
    world: tuple[World, Portal], step: str, victim: str, moment: str
) -> None:
    site, portal = world
    is_over, began = Event(), time.monotonic()
    site.arm(step, moment)
    striker = Thread(target=site.strike, args=(victim,), kwargs={"is_over": is_over})
    striker.start()
    try:
        job_id = submit(portal, f"{step} {victim} {moment}".replace(" ", "-"))
        eventually(lambda: ended(portal, job_id), within_seconds=120, what="the job's end")
        eventually(lambda: site.was_reached, what=f"{step} to be reached")
        striker.join()
        eventually(lambda: containers(site) == [], what="the container to be deleted")
    finally:
        is_over.set()
        striker.join()
    job = portal.job(job_id)
    starts = site.starts_of(job_id)
    RESULTS[step, victim, moment] = (
        f"{len(starts)} container, {job['state']}, {time.monotonic() - began:.0f} s"
    )
    if path := os.environ.get("DELIVERY_TABLE"):
        Path(path).write_text(table(), encoding="utf-8")
    assert len(starts) == 1
    assert (job["state"], job["exit_code"]) == ("succeeded", 0)
    # An engine that is dead while a container writes loses that output.
    output = portal.log(job_id)
    assert output == "hello\nbye\n" or (victim == "engine" and "hello\nbye\n".startswith(output))


def submit(portal: Portal, name: str) -> str:
    """Submit a job, whether or not the answer arrives: a user looks, and submits it again."""
    body = {
        "name": name, "image": IMAGE, "command": ["sh", "-c", "echo hello; sleep 1; echo bye"],
        "memory_bytes": 64 * 2**20,
    }  # fmt: skip

    def find_or_submit() -> str:
        try:
            items = portal.get("/jobs").json()["items"]
            job_ids = [str(item["id"]) for item in items if item["name"] == name]
            return job_ids[0] if job_ids else portal.submit(**body)
        except OSError:  # requests' errors: the portal is dead
            return ""

    return eventually(find_or_submit, every_seconds=0.5, what="the job to be submitted")


def ended(portal: Portal, job_id: str) -> bool:
    """Return whether the job has ended, as far as the portal answers."""
    try:
        return portal.job(job_id)["state"] in FINAL
    except (OSError, KeyError):
        return False


def containers(site: World) -> list[str]:
    """Return the containers on the engine; `["?"]` while it is dead."""
    try:
        client = docker.DockerClient(base_url=site.engine.url)
    except docker.errors.DockerException:
        return ["?"]
    try:
        return [
            container.name for container in client.containers.list(all=True, ignore_removed=True)
        ]
    finally:
        client.close()


def table() -> str:
    """Return the results as Markdown."""
    lines = [f"| step | moment | {' | '.join(f'{victim} killed' for victim in VICTIMS)} |"]
    lines.append("| --- " * (2 + len(VICTIMS)) + "|")
    for step in STEPS:
        for moment in MOMENTS:
            cells = [RESULTS.get((step, victim, moment), "") for victim in VICTIMS]
            lines.append(f"| {step} | {moment} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
