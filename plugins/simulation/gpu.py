"""One simulated GPU: memory fills, utilization and power rise, temperature lags, heat throttles."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from plugins.simulation.config import Workload, approach, fraction, wander
from protocol.gpu_slices import GPUSlice

IDLE_WATTS = 70.0
IDLE_CLOCK_HERTZ = 345_000_000
THROTTLED_CLOCK_SHARE = 0.5
MEMORY_CLOCK_HERTZ = 2_619_000_000
RESERVED_BYTES = 600 * 1024 * 1024
INLET_CELSIUS = 27.0
CELSIUS_PER_WATT = 0.066
HOT_CELSIUS_PER_WATT = 0.108
THROTTLE_ABOVE_CELSIUS = 86.0
THROTTLE_UNTIL_CELSIUS = 80.0
THROTTLED_POWER_SHARE = 0.72
HEAT_LAG_SECONDS = 35.0
MEMORY_LAG_SECONDS = 6.0
WARM_UP_SECONDS = 12.0
EPOCH_SECONDS = 95.0
EPOCH_PAUSE_SECONDS = 6.0


@dataclass(frozen=True, slots=True)
class GPUReading:
    """Readings of one GPU at one instant."""

    utilization_percent: float
    memory_utilization_percent: float
    memory_used_bytes: int
    temperature_celsius: float
    power_watts: float
    sm_clock_hertz: int
    energy_joules: float
    is_throttled: bool
    is_held: bool


@dataclass(frozen=True, slots=True)
class SliceReading:
    """Readings of a workload's part of a GPU; the utilization is that of the part."""

    workload: Workload
    gpu_slice: GPUSlice
    utilization_percent: float
    memory_used_bytes: int


class SimulatedGPU:
    """State of one GPU between readings."""

    def __init__(
        self,
        name: str,
        *,
        memory_bytes: int,
        power_limit_watts: float,
        sm_clock_hertz: int,
        is_hot: bool,
    ) -> None:
        self._name = name
        self._boost_clock_hertz = sm_clock_hertz
        self._joules = 0.0
        self._memory_bytes = memory_bytes
        self._limit_watts = power_limit_watts
        self._celsius_per_watt = HOT_CELSIUS_PER_WATT if is_hot else CELSIUS_PER_WATT
        self._memory_used = float(RESERVED_BYTES)
        self._celsius = INLET_CELSIUS + IDLE_WATTS * self._celsius_per_watt
        self._is_throttled = False

    def advance(
        self,
        workload: Workload | None,
        now: datetime,
        *,
        elapsed_seconds: float,
        slices: Sequence[SliceReading] = (),
    ) -> GPUReading:
        """Return the reading at `now`, `elapsed_seconds` after the last.

        `slices` are those of the workloads that share it.
        """
        seconds = now.timestamp()
        shares = (own.utilization_percent * own.gpu_slice.share_milli / 1000 for own in slices)
        utilization = min(100.0, sum(shares)) if slices else self._utilization(workload, now)
        self._fill_memory(workload, elapsed_seconds)
        if slices:
            self._memory_used = RESERVED_BYTES + sum(own.memory_used_bytes for own in slices)
        watts = self._power(utilization, seconds)
        self._joules += watts * elapsed_seconds
        self._heat(watts, seconds, elapsed_seconds)
        return GPUReading(
            utilization_percent=float(round(utilization)),
            memory_utilization_percent=float(round(utilization * 0.55)),
            memory_used_bytes=int(self._memory_used),
            temperature_celsius=float(round(self._celsius)),
            power_watts=round(watts, 1),
            sm_clock_hertz=self._clock(utilization),
            energy_joules=round(self._joules, 1),
            is_throttled=self._is_throttled,
            is_held=workload is not None and workload.until_at is None,
        )

    def read_slice(self, workload: Workload, gpu_slice: GPUSlice, now: datetime) -> SliceReading:
        """Return the reading of a workload that has a part of this GPU."""
        name = f"memory:{workload.workload_id}/{self._name}"
        limit = gpu_slice.memory_bytes or self._memory_bytes * gpu_slice.share_milli / 1000
        filled = approach(
            0, 1, elapsed_seconds=workload.age_seconds(now), lag_seconds=MEMORY_LAG_SECONDS
        )
        return SliceReading(
            workload=workload,
            gpu_slice=gpu_slice,
            utilization_percent=float(round(self._utilization(workload, now))),
            memory_used_bytes=int(filled * (0.45 + 0.45 * fraction(name)) * limit),
        )

    def _fill_memory(self, workload: Workload | None, elapsed_seconds: float) -> None:
        name = f"memory:{workload.workload_id}/{self._name}" if workload else ""
        share = 0.55 + 0.4 * fraction(name) if workload else 0.0
        target = RESERVED_BYTES + share * (self._memory_bytes - RESERVED_BYTES)
        lag_seconds = MEMORY_LAG_SECONDS if workload else 1.0
        self._memory_used = approach(
            self._memory_used, target, elapsed_seconds=elapsed_seconds, lag_seconds=lag_seconds
        )

    def _power(self, utilization: float, seconds: float) -> float:
        ripple = 1 + 0.03 * wander(f"power:{self._name}", seconds, period_seconds=4)
        full = (0.96 * self._limit_watts - IDLE_WATTS) * math.pow(utilization / 100, 0.9)
        share = THROTTLED_POWER_SHARE if self._is_throttled else 1.0
        return min(self._limit_watts, (IDLE_WATTS + full * share) * ripple)

    def _heat(self, watts: float, seconds: float, elapsed_seconds: float) -> None:
        inlet = INLET_CELSIUS + 1.5 * wander(f"inlet:{self._name}", seconds, period_seconds=900)
        self._celsius = approach(
            self._celsius,
            inlet + watts * self._celsius_per_watt,
            elapsed_seconds=elapsed_seconds,
            lag_seconds=HEAT_LAG_SECONDS,
        )
        if self._is_throttled:
            self._is_throttled = self._celsius > THROTTLE_UNTIL_CELSIUS
        else:
            self._is_throttled = self._celsius > THROTTLE_ABOVE_CELSIUS

    def _clock(self, utilization: float) -> int:
        if self._is_throttled:
            return int(THROTTLED_CLOCK_SHARE * self._boost_clock_hertz)
        return self._boost_clock_hertz if utilization > 0 else IDLE_CLOCK_HERTZ

    def _utilization(self, workload: Workload | None, now: datetime) -> float:
        if workload is None:
            return 0.0
        name, seconds = f"{workload.workload_id}/{self._name}", now.timestamp()
        age_seconds = workload.age_seconds(now)
        if age_seconds < WARM_UP_SECONDS:  # loading data and weights
            return 4 + 8 * fraction(f"warm:{name}:{int(seconds)}")
        if workload.is_service:  # inference with varying traffic
            traffic = wander(f"traffic:{name}", seconds, period_seconds=240)
            burst = wander(f"burst:{name}", seconds, period_seconds=7)
            return min(100.0, max(2.0, 42 + 28 * traffic + 12 * burst))
        offset = EPOCH_SECONDS * fraction(f"epoch:{name}")
        if (age_seconds + offset) % EPOCH_SECONDS < EPOCH_PAUSE_SECONDS:  # validation
            return 22 + 15 * fraction(f"pause:{name}:{int(seconds)}")
        batches = 95 + 4 * wander(f"batch:{name}", seconds, period_seconds=3)
        return max(2.0, min(100.0, batches * workload.intensity))
