"""Health on the dashboards: the agent's judgement of GPUs, and the XIDs of a span."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dash_app.charts import Event
from dash_app.queries.telemetry import Telemetry, by_index
from jobqueue.executors.health import ApplianceHealth, GPUHealth, HealthFinding, HealthReason
from jobqueue.executors.health_advice import advice_for
from jobqueue.executors.xids import XID, XIDKind, xid
from jobqueue.snapshot import read_health
from tenants.models import Appliance

# They count what the findings of the GPUs say one by one.
_SUMMARIES = frozenset({HealthReason.GPU_FAILED, HealthReason.GPU_DEGRADED})


@dataclass(frozen=True, slots=True, kw_only=True)
class XIDEvent:
    """XIDs of one number on one GPU that fell into one window, which began at `time_ns`."""

    time_ns: int
    gpu: str
    xid: XID
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthView:
    """What an appliance's agent told last; `told` is None where it is unknown."""

    told: ApplianceHealth | None

    @property
    def by_uuid(self) -> Mapping[str, GPUHealth]:
        """The GPUs by UUID."""
        return {gpu.uuid: gpu for gpu in self.told.gpus} if self.told else {}

    @property
    def own_findings(self) -> tuple[HealthFinding, ...]:
        """What is wrong with the appliance itself."""
        findings = self.told.findings if self.told else []
        return tuple(one for one in findings if one.reason not in _SUMMARIES)


def health_of(appliance: Appliance) -> HealthView:
    """Return what is known of an appliance's health."""
    return HealthView(told=read_health(appliance))


def names_of(findings: Iterable[HealthFinding]) -> str:
    """Return the findings in a few words each."""
    return ", ".join(advice_for(finding.reason).name for finding in findings)


def xid_events(telemetry: Telemetry) -> tuple[XIDEvent, ...]:
    """Return the XIDs of the span, oldest first."""
    series = telemetry.events("gpu_xid", "events", group_by=("gpu", "xid"))
    found = [
        XIDEvent(
            time_ns=time_ns,
            gpu=one.tags.get("gpu", ""),
            xid=xid(int(one.tags["xid"])),
            count=int(count),
        )
        for one in series
        if one.tags.get("xid", "").isdecimal()
        for time_ns, count in zip(one.times_ns, one.values, strict=True)
    ]
    return tuple(sorted(found, key=lambda one: (one.time_ns, by_index(one.gpu), one.xid.code)))


def chart_events(events: Iterable[XIDEvent]) -> tuple[Event, ...]:
    """Return XIDs as marks for charts."""
    return tuple(
        Event(
            event.time_ns,
            f"XID {event.xid.code}",
            f"GPU {event.gpu}: XID {event.xid.code}, {event.xid.title}",
            event.xid.kind is XIDKind.FATAL,
        )
        for event in events
    )
