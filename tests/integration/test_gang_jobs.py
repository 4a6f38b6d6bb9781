"""Gangs through portal, agent and engine: members in containers that find each other by name.

The image has no Python of its own; jobs mount this host's /usr.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import requests

from tests.deployment import ALICE, Deployment, agent_of, api_token, make_deployment, serving
from tests.fixtures.docker_engine import DockerEngine
from tests.fixtures.polling import eventually
from tests.integration.test_jobs import FINAL, QUICK, Portal, enroll
from tests.servers import require_program

pytestmark = [pytest.mark.nightly, pytest.mark.needs_docker, pytest.mark.timeout(300)]
USR = ({"source": "/usr", "target": "/usr"}, {"source": "/usr/lib", "target": "/lib"})
LIBRARIES = {"source": "/usr/lib64", "target": "/lib64"}
# The first member adds up what the others send; all of them get the sum.
RENDEZVOUS = """
import os, socket, time
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
first = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if rank == 0:
    with socket.create_server(("", first[1])) as server:
        others = [server.accept()[0] for _ in range(world - 1)]
        total = sum(int(other.recv(9)) for other in others)
        for other in others:
            other.sendall(str(total).encode())
else:
    for _ in range(300):
        try:
            with socket.create_connection(first, 1) as other:
                other.sendall(str(rank * 10).encode())
                total = int(other.recv(9))
            break
        except OSError:
            time.sleep(0.1)
print("rank", rank, "of", world, "sum", total, flush=True)
"""
PYTHON = "/usr/bin/python3"


@pytest.fixture(scope="module")
def deployment(docker_engine: DockerEngine) -> Iterator[Deployment]:
    """A deployment whose only appliance has this engine, and whose jobs may mount /usr."""
    require_program("ip", package="iproute2")
    with TemporaryDirectory(prefix="vedette-gangs-") as name, ExitStack() as stack:
        # On the disk: no job may mount what is below /dev.
        folder = Path(name)
        made, home = make_deployment(folder), folder / "agent"
        stack.enter_context(serving(made))
        enroll(made, home, "host-1")
        network = '[network]\naddress = "192.0.2.1"\n'
        config = f'{QUICK}docker_url = "{docker_engine.url}"\n{network}'
        with agent_of(made, home=home, toml=config):
            portal = Portal(made)
            appliance = portal.wait_for_appliance("docker")
            offers = appliance["inventory"]["network"]
            assert offers["can_make_networks"], offers["problem"]
            allow_mounts(made, "/usr", str(folder))
            yield made


def allow_mounts(deployment: Deployment, *paths: str) -> None:
    portal = Portal(deployment, ALICE)
    where = f"/tenants/{portal.get('/me').json()['tenant_id']}/queue-settings"
    settings = portal.get(where).json()
    settings["data_roots"] = [{"path": path, "is_read_only": True} for path in paths]
    answer = requests.put(
        f"{deployment.url}/api/v1{where}",
        json=settings,
        headers={"Authorization": f"Bearer {api_token(deployment, ALICE)}"},
        timeout=60,
    )
    assert answer.ok, answer.text


def submit(
    portal: Portal, image: str, command: list[str], **fields: object
) -> list[dict[str, Any]]:
    """Submit a gang of two; return its members by rank."""
    defaults: dict[str, Any] = {
        "mounts": [*USR, LIBRARIES],
        "memory_bytes": 128 * 2**20,
        "cpus": 0.2,
    }
    ident = portal.submit(image=image, command=command, nodes=2, **(defaults | fields))
    members = portal.get("/jobs", array_id=ident).json()["items"]
    return sorted(members, key=lambda member: int(member["array_index"]))


def test_members_find_the_first_one_by_what_torch_gets(
    deployment: Deployment, docker_engine: DockerEngine
) -> None:
    portal = Portal(deployment)
    command = [PYTHON, "-c", RENDEZVOUS]
    members = submit(portal, docker_engine.image, command, framework="torch")
    for rank, member in enumerate(members):
        ended = portal.wait_for_state(member["id"], *FINAL, seconds=120)
        assert ended["state"] == "succeeded", portal.log(member["id"])
        assert f"rank {rank} of 2 sum 10" in portal.log(member["id"])


def test_a_member_that_fails_is_named_by_the_others(
    deployment: Deployment, docker_engine: DockerEngine
) -> None:
    portal = Portal(deployment)
    fails = 'if [ "$RANK" = 1 ]; then exit 5; fi; sleep 600'
    first, second = submit(portal, docker_engine.image, ["sh", "-c", fails], framework="torch")
    assert portal.wait_for_state(second["id"], *FINAL, seconds=120)["exit_code"] == 5
    stopped = portal.wait_for_state(first["id"], *FINAL, seconds=120)
    assert (stopped["state"], stopped["reason"]) == ("stopped", "member_ended")
    assert stopped["message"] == "Stopped: member 1 (host-1) failed: exit code 5."


def test_open_mpi_in_containers_starts_its_daemons_by_the_launcher(
    deployment: Deployment, docker_engine: DockerEngine
) -> None:
    mpirun = Path(require_program("mpirun", package="openmpi-bin")).resolve()
    passwd = deployment.data_dir / "passwd"
    passwd.write_text("root:x:0:0:root:/:/bin/sh\n")
    accounts = {"source": str(passwd), "target": "/etc/passwd"}
    show = 'echo "rank $OMPI_COMM_WORLD_RANK on member $VEDETTE_GANG_RANK"'
    portal = Portal(deployment)
    members = submit(
        portal,
        docker_engine.image,
        [str(mpirun), "-np", "2", "sh", "-c", show],
        framework="mpi",
        env={"TMPDIR": "/dev/shm"},  # noqa: S108 - in the container
        mounts=[*USR, LIBRARIES, accounts],
    )
    ends = [portal.wait_for_state(member["id"], *FINAL, seconds=120) for member in members]
    log = portal.log(members[0]["id"])
    assert [end["state"] for end in ends] == ["succeeded", "succeeded"], log
    eventually(lambda: "rank 1 on member 1" in portal.log(members[0]["id"]), what="the output")
    assert "rank 0 on member 0" in log
