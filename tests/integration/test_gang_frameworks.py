"""Frameworks with what members get: real processes in namespaces that reach each other by name."""

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.fixtures.namespaced_gang import namespaced_gang
from tests.fixtures.polling import eventually
from tests.fixtures.ray_head import PROGRAMS
from tests.servers import require_program

pytestmark = [pytest.mark.needs_root, pytest.mark.timeout(600)]
SYSTEM_PYTHON = "/usr/bin/python3"
# Debian's torch 1.13 can't read the defaults of two options under Python 3.11: these are the same.
TORCHRUN = (SYSTEM_PYTHON, "-m", "torch.distributed.run", "--redirects=9:1", "--tee=9:1")
ALL_REDUCE = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
value = torch.tensor([float(rank + 1)])
dist.all_reduce(value)
print("member", os.environ["VEDETTE_GANG_RANK"], "rank", rank, "sum", value.item(), flush=True)
assert value.item() == world * (world + 1) / 2
dist.barrier()
"""
RAY_TASKS = """
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On
ray.init()
@ray.remote(num_cpus=1)
def where():
    import os
    return os.environ["VEDETTE_GANG_RANK"]
nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
on_each = [where.options(scheduling_strategy=On(node, soft=False)) for node in nodes]
ranks = ray.get([there.remote() for there in on_each])
print("ran on", sorted(ranks), flush=True)
"""
SHOW_RANK = (
    'echo "rank $OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_SIZE on member $VEDETTE_GANG_RANK"'
)


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder on the disk: members have a /dev/shm of their own."""
    with TemporaryDirectory(prefix="vedette-gang-") as name:
        yield Path(name)


def test_open_mpi_runs_a_process_on_each_member_without_ssh(tmp_path: Path) -> None:
    mpirun = require_program("mpirun", package="openmpi-bin")
    with namespaced_gang(tmp_path, 3, framework="mpi") as gang:
        gang.start_all([mpirun, "sh", "-c", SHOW_RANK])
        assert gang.wait(seconds=60) == {0: 0, 1: 0, 2: 0}, gang.output(0)
        lines = gang.output(0).splitlines()
    shown = sorted(line for line in lines if line.startswith("rank"))
    assert shown == [f"rank {rank} of 3 on member {rank}" for rank in range(3)]


def test_a_command_that_fails_leaves_the_other_members_to_the_portal(tmp_path: Path) -> None:
    with namespaced_gang(tmp_path, 2, framework="mpi") as gang:
        other = gang.start(1, ["true"])
        first = gang.start(0, ["sh", "-c", "exit 3"])
        assert first.wait(60) == 3
        assert other.poll() is None
        gang.signal(1, signal.SIGTERM)
        assert other.wait(60) == 128 + signal.SIGTERM


def test_the_first_member_passes_the_signal_that_stops_it_to_its_command(tmp_path: Path) -> None:
    waiting = "trap 'echo saved; exit 7' TERM; echo started; while :; do sleep 0.1; done"
    with namespaced_gang(tmp_path, 2, framework="mpi") as gang:
        gang.start(1, ["true"])
        first = gang.start(0, ["sh", "-c", waiting])
        eventually(lambda: "started" in gang.output(0), within_seconds=60, what="the command")
        gang.signal(0, signal.SIGTERM)
        assert first.wait(60) == 7
        assert "saved" in gang.output(0)


def test_the_first_member_says_for_whom_it_waited_in_vain(tmp_path: Path) -> None:
    with namespaced_gang(tmp_path, 2, framework="mpi") as gang:
        first = gang.start(0, ["true"], VEDETTE_GANG_JOIN_SECONDS="1")
        assert first.wait(60) == 255
        assert "member-1 did not start within 1 s" in gang.output(0)


def test_a_process_without_the_secret_runs_nothing_on_a_member(tmp_path: Path) -> None:
    with namespaced_gang(tmp_path, 2, framework="mpi") as gang:
        gang.start(1, ["true"])
        first = gang.start(0, ["true"], VEDETTE_GANG_JOIN_SECONDS="1", VEDETTE_GANG_SECRET="guess")
        assert first.wait(60) == 255
        assert "refused a connection: the other side does not have the secret" in gang.output(1)


@pytest.mark.nightly
@pytest.mark.parametrize("size", [2, 4])
def test_torchrun_adds_up_a_number_of_each_member(tmp_path: Path, size: int) -> None:
    if subprocess.run([SYSTEM_PYTHON, "-c", "import torch"], check=False).returncode:
        pytest.skip("install the Debian package python3-torch")
    script = tmp_path / "all_reduce.py"
    script.write_text(ALL_REDUCE)
    with namespaced_gang(tmp_path, size, framework="torch") as gang:
        gang.start_all([*TORCHRUN, str(script)])
        codes = gang.wait(seconds=300)
        output = [gang.output(rank) for rank in range(size)]
    assert set(codes.values()) == {0}, output
    total = float(sum(range(1, size + 1)))
    for rank in range(size):
        assert f"member {rank} rank {rank} sum {total}" in output[rank]


@pytest.mark.nightly
@pytest.mark.needs_ray
@pytest.mark.timeout(600)
def test_a_ray_cluster_runs_a_task_on_each_member(tmp_path: Path) -> None:
    script = tmp_path / "tasks.py"
    script.write_text(RAY_TASKS)
    path = f"{PROGRAMS}:/usr/bin:/bin"
    with namespaced_gang(tmp_path, 3, framework="ray") as gang:
        # A container has a /tmp of its own.
        gang.start_all(["python", str(script)], PATH=path, RAY_TMPDIR="/run")
        codes = gang.wait(seconds=300)
        output = gang.output(0)
    assert "ran on ['0', '1', '2']" in output, output
    assert codes == {0: 0, 1: 0, 2: 0}, output
