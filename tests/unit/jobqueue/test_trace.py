"""Traces: the format, its errors, and the experiment on a cluster that fits in a test."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cli.simulate import simulate as command
from core.errors import InvalidInputError
from core.strict_json import decode_json
from jobqueue.placement.policies import POLICY_NAMES
from jobqueue.simulation.public_trace import check_trace, read_nodes, read_pods, simulate

NODES = """sn,cpu_milli,memory_mib,gpu,model
node-0,64000,262144,2,P100
node-1,96000,393216,8,G2
node-2,128000,262144,0,
"""
PODS = """name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase
pod-0,12000,16384,1,1000,,LS,Running
pod-1,6000,12288,1,460,G2|T4,LS,Running
pod-2,3000,1024,0,0,,LS,Running
pod-3,8000,1024,8,1000,,LS,Running
"""


@pytest.fixture
def trace(tmp_path: Path) -> tuple[Path, Path]:
    nodes, pods = tmp_path / "nodes.csv", tmp_path / "pods.csv"
    nodes.write_text(NODES)
    pods.write_text(PODS)
    return nodes, pods


def test_a_trace_is_read_with_shares_and_models(trace: tuple[Path, Path]) -> None:
    nodes, pods = read_nodes(trace[0]), read_pods(trace[1])
    assert [len(node.gpus) for node in nodes] == [2, 8, 0]
    assert nodes[0].gpus[0].model == "P100"
    assert (pods[1].gpus, pods[1].gpu_milli) == (1, 460)
    assert pods[1].gpu_models == {"G2", "T4"}
    assert (pods[3].gpus, pods[3].gpu_milli, pods[3].cpus) == (8, 1000, 8.0)


def test_every_policy_gets_the_same_jobs_and_allocates_no_more_than_there_is(
    trace: tuple[Path, Path],
) -> None:
    nodes, pods = read_nodes(trace[0]), read_pods(trace[1])
    outcomes = [simulate(nodes, pods, policy=policy, seed=3) for policy in POLICY_NAMES]
    assert len({outcome.arrived for outcome in outcomes}) == 1
    assert all(0 < outcome.allocated_ratio <= 1 for outcome in outcomes)
    assert outcomes[0] == simulate(nodes, pods, policy=POLICY_NAMES[0], seed=3)


def test_all_errors_of_a_file_are_shown_with_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "nodes.csv"
    path.write_text(NODES.replace("64000", "many").replace(",8,G2", ",-8,G2"))
    with pytest.raises(InvalidInputError) as caught:
        read_nodes(path)
    assert "line 2: cpu_milli is 'many'" in caught.value.message
    assert "line 3: gpu is '-8'; enter a whole number from 0 to 1024" in caught.value.message
    path.write_text("a,b\n1,2\n")
    with pytest.raises(InvalidInputError, match="lacks the columns sn, cpu_milli"):
        read_nodes(path)


def test_a_trace_in_which_nothing_requests_a_gpu_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "pods.csv"
    path.write_text(PODS.splitlines()[0] + "\npod-2,3000,1024,0,0,,LS,Running\n")
    (tmp_path / "nodes.csv").write_text(NODES)
    with pytest.raises(InvalidInputError, match="request no GPUs"):
        check_trace(read_nodes(tmp_path / "nodes.csv"), read_pods(path))


def test_the_command_prints_a_table_and_json(trace: tuple[Path, Path]) -> None:
    arguments = ["--nodes", str(trace[0]), "--pods", str(trace[1]), "--seeds", "2"]
    table = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert [line.split()[0] for line in table.stdout.splitlines()] == ["POLICY", *POLICY_NAMES]
    arguments += ["--policy", "best_fit", "-o", "json"]
    answer = CliRunner().invoke(command, arguments, catch_exceptions=False)
    document: dict[str, Any] = decode_json(answer.stdout.encode())
    [best_fit] = document["policies"]
    assert (best_fit["policy"], best_fit["seeds"]) == ("best_fit", 2)
    assert len(best_fit["allocated_percent"]) == 2
