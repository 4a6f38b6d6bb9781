"""How a service scales: bounds, the metric that it follows, and how its decisions are damped."""

import math
import re
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any

import msgspec

from core.quantities import format_duration, parse_duration
from core.spec import About

MAX_INSTANCES = 100
MAX_WINDOWS = 20
MAX_TARGET = 10**9
MAX_DAMPING_SECONDS = 3600
MAX_QUIET_SECONDS = 7 * 86400
MAX_WINDOW_SECONDS = 7 * 86400
MAX_HOLD_SECONDS = 120
MAX_COST = 10**9


class ScalingMetric(StrEnum):
    """What a service follows; `schedule` follows its windows only."""

    CONCURRENT_REQUESTS = "concurrent_requests"
    REQUESTS_PER_SECOND = "requests_per_second"
    GPU_UTILIZATION = "gpu_utilization"
    SAMPLES = "samples"
    SCHEDULE = "schedule"


class CostPeriod(StrEnum):
    """For how long a highest cost counts: a calendar day or month in UTC."""

    DAY = "day"
    MONTH = "month"


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
    max_cost: Annotated[
        float,
        About(
            "Highest cost in a period: then it has its fewest instances; 0 for none.",
            maximum=MAX_COST,
        ),
    ] = 0.0
    cost_period: Annotated[str, About("Of the highest cost.", choices=tuple(CostPeriod))] = (
        CostPeriod.DAY.value
    )
    windows: Annotated[
        list[ScalingWindow], About("Other bounds at certain times.", maximum=MAX_WINDOWS)
    ] = []


_WINDOW = re.compile(r"(.+) for (.+?) ([0-9]{1,4})-([0-9]{1,4})(?: in (\S+))?")
_BOUNDS = re.compile(r"([0-9]{1,4})-([0-9]{1,4})")
_SECONDS = {"up": "up_seconds", "down": "down_seconds", "zero": "zero_seconds"}
_SECONDS |= {"hold": "hold_seconds"}
_COST = re.compile(r"([0-9.]{1,20}) ?/ ?(day|month)")
_EXPECTED = "enter MIN-MAX; METRIC=TARGET, such as 0-4; concurrent_requests=8; zero=10m"


def parse_autoscaling(text: str) -> Autoscaling:
    """Return the policy of `0-4; concurrent_requests=8; zero=10m`, as users write it.

    Further parts are `up=`, `down=` and `hold=` with durations, `step=` with a number, `samples=`
    with MEASUREMENT.FIELD, `tag.NAME=`, `cost=50/day` or `/month`, and windows such as
    `window=0 8 * * 1-5 for 10h 2-8 in Europe/Oslo`.

    Raises:
        ValueError: says what is expected.
    """
    first, *others = [part.strip() for part in text.split(";") if part.strip()] or [""]
    bounds = _BOUNDS.fullmatch(first)
    if not bounds:
        raise ValueError(f"{first!r} is not a number of instances; {_EXPECTED}.")
    values: dict[str, Any] = {"min_instances": int(bounds[1]), "max_instances": int(bounds[2])}
    values |= {"windows": [], "tags": {}}
    for part in others:
        name, _, value = (word.strip() for word in part.partition("="))
        if name in _SECONDS:
            values[_SECONDS[name]] = round(parse_duration(value))
        elif name == "window":
            values["windows"].append(_parse_window(value))
        elif name.startswith("tag."):
            values["tags"][name.removeprefix("tag.")] = value
        elif name in _PARSERS:
            values |= _PARSERS[name](value)
        elif name == ScalingMetric.SAMPLES and not _is_number(value):
            values["samples"] = value
        elif name in tuple(ScalingMetric):
            values |= {"metric": name, "target": _number(value) if value else 1.0}
        else:
            raise ValueError(f"{name!r} is not a part of a policy; {_EXPECTED}.")
    return Autoscaling(**values)


def format_autoscaling(policy: Autoscaling) -> str:
    """Return a policy as `parse_autoscaling` accepts it, without what is as by default."""
    usual = Autoscaling()
    target = "" if policy.metric == ScalingMetric.SCHEDULE else f"={policy.target:.15g}"
    parts = [f"{policy.min_instances}-{policy.max_instances}", f"{policy.metric}{target}"]
    parts += [f"samples={policy.samples}"] if policy.samples else []
    parts += [f"tag.{name}={value}" for name, value in policy.tags.items()]
    for name, field in _SECONDS.items():
        if (seconds := getattr(policy, field)) != getattr(usual, field):
            parts.append(f"{name}={format_duration(seconds, exact=True)}")
    parts += [f"step={policy.max_step}"] if policy.max_step != usual.max_step else []
    parts += [f"cost={policy.max_cost:.15g}/{policy.cost_period}"] if policy.max_cost else []
    for window in policy.windows:
        duration = format_duration(window.duration_seconds, exact=True)
        numbers = f"{window.min_instances}-{window.max_instances}"
        zone = "" if window.time_zone == "UTC" else f" in {window.time_zone}"
        parts.append(f"window={window.schedule} for {duration} {numbers}{zone}")
    return "; ".join(parts)


def _parse_window(text: str) -> ScalingWindow:
    match = _WINDOW.fullmatch(text)
    if not match:
        raise ValueError(f"{text!r} is not a window; enter one such as 0 8 * * 1-5 for 10h 2-8.")
    return ScalingWindow(
        schedule=match[1].strip(),
        duration_seconds=round(parse_duration(match[2])),
        min_instances=int(match[3]),
        max_instances=int(match[4]),
        time_zone=match[5] or "UTC",
    )


def _parse_cost(text: str) -> dict[str, Any]:
    match = _COST.fullmatch(text)
    if not match:
        raise ValueError(f"{text!r} is not a highest cost; enter one such as 50/day.")
    return {"max_cost": _number(match[1]), "cost_period": match[2]}


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _number(text: str) -> float:
    if not _is_number(text) or not math.isfinite(float(text)):
        raise ValueError(f"{text!r} is not a number; {_EXPECTED}.")
    return float(text)


_PARSERS: dict[str, Callable[[str], dict[str, Any]]] = {
    "cost": _parse_cost,
    "step": lambda text: {"max_step": round(_number(text))},
}
