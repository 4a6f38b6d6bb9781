"""What the pages say of health: every finding with its place, its name and what to do."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from jobqueue.executors.health import ApplianceHealth, HealthFinding, HealthReason, HealthState
from jobqueue.executors.health_advice import advice_for
from jobqueue.models import Attempt
from jobqueue.snapshot import read_health

# They count what the findings of the GPUs say one by one.
_SUMMARIES = frozenset({HealthReason.GPU_FAILED, HealthReason.GPU_DEGRADED})
_ORDER = (HealthState.FAILED, HealthState.DEGRADED, HealthState.HEALTHY)


@dataclass(frozen=True, slots=True)
class FindingRow:
    """One finding; `gpu` is the index of the GPU, None for the appliance itself."""

    gpu: int | None
    state: HealthState
    name: str
    detail: str
    action: str


def finding_rows(health: ApplianceHealth | None) -> list[FindingRow]:
    """Return all findings, the worst first, those of the appliance before those of its GPUs."""
    if health is None:
        return []
    own = [one for one in health.findings if one.reason not in _SUMMARIES]
    rows = [*_rows(None, own)]
    for gpu in health.gpus:
        rows += _rows(gpu.index, gpu.findings)
    return sorted(rows, key=lambda row: _ORDER.index(row.state))


def gpu_states(health: ApplianceHealth | None) -> Mapping[str, HealthState]:
    """Return the state of each GPU by its UUID."""
    return {gpu.uuid: gpu.state for gpu in health.gpus} if health else {}


def gpu_tiers(health: ApplianceHealth | None) -> Mapping[str, str]:
    """Return the tier of each GPU by its UUID; one that is not known is left out."""
    return {gpu.uuid: gpu.tier for gpu in health.gpus if gpu.tier} if health else {}


def troubles(attempt: Attempt | None) -> list[FindingRow]:
    """Return the findings of the GPUs that an attempt holds: what its user should know."""
    health = read_health(attempt.appliance) if attempt else None
    if attempt is None or health is None:
        return []
    held = [gpu for gpu in health.gpus if gpu.uuid in attempt.gpu_uuids]
    return finding_rows(ApplianceHealth(state=health.state, gpus=held))


def _rows(gpu: int | None, findings: Iterable[HealthFinding]) -> Iterator[FindingRow]:
    for finding in findings:
        advice = advice_for(finding.reason)
        yield FindingRow(gpu, finding.state, advice.name, finding.detail, advice.action)
