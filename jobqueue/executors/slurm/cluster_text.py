"""Nodes and partitions from the words of Slurm."""

import re
from collections.abc import Iterable, Sequence

from msgspec import structs

from protocol.clusters import (
    MAX_CLUSTER_TEXT,
    MAX_NODE_GPUS,
    MODEL_SEPARATOR,
    ClusterNode,
    ClusterQueue,
    NodeState,
)

# gpu:a100:4(S:0-1) or gpu:4 or gpu:a100:2(IDX:0-1)
_GPU = re.compile(r"gpu(?::(?P<model>[^:,()]+))??:(?P<count>\d+)(?:\([^)]*\))?")
_DOWN = frozenset(
    {
        *("DOWN", "ERROR", "FAIL", "FUTURE", "INVAL", "INVALID_REG", "UNKNOWN", "POWERED_DOWN"),
        *("POWERING_DOWN", "NOT_RESPONDING", "REBOOT_ISSUED"),
    }
)
_DRAINED = frozenset({"DRAIN", "DRAINED", "DRAINING", "MAINT", "FAILING", "REBOOT_REQUESTED"})
_WORDS = {
    "MAINT": "in maintenance",
    "NOT_RESPONDING": "does not respond",
    "POWERED_DOWN": "powered down",
    "POWERING_DOWN": "is being powered down",
    "DRAIN": "drained",
    "INVAL": "registered with less than is configured",
    "INVALID_REG": "registered with less than is configured",
}
# What sinfo adds to a state in place of a word, such as idle* for a node that does not respond.
_MARKS = {"*": "NOT_RESPONDING", "~": "POWER_SAVED", "%": "POWERING_DOWN", "$": "MAINT"}
_NO_REASON = frozenset({"", "none", "(null)", "None"})
MEBIBYTE = 2**20


def state_words(text: str) -> list[str]:
    """Return a state and its flags, such as `IDLE` and `DRAIN` of `idle+drain*`."""
    marks = [_MARKS[sign] for sign in text if sign in _MARKS]
    return [*(word for word in re.split(r"[^A-Z_]+", text.upper()) if word), *marks]


def node_state(words: Sequence[str], reason: str) -> tuple[NodeState, str]:
    """Return the state of a node, and why it takes no jobs.

    One that saves power takes jobs: Slurm starts it for them.
    """
    said = "" if reason in _NO_REASON else reason
    for state, causes in ((NodeState.DOWN, _DOWN), (NodeState.DRAINED, _DRAINED)):
        for word in words:
            saves_power = word == "POWERED_DOWN" and "CLOUD" in words
            if word in causes and not saves_power:
                text = _WORDS.get(word, word.lower().replace("_", " "))
                return state, (said or f"Slurm: {text}")[:MAX_CLUSTER_TEXT]
    return NodeState.UP, ""


def gpus_of(gres: str) -> tuple[int, str]:
    """Return the number and model of the GPUs in a text such as `gpu:a100:4(S:0-1)`."""
    matches = list(_GPU.finditer(gres))
    models = {match["model"] for match in matches if match["model"]}
    count = sum(int(match["count"]) for match in matches)
    return min(count, MAX_NODE_GPUS), MODEL_SEPARATOR.join(sorted(models))[:100]


def merged(nodes: Iterable[ClusterNode]) -> list[ClusterNode]:
    """Return each node once, with all of its partitions."""
    by_name: dict[str, ClusterNode] = {}
    for node in nodes:
        if node.name in by_name:
            by_name[node.name].queues.extend(node.queues)
        else:
            by_name[node.name] = node
    return list(by_name.values())


def with_default(queues: Iterable[ClusterQueue], partition: str) -> list[ClusterQueue]:
    """Return the partitions, with those as the default that the connector sends jobs to, if any."""
    own = {name.strip() for name in partition.split(",")} - {""}
    return [
        structs.replace(queue, is_default=queue.name in own if own else queue.is_default)
        for queue in queues
    ]


def limit_seconds(text: str) -> int:
    """Return a limit such as `1-00:00:00`, `30:00` or `infinite`, in seconds; 0 is none."""
    match = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", text.strip())
    if match is None:
        return 0
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return days * 86400 + hours * 3600 + minutes * 60 + seconds
