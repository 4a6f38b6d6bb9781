"""How a service scales: bounds, the metric that it follows, and how its decisions are damped."""

from enum import StrEnum
from typing import Annotated

import msgspec

from core.spec import About

MAX_INSTANCES = 100
MAX_WINDOWS = 20
MAX_TARGET = 10**9
MAX_DAMPING_SECONDS = 3600
MAX_QUIET_SECONDS = 7 * 86400
MAX_WINDOW_SECONDS = 7 * 86400
MAX_HOLD_SECONDS = 120


class ScalingMetric(StrEnum):
    """What a service follows; `schedule` follows its windows only."""

    CONCURRENT_REQUESTS = "concurrent_requests"
    REQUESTS_PER_SECOND = "requests_per_second"
    GPU_UTILIZATION = "gpu_utilization"
    SAMPLES = "samples"
    SCHEDULE = "schedule"


class ScalingWindow(msgspec.Struct, frozen=True, kw_only=True):
    """Other bounds at certain times."""

    schedule: Annotated[str, About("When it opens: cron, such as `0 8 * * 1-5`.")]
    duration_seconds: Annotated[
        int, About("How long it is open.", minimum=60, maximum=MAX_WINDOW_SECONDS)
    ]
    time_zone: Annotated[str, About("Of the schedule, such as `Europe/Oslo`.")] = "UTC"
    min_instances: Annotated[int, About(maximum=MAX_INSTANCES)] = 1
    max_instances: Annotated[int, About(minimum=1, maximum=MAX_INSTANCES)] = 1


class Autoscaling(msgspec.Struct, frozen=True, kw_only=True):
    """How a service scales; see docs/autoscaling.md."""

    min_instances: Annotated[
        int, About("With 0 it sleeps when it is not used.", maximum=MAX_INSTANCES)
    ] = 1
    max_instances: Annotated[int, About(minimum=1, maximum=MAX_INSTANCES)] = 1
    metric: Annotated[str, About("What it follows.", choices=tuple(ScalingMetric))] = (
        ScalingMetric.CONCURRENT_REQUESTS.value
    )
    target: Annotated[
        float, About("The value of the metric that an instance is for.", maximum=MAX_TARGET)
    ] = 1.0
    samples: Annotated[
        str, About("With the metric `samples`: MEASUREMENT.FIELD, such as `redis.queue_length`.")
    ] = ""
    tags: Annotated[
        dict[str, str], About("Tags that these samples must have.", maximum=MAX_WINDOWS)
    ] = {}
    up_seconds: Annotated[
        int,
        About("It grows when the metric asked for it this long.", maximum=MAX_DAMPING_SECONDS),
    ] = 0
    down_seconds: Annotated[
        int,
        About("It shrinks when the metric asked for it this long.", maximum=MAX_DAMPING_SECONDS),
    ] = 300
    zero_seconds: Annotated[
        int,
        About("It sleeps after this time without requests.", maximum=MAX_QUIET_SECONDS),
    ] = 600
    max_step: Annotated[
        int, About("The most instances that a decision adds.", minimum=1, maximum=MAX_INSTANCES)
    ] = 4
    hold_seconds: Annotated[
        int,
        About(
            "How long a request of a program waits for a service that sleeps.",
            maximum=MAX_HOLD_SECONDS,
        ),
    ] = 60
    windows: Annotated[
        list[ScalingWindow], About("Other bounds at certain times.", maximum=MAX_WINDOWS)
    ] = []
