"""The variables that frameworks get, for each member of a gang."""

import json
from typing import Any

import pytest

from core.secretbox import SecretBox, new_key
from jobqueue.gangs.frameworks import framework_env, framework_secrets, framework_variables
from jobqueue.models import Job
from protocol.gangs import Framework, Gang, GangMember, GangNetwork, NetworkAbilities


def gang(
    rank: int,
    framework: str = "torch",
    *,
    size: int = 3,
    is_private: bool = True,
    **changes: object,
) -> Gang:
    """A gang of members on appliances of their own."""
    members = [
        GangMember(
            rank=member,
            name=f"member-{member}",
            address=f"10.96.0.{member + 1}",
            appliance_id=f"dgx-{member}",
        )
        for member in range(size)
    ]
    network = GangNetwork(vni=7, subnet="10.96.0.0/16", wireguard_port=51820)
    fields: dict[str, Any] = {
        "gang_id": "gang-1",
        "rank": rank,
        "members": members,
        "framework": Framework(framework),
        "network": network if is_private else None,
    }
    return Gang(**(fields | changes))


def job(framework: str = "torch", **changes: object) -> Job:
    """A member of a gang of three."""
    fields: dict[str, Any] = {"id": "job-1", "name": "train", "image": "i", "nodes": 3, "env": {}}
    fields |= {"gpus": 0, "cpus": 4.0, "gpu_slice": "", "gpu_memory_bytes": 0, "gpu_compute": 0}
    return Job(framework=framework, **(fields | changes))


def env(framework: str, rank: int, **changes: object) -> dict[str, str]:
    """The variables of a member of a gang of three."""
    return dict(framework_env(job(framework, **changes), gang(rank, framework)))


def test_a_member_without_a_framework_learns_its_rank_and_the_others() -> None:
    assert env("none", 1) == {
        "VEDETTE_GANG_RANK": "1",
        "VEDETTE_GANG_SIZE": "3",
        "VEDETTE_GANG_MEMBERS": "member-0,member-1,member-2",
    }


def test_torchrun_finds_the_first_member_and_gets_a_process_for_each_gpu() -> None:
    variables = env("torch", 2, gpus=8)
    assert {name: value for name, value in variables.items() if name.startswith("PET_")} == {
        "PET_NNODES": "3",
        "PET_NODE_RANK": "2",
        "PET_NPROC_PER_NODE": "8",
        "PET_MASTER_ADDR": "member-0",
        "PET_MASTER_PORT": "29500",
        "PET_RDZV_BACKEND": "static",
        "PET_RDZV_ENDPOINT": "member-0:29500",
        "PET_RDZV_ID": "gang-1",
        "PET_RDZV_CONF": "timeout=1800,join_timeout=1800",
    }
    assert (variables["MASTER_ADDR"], variables["MASTER_PORT"]) == ("member-0", "29500")
    assert (variables["WORLD_SIZE"], variables["NODE_RANK"]) == ("24", "2")
    assert "RANK" not in variables, "torchrun gives each process its own"


def test_a_member_with_one_process_runs_without_torchrun() -> None:
    variables = env("torch", 1)
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "PET_NPROC_PER_NODE")
    assert [variables[name] for name in names] == ["1", "0", "3", "1"]


def test_a_port_that_the_job_sets_is_that_of_the_rendezvous() -> None:
    own = job("torch", env={"MASTER_PORT": "4444"})
    assert framework_env(own, gang(0))["PET_RDZV_ENDPOINT"] == "member-0:4444"


def test_tensorflow_gets_the_cluster_and_its_task() -> None:
    config = json.loads(env("tensorflow", 1)["TF_CONFIG"])
    assert config == {
        "cluster": {"worker": ["member-0:2222", "member-1:2223", "member-2:2224"]},
        "task": {"type": "worker", "index": 1},
    }


def test_paddle_gets_addresses_of_the_first_member_and_its_own() -> None:
    variables = env("paddle", 1, gpus=2)
    assert variables["PADDLE_MASTER"] == "10.96.0.1:37777"
    assert variables["POD_IP"] == "10.96.0.2"
    assert (variables["PADDLE_NNODES"], variables["PADDLE_TRAINER_ID"]) == ("3", "1")
    assert variables["PADDLE_NPROC_PER_NODE"] == "2"
    assert "PADDLE_TRAINER_ENDPOINTS" not in variables, "the launcher gives them to its processes"
    single = env("paddle", 1)
    ends = ["10.96.0.1:37778", "10.96.0.2:37779", "10.96.0.3:37780"]
    assert single["PADDLE_TRAINER_ENDPOINTS"] == ",".join(ends)
    assert single["PADDLE_CURRENT_ENDPOINT"] == ends[1]


def test_jax_gets_the_coordinator_and_a_process_for_each_member() -> None:
    variables = env("jax", 2, gpus=8)
    assert variables["JAX_COORDINATOR_ADDRESS"] == "member-0:1234"
    assert (variables["JAX_NUM_PROCESSES"], variables["JAX_PROCESS_ID"]) == ("3", "2")


def test_mpi_gets_a_launcher_and_host_files_in_place_of_ssh() -> None:
    variables = env("mpi", 0)
    assert variables["OMPI_MCA_plm_rsh_agent"] == "/run/vedette/launch"
    assert variables["PRTE_MCA_plm_ssh_agent"] == variables["HYDRA_LAUNCHER_EXEC"]
    assert variables["OMPI_MCA_orte_default_hostfile"] == "/run/vedette/hostfile"
    assert variables["HYDRA_HOST_FILE"] == "/run/vedette/hydra-hosts"
    assert variables["OMPI_MCA_btl_tcp_if_include"] == "gang0"


def test_ray_gets_the_address_of_the_head_and_what_a_member_has() -> None:
    variables = env("ray", 2, gpus=2)
    assert variables["RAY_ADDRESS"] == "member-0:6379"
    assert variables["VEDETTE_RAY_OPTIONS"] == "--num-cpus=4 --num-gpus=2"


@pytest.mark.parametrize("framework", Framework)
def test_a_job_with_one_member_finds_itself_on_loopback(framework: Framework) -> None:
    variables = framework_env(job(framework, nodes=1), None)
    shown = json.dumps(dict(variables))
    assert ("127.0.0.1" in shown) == (framework is not Framework.NONE)
    assert "/run/vedette" not in shown
    assert "RAY_ADDRESS" not in variables, "it starts a cluster of its own"


def test_gangs_on_the_network_of_an_appliance_have_ports_of_their_own() -> None:
    own = job("torch", network="host")
    ports = {
        framework_env(own, gang(0, is_private=False, gang_id=name))["MASTER_PORT"]
        for name in ("gang-1", "gang-2")
    }
    assert len(ports) == 2
    assert "29500" not in ports
    assert framework_env(own, gang(1, is_private=False))["MASTER_ADDR"] == "10.96.0.1"


def test_nccl_uses_the_network_of_the_gang_and_the_rdma_devices_that_the_job_gets() -> None:
    without = env("torch", 0, gpus=8)
    assert without["NCCL_SOCKET_IFNAME"] == "=gang0"
    assert without["NCCL_IB_DISABLE"] == "1"
    own = job("torch", gpus=8, uses_rdma=True)
    devices = NetworkAbilities(rdma_devices=["mlx5_0", "mlx5_3"])
    having = framework_env(own, gang(0), devices)
    assert having["NCCL_IB_HCA"] == "=mlx5_0,mlx5_3"
    assert having["UCX_NET_DEVICES"] == "mlx5_0:1,mlx5_3:1"
    assert "NCCL_IB_DISABLE" not in having
    assert framework_env(own, gang(0), NetworkAbilities())["NCCL_IB_DISABLE"] == "1"
    assert not any(name.startswith("NCCL") for name in env("torch", 0)), "it has no GPUs"


def test_parts_of_gpus_have_no_peer_access() -> None:
    assert env("torch", 0, gpu_slice="1g.10gb")["NCCL_P2P_DISABLE"] == "1"
    assert "NCCL_P2P_DISABLE" not in env("torch", 0, gpus=8)


def test_members_on_one_appliance_tell_nccl_that_they_share_no_memory() -> None:
    members = [
        GangMember(rank=rank, name=f"member-{rank}", address="192.0.2.1", appliance_id="dgx-1")
        for rank in range(2)
    ]
    own = job("torch", nodes=2, gpus=4, network="host")
    pair = gang(1, is_private=False, members=members)
    assert framework_env(own, pair)["NCCL_HOSTID"] == "member-1"


def test_each_variable_says_why_it_is_set() -> None:
    for framework in Framework:
        for name, value, reason in framework_variables(job(framework, gpus=8), gang(0, framework)):
            assert value, name
            assert reason.endswith("."), name


def test_members_that_the_first_leads_share_a_secret_that_no_other_gang_has() -> None:
    box = SecretBox([new_key()])
    [first] = framework_secrets(gang(0, "mpi"), box).values()
    assert framework_secrets(gang(2, "mpi"), box) == {"VEDETTE_GANG_SECRET": first}
    assert first not in framework_secrets(gang(0, "mpi", gang_id="gang-2"), box).values()
    assert first not in env("mpi", 0).values()
    assert framework_secrets(gang(0, "torch"), box) == framework_secrets(None, box) == {}


@pytest.mark.parametrize(
    ("framework", "name", "usual", "with_data"),
    [
        (
            "torch",
            "PET_RDZV_CONF",
            "timeout=1800,join_timeout=1800",
            "timeout=86400,join_timeout=86400",
        ),
        ("mpi", "VEDETTE_GANG_JOIN_SECONDS", None, "86400"),
    ],
)
def test_members_wait_longer_for_those_whose_data_is_fetched(
    framework: str, name: str, usual: str | None, with_data: str
) -> None:
    assert env(framework, 0).get(name) == usual
    datasets = [{"dataset": "imagenet", "target": "/data"}]
    assert env(framework, 0, datasets=datasets)[name] == with_data
