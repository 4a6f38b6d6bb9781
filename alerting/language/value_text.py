"""The words for values that are states: `failed (2)` says more than `2`."""

from alerting.models import Rule
from alerting.rule_request import RuleRequest, unit_field
from alerting.states import FORECAST
from core.quantities import format_value
from timeseries.store import Aggregate

_NO_YES = ("no", "yes")
_WORDS = {
    "appliance_status.quarantined": _NO_YES,
    "appliance_status.reachable": ("unreachable", "reachable"),
    "gpu.fabric_degraded": _NO_YES,
    "gpu.fabric_registered": _NO_YES,
    "gpu.lost": _NO_YES,
    "gpu.remapped_rows_failed": _NO_YES,
    "gpu.sram_ecc_threshold_exceeded": _NO_YES,
    "gpu_health.state": ("healthy", "degraded", "failed"),
    "gpu_link.active": ("down", "up"),
    "network.link_up": ("down", "up"),
    "service_status.healthy": ("unhealthy", "healthy"),
}
# Of these functions, values are those of samples.
_OF_SAMPLES = {Aggregate.MIN, Aggregate.MAX, Aggregate.LAST}


def value_text(rule: Rule | RuleRequest, value: float) -> str:
    """Return a value with the unit of the rule's field, or with its word; a count has none."""
    words = _WORDS.get(f"{rule.measurement}.{rule.field}", ())
    is_plain = not rule.operator and not rule.compared_with and rule.aggregate != FORECAST
    if is_plain and rule.aggregate in _OF_SAMPLES and value in range(len(words)):
        return f"{words[int(value)]} ({value:g})"
    return format_value(unit_field(rule), value)
