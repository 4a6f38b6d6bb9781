"""The health evaluation: from signals to findings, states and class. Pure.

docs/health.md describes each finding and what to do about it.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from collector.health.history import XIDRecord
from collector.health.signals import GPUSignals, Signals
from collector.health.tiers import class_of, is_narrow, tier_of
from core.clock import from_ns, to_ns
from core.quantities import format_size, format_value
from protocol.health import (
    ApplianceHealth,
    GPUHealth,
    HealthFinding,
    HealthReason,
    HealthState,
    advice_for,
)
from protocol.xids import XIDKind, xid

THROTTLED_SECONDS = 300.0
# A GPU that throttles on and off around the threshold stays degraded.
RECOVERED_SECONDS = 120.0
CORRECTED_ERRORS_PER_HOUR = 100
# As the rule pack has it.
LINK_ERRORS_PER_HOUR = 100
# An overheated GPU has recovered when it is this much cooler.
COOLED_CELSIUS = 5.0
SLOW_PCIE_SECONDS = 60.0
EXTERNAL_SECONDS = 60.0
DISK_FULL_PERCENT = 95.0
XID_NS = 24 * 3600 * 1_000_000_000
SHORT_ID_LENGTH = 12

_R, _S = HealthReason, HealthState
SEVERITY = {_S.HEALTHY: 0, _S.DEGRADED: 1, _S.FAILED: 2}


def evaluate_health(signals: Signals, now: datetime) -> ApplianceHealth:
    """Return the health of an appliance, with a finding for each problem."""
    gpus = [_evaluate_gpu(gpu, now) for gpu in signals.gpus]
    findings = [*_appliance_findings(signals), *_gpu_summaries(gpus)]
    return ApplianceHealth(
        state=_worst(findings),
        findings=findings,
        gpus=gpus,
        appliance_class=class_of(tier_of(gpu) for gpu in signals.gpus if gpu.info is not None),
    )


def _evaluate_gpu(gpu: GPUSignals, now: datetime) -> GPUHealth:
    findings = list(_gpu_findings(gpu, now))
    tier = tier_of(gpu)
    return GPUHealth(
        index=gpu.index,
        uuid=gpu.uuid,
        state=_worst(findings),
        findings=findings,
        tier=tier.value if tier else "",
    )


def _gpu_findings(gpu: GPUSignals, now: datetime) -> Iterator[HealthFinding]:
    if gpu.reading.get("lost"):
        yield _failed(_R.LOST, "The driver lost the connection to it: it fell off the bus.")
    elif gpu.is_missing:
        model = f" ({gpu.model})" if gpu.model else ""
        yield _failed(_R.MISSING, f"The driver no longer lists it{model}.")
    yield from _xids(gpu.xids, now)
    yield from _memory(gpu)
    yield from _throttling(gpu)
    yield from _links(gpu)
    if gpu.external is not None and gpu.external.seconds > EXTERNAL_SECONDS:
        yield _degraded(_R.EXTERNAL_PROCESS, _external(gpu))


def _xids(records: Iterable[XIDRecord], now: datetime) -> Iterator[HealthFinding]:
    for record in sorted(records, key=lambda entry: (-entry.last_at_ns, entry.code)):
        definition = xid(record.code)
        times = "" if record.count == 1 else f", {record.count} times since the boot, last"
        detail = f"XID {record.code}{times} at {_clock(record.last_at_ns)}: {definition.title}."
        if definition.kind is XIDKind.FATAL:
            yield _failed(_R.XID_FATAL, detail)
        elif definition.kind is XIDKind.WARNING and to_ns(now) - record.last_at_ns < XID_NS:
            yield _degraded(_R.XID, detail)


def _memory(gpu: GPUSignals) -> Iterator[HealthFinding]:
    reading = gpu.reading
    if reading.get("remapped_rows_failed"):
        yield _failed(_R.REMAP_FAILED, "A faulty memory row could not be remapped.")
    if reading.get("remapped_rows_pending"):
        yield _degraded(_R.REMAP_PENDING, "A faulty memory row is pending remapping.")
    if reading.get("retired_pages_pending"):
        yield _degraded(_R.PAGE_RETIREMENT_PENDING, "A faulty memory page is pending retirement.")
    if reading.get("sram_ecc_threshold_exceeded"):
        yield _failed(
            _R.SRAM_ERRORS, "Its caches had more uncorrectable errors than NVIDIA's threshold."
        )
    if uncorrected := int(reading.get("ecc_uncorrected_volatile", 0)):
        errors = _count(uncorrected, "memory error")
        yield _degraded(
            _R.ECC_UNCORRECTED, f"{errors} could not be corrected since the driver was loaded."
        )
    if gpu.corrected_errors >= CORRECTED_ERRORS_PER_HOUR:
        errors = _count(int(gpu.corrected_errors), "memory error")
        yield _degraded(_R.ECC_CORRECTED, f"{errors} were corrected within an hour.")


def _throttling(gpu: GPUSignals) -> Iterator[HealthFinding]:
    die, limit = (gpu.reading.get(f"{name}_celsius") for name in ("temperature", "shutdown"))
    margin = COOLED_CELSIUS if _R.OVERHEATED in gpu.reported else 0.0
    if die is not None and limit and die >= limit - margin:
        temperatures = (format_value("_celsius", value) for value in (die, limit))
        yield _failed(
            _R.OVERHEATED, "Its die has {}; it switches itself off at {}.".format(*temperatures)
        )
    if gpu.heat_seconds >= _throttle_limit(gpu, _R.THROTTLED_BY_HEAT):
        celsius = gpu.reading.get("temperature_celsius")
        now = "" if celsius is None else f", now at {format_value('_celsius', celsius)}"
        minutes = int(gpu.heat_seconds // 60)
        yield _degraded(
            _R.THROTTLED_BY_HEAT,
            f"Throttled by heat for {minutes} of the last 10 minutes{now}.",
        )
    if gpu.hardware_seconds >= _throttle_limit(gpu, _R.THROTTLED_BY_HARDWARE):
        minutes = int(gpu.hardware_seconds // 60)
        yield _degraded(
            _R.THROTTLED_BY_HARDWARE,
            f"Throttled by the board's protection for {minutes} of the last 10 minutes.",
        )


def _throttle_limit(gpu: GPUSignals, reason: HealthReason) -> float:
    return RECOVERED_SECONDS if reason in gpu.reported else THROTTLED_SECONDS


def _links(gpu: GPUSignals) -> Iterator[HealthFinding]:
    links, active = gpu.reading.get("nvlinks", 0.0), gpu.reading.get("nvlinks_active")
    # A card whose links were never up has no bridge.
    if active is not None and active < links and (active or gpu.had_nvlinks):
        down = int(links - active)
        verb = "is" if down == 1 else "are"
        yield _degraded(_R.NVLINK_DOWN, f"{down} of {int(links)} NVLinks {verb} down.")
    if gpu.link_errors >= LINK_ERRORS_PER_HOUR:
        errors = _count(int(gpu.link_errors), "error")
        yield _degraded(_R.NVLINK_ERRORS, f"Its NVLinks had {errors} within an hour.")
    if gpu.reading.get("fabric_registered") == 0:
        yield _failed(_R.FABRIC_NOT_REGISTERED, "It is not registered with the NVLink fabric.")
    if gpu.reading.get("fabric_degraded"):
        yield _degraded(_R.FABRIC_DEGRADED, "Its NVLink fabric reports a fault.")
    if is_narrow(gpu):
        width, best = int(gpu.reading["pcie_width"]), int(gpu.reading["pcie_width_max"])
        yield _degraded(_R.PCIE_DEGRADED, f"Its PCIe link runs with {width} of {best} lanes.")
    elif gpu.slow_pcie_seconds >= SLOW_PCIE_SECONDS:
        now, best = (int(gpu.reading.get(f"pcie_generation{end}", 0)) for end in ("", "_max"))
        yield _degraded(
            _R.PCIE_DEGRADED,
            f"Its PCIe link stays at generation {now} of {best} under load."
            if now < best
            else f"Its PCIe link stayed below generation {best} under load.",
        )


def _external(gpu: GPUSignals) -> str:
    assert gpu.external is not None  # noqa: S101 - checked by the caller
    owner, used = gpu.external.owner, format_size(gpu.external.memory_bytes)
    if owner == "host":
        return f"A host process outside of jobs uses {used} of its memory."
    return f"The container {owner[:SHORT_ID_LENGTH]} outside of jobs uses {used} of its memory."


def _appliance_findings(signals: Signals) -> Iterator[HealthFinding]:
    if signals.silent_seconds is not None:
        seconds = int(signals.silent_seconds)
        yield _failed(_R.DRIVER_SILENT, f"No GPU could be read for {seconds} s.")
    for mount, percent in sorted(signals.disk_used_percent.items()):
        if percent >= DISK_FULL_PERCENT:
            yield _degraded(_R.DISK_FULL, f"{mount} is {percent:.0f} % full.")


def _gpu_summaries(gpus: Sequence[GPUHealth]) -> Iterator[HealthFinding]:
    failed = [gpu for gpu in gpus if gpu.state is _S.FAILED]
    degraded = [gpu for gpu in gpus if gpu.state is _S.DEGRADED]
    if failed:
        state = _S.FAILED if len(failed) == len(gpus) else _S.DEGRADED
        detail = _summary(failed, len(gpus), "failed")
        yield HealthFinding(reason=_R.GPU_FAILED, state=state, detail=detail)
    if degraded:
        yield _degraded(_R.GPU_DEGRADED, _summary(degraded, len(gpus), "degraded"))


def _summary(gpus: Sequence[GPUHealth], total: int, word: str) -> str:
    worst = [max(gpu.findings, key=lambda finding: SEVERITY[finding.state]) for gpu in gpus]
    named = ", ".join(
        f"GPU {gpu.index} ({advice_for(finding.reason).name})"
        for gpu, finding in zip(gpus, worst, strict=True)
    )
    verb = "" if word == "failed" else "is " if len(gpus) == 1 else "are "
    return f"{len(gpus)} of {_count(total, 'GPU')} {verb}{word}: {named}."


def _worst(findings: Iterable[HealthFinding]) -> HealthState:
    return max(
        (finding.state for finding in findings), key=SEVERITY.__getitem__, default=_S.HEALTHY
    )


def _failed(reason: HealthReason, detail: str) -> HealthFinding:
    return HealthFinding(reason=reason, state=_S.FAILED, detail=detail)


def _degraded(reason: HealthReason, detail: str) -> HealthFinding:
    return HealthFinding(reason=reason, state=_S.DEGRADED, detail=detail)


def _clock(at_ns: int) -> str:
    return f"{from_ns(at_ns):%Y-%m-%d %H:%M:%S} UTC"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
