"""Charts of clusters and their nodes: what is allocated, what waits."""

from collections.abc import Mapping
from typing import Final

from dash_app.charts import Chart
from dash_app.queries.annotations import Thresholds
from dash_app.queries.telemetry import Telemetry
from dash_app.timerange import Span
from protocol.clusters import ClusterNode
from tenants.models import Appliance
from tenants.scope import Scope
from timeseries.store import APPLIANCE_TAG, Store

# Panel: labels of its fields, and whether nodes have it, too.
_PANELS: Final[Mapping[str, tuple[Mapping[str, str], bool]]] = {
    "cluster-gpus": ({"gpus_allocated": "allocated", "gpus": "all"}, True),
    "cluster-cpus": ({"cpus_allocated": "allocated", "cpus": "all"}, True),
    "cluster-memory": ({"memory_allocated_bytes": "allocated", "memory_bytes": "all"}, True),
    "cluster-waiting": ({"waiting_jobs": "waiting"}, False),
    "cluster-nodes": ({"nodes_up": "up", "nodes_drained": "drained", "nodes": "all"}, False),
}
OF_NODES: Final = frozenset(key for key, (_, has_node) in _PANELS.items() if has_node)


def cluster_charts(
    store: Store, scope: Scope, span: Span, appliance: Appliance, thresholds: Thresholds
) -> dict[str, Chart]:
    """Return the charts of a connector's cluster, or of a node; none of other appliances."""
    if appliance.connector_id is not None:
        measurement, owner_id = "cluster_node", appliance.connector_id
        node = {"node": (str(appliance.inventory.get("hostname", "")),)}
    elif appliance.cluster_kind:
        measurement, owner_id, node = "cluster", appliance.id, {}
    else:
        return {}
    filters = {APPLIANCE_TAG: (owner_id,), **node}
    telemetry = Telemetry(store, scope, span, filters=filters)
    charts = {}
    for key, (names, _) in _PANELS.items():
        if node and key not in OF_NODES:
            continue
        result = telemetry.charted(measurement, tuple(names))
        lines = tuple(
            result.line(series, name=label, color=color)
            for color, (field, label) in enumerate(names.items())
            for series in result.of(field)
        )
        chart = Chart(field=next(iter(names)), lines=lines, problem=result.problem)
        charts[key] = thresholds.on(chart, measurement, *names)
    return charts


def node_facts(node: ClusterNode) -> list[tuple[str, str, float, float]]:
    """Return title, field, allocated amount and all of each resource of a node."""
    facts = [
        ("CPUs allocated", "cpus", node.allocated_cpus, node.cpus),
        ("Memory allocated", "memory_bytes", node.allocated_memory_bytes, node.memory_bytes),
        ("GPUs allocated", "gpus", node.allocated_gpus, node.gpus),
    ]
    return [fact for fact in facts if fact[3]]
