"""Validation of how services scale."""

import math
from collections.abc import Iterator

from core.schedule_times import check_schedule, check_time_zone
from core.spec import limit_errors
from protocol.autoscaling import Autoscaling, CostPeriod, ScalingMetric, ScalingWindow

MAX_LENGTH = 200
_REQUEST_METRICS = frozenset({ScalingMetric.CONCURRENT_REQUESTS, ScalingMetric.REQUESTS_PER_SECOND})


def autoscaling_errors(policy: Autoscaling, *, has_ports: bool, has_gpus: bool) -> Iterator[str]:
    """Yield what is wrong with how a service scales, whose job has ports or GPUs, or not."""
    for _, error in limit_errors(policy):
        yield error
    if policy.min_instances > policy.max_instances:
        yield f"min_instances is {policy.min_instances}; enter at most max_instances."
    if policy.metric not in tuple(ScalingMetric):
        yield f"{policy.metric!r} is not a metric; enter {', '.join(ScalingMetric)}."
        return
    if not math.isfinite(policy.max_cost):
        yield f"max_cost is {policy.max_cost:g}; enter an amount, or 0 for none."
    if policy.cost_period not in tuple(CostPeriod):
        yield f"cost_period is {policy.cost_period!r}; enter {' or '.join(CostPeriod)}."
    metric = ScalingMetric(policy.metric)
    yield from _target_errors(policy, metric, has_gpus=has_gpus)
    if metric in _REQUEST_METRICS and not has_ports:
        yield f"{metric.value} are counted at ports; add one, or choose another metric."
    yield from _sample_errors(policy, metric)
    has_waking_window = any(window.min_instances for window in policy.windows)
    if policy.min_instances == 0 and not (
        has_ports or has_waking_window or metric is ScalingMetric.SAMPLES
    ):
        yield "min_instances is 0, but nothing would wake the service; add a port, or enter 1."
    if metric is ScalingMetric.SCHEDULE and not policy.windows:
        yield "The metric schedule needs windows; add one."
    for window in policy.windows:
        yield from _window_errors(window)


def _target_errors(policy: Autoscaling, metric: ScalingMetric, *, has_gpus: bool) -> Iterator[str]:
    if not (math.isfinite(policy.target) and policy.target > 0):
        yield f"target is {policy.target:g}; enter more than 0."
    if metric is ScalingMetric.GPU_UTILIZATION:
        if not has_gpus:
            yield "gpu_utilization needs GPUs; set gpus, or choose another metric."
        if policy.target > 100:  # noqa: PLR2004 - percent
            yield f"target is {policy.target:g}; a utilization is at most 100 percent."


def _sample_errors(policy: Autoscaling, metric: ScalingMetric) -> Iterator[str]:
    parts = policy.samples.split(".")
    is_name = len(parts) == 2 and all(parts) and policy.samples.isprintable()  # noqa: PLR2004
    if metric is not ScalingMetric.SAMPLES:
        if policy.samples or policy.tags:
            yield "samples and tags are for the metric samples; choose it, or remove them."
    elif not is_name or len(policy.samples) > MAX_LENGTH:
        yield f"samples is {policy.samples!r}; enter MEASUREMENT.FIELD, such as redis.queue_length."
    if any(len(name) + len(value) > MAX_LENGTH for name, value in policy.tags.items()):
        yield f"A tag has more than {MAX_LENGTH} characters; enter a shorter one."


def _window_errors(window: ScalingWindow) -> Iterator[str]:
    for _, error in limit_errors(window):
        yield f"{error.removesuffix('.')}, in each window."
    if window.min_instances > window.max_instances:
        yield "min_instances of a window is above its max_instances; enter at most that."
    for check, text in ((check_schedule, window.schedule), (check_time_zone, window.time_zone)):
        try:
            check(text)
        except ValueError as error:
            yield str(error)
