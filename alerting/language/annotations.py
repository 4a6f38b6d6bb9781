"""Annotations: the sentence of an alert, from a template of its rule; and the text of its value.

A template is Jinja2 in its sandbox, of which only expressions and `if` are allowed: loops, macros
and calls could take any time and memory of the server. What remains is bounded, because templates
are parsed, compiled and rendered where they hold up all other requests. It knows `value`,
`value_text`, `threshold_text`, `severity`, `state`, `rule`, `tenant`, `labels` (the alert's tags)
and `links`.
"""

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from jinja2 import Template, TemplateError, nodes
from jinja2.exceptions import FilterArgumentError
from jinja2.filters import FILTERS, do_round
from jinja2.sandbox import ImmutableSandboxedEnvironment

from alerting.models import Rule
from alerting.rule_request import RuleRequest, unit_field
from alerting.states import FORECAST
from core.quantities import format_duration, format_value
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
MAX_TEMPLATE_LENGTH = 1000
MAX_LENGTH = 2000
# Jinja's optimizer needs time by the cube of the depth.
_MAX_DEPTH = 16
_MAX_NODES = 200
_MAX_DIGITS = 15
_DIGITS_ERROR = f"'round' takes from -{_MAX_DIGITS} to {_MAX_DIGITS} digits"
_MAX_NUMBER = 10**18
_MAX_LABEL_LENGTH = 500
_FILTERS = ("abs", "default", "float", "int")
_TEXT_FILTERS = ("lower", "title", "trim", "upper")
_NODES = (
    nodes.Add,
    nodes.And,
    nodes.Compare,
    nodes.Concat,
    nodes.CondExpr,
    nodes.Const,
    nodes.Div,
    nodes.Filter,
    nodes.Getattr,
    nodes.Getitem,
    nodes.If,
    nodes.Mul,
    nodes.Name,
    nodes.Neg,
    nodes.Not,
    nodes.Operand,
    nodes.Or,
    nodes.Output,
    nodes.Sub,
    nodes.Template,
    nodes.TemplateData,
    nodes.Test,
)


def annotation_errors(text: str) -> list[str]:
    """Return why a text is not a template of an annotation."""
    if len(text) > MAX_TEMPLATE_LENGTH:
        return [f"The annotation has {len(text)} characters. Use at most {MAX_TEMPLATE_LENGTH}."]
    try:
        # Before it is compiled, which calculates constants.
        problem = _problem(_ENVIRONMENT.parse(text))
        if not problem:
            _template(text)
    except RecursionError:
        problem = "is nested too deeply. Use fewer parentheses and operators"
    except TemplateError as error:
        problem = f"is not a valid template: {error}".removesuffix(".")
    return [f"The annotation {problem}."] if problem else []


def render_annotation(text: str, values: Mapping[str, object]) -> str:
    """Return the annotation of an alert; one that fails is its own text with the error."""
    if not text or annotation_errors(text):
        return text
    try:
        return _template(text).render(_cut(values))[:MAX_LENGTH].strip()
    except (TemplateError, ArithmeticError, TypeError, ValueError) as error:
        return f"{text} ({type(error).__name__}: {error})"[:MAX_LENGTH]


def _problem(tree: nodes.Template) -> str:
    """Return what a template must not have; empty if there is nothing."""
    level: list[nodes.Node] = [tree]
    node_count = 0
    for _ in range(_MAX_DEPTH):
        for node in level:
            if problem := _node_problem(node):
                return problem
        level = [child for node in level for child in node.iter_child_nodes()]
        node_count += len(level)
        if node_count > _MAX_NODES:
            return f"has more than {_MAX_NODES} values and operators. Use fewer"
    return f"is nested more than {_MAX_DEPTH} levels deep. Use fewer operators" if level else ""


def _node_problem(node: nodes.Node) -> str:
    if not isinstance(node, _NODES) or (isinstance(node, nodes.Mul) and not _is_arithmetic(node)):
        kind = type(node).__name__.lower()
        allowed = "text, {{ expressions }} and {% if %}"
        return f"uses {kind!r}, which is not allowed. Use {allowed}"
    if isinstance(node, nodes.Const):
        return _constant_problem(node.value)
    if isinstance(node, nodes.Filter) and node.name == "round":
        digits = node.args[0] if node.args else nodes.Const(0)
        constant = digits.node if isinstance(digits, nodes.Neg) else digits
        if not isinstance(constant, nodes.Const) or not _is_digits(constant.value):
            return f"is not a valid template: {_DIGITS_ERROR}"
    return ""


def _constant_problem(value: object) -> str:
    if isinstance(value, str) and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            return "has half of a character ('\\ud800' to '\\udfff'). Write the whole one"
    if isinstance(value, int | float) and not abs(value) <= _MAX_NUMBER:
        return f"has a number above {_MAX_NUMBER:.0e}. Use a smaller one"
    return ""


def _is_arithmetic(node: nodes.Mul) -> bool:
    """Return whether a product can't repeat a text: it is of the number `value` and a constant."""
    sides = (node.left, node.right)
    return any(isinstance(side, nodes.Name) and side.name == "value" for side in sides) and any(
        isinstance(side, nodes.Const) and isinstance(side.value, int | float) for side in sides
    )


def _cut(value: Any) -> Any:  # noqa: ANN401 - any value of a template
    """Return a value of a template without the rest of its long texts."""
    if isinstance(value, Mapping):
        return {name: _cut(text) for name, text in value.items()}
    return value[:_MAX_LABEL_LENGTH] if isinstance(value, str) else value


def _is_digits(value: object) -> bool:
    return isinstance(value, int) and abs(value) <= _MAX_DIGITS


def _round(value: float, precision: int = 0, method: Any = "common") -> float:  # noqa: ANN401
    """Round as Jinja does, which calculates powers of ten of any size."""
    if not _is_digits(precision):
        raise FilterArgumentError(_DIGITS_ERROR)
    return do_round(value, precision, method)


def _of_cut_text(text_filter: Callable[..., str]) -> Callable[..., str]:
    """Return a filter that reads no more of a text than an annotation shows."""
    return lambda text, *arguments: text_filter(str(text)[:MAX_LENGTH], *arguments)


def _printf(value: object, pattern: str) -> str:
    """Return a value in the notation of printf; see `_PRINTF`."""
    match = _PRINTF.fullmatch(str(pattern))
    if match is None:
        raise FilterArgumentError("'printf' takes text with one of %f %e %g %d %s %v, such as %.2f")
    before, flags, kind, after = match.groups()
    if kind in "sv":
        shown = f"{value:g}" if isinstance(value, float) else str(value)[:MAX_LENGTH]
        return f"{before}{shown}{after}".replace("%%", "%")
    number = int(float(str(value))) if kind == "d" else float(str(value))
    return f"{before}{f'%{flags}{kind}' % number}{after}".replace("%%", "%")


def _humanized(value: float) -> str:
    """Return a number with a prefix such as `k` or `m`, as Prometheus does."""
    number, prefix = float(value), ""
    large, small = iter("kMGTPEZY"), iter("mμnpfazy")
    while abs(number) >= _THOUSAND and (following := next(large, "")):
        number, prefix = number / _THOUSAND, following
    while 0 < abs(number) < 1 and (following := next(small, "")):
        number, prefix = number * _THOUSAND, following
    return f"{number:.4g}{prefix}"


def _humanized_1024(value: float) -> str:
    """Return a number with a prefix such as `Ki`, as Prometheus does."""
    number, prefix, large = float(value), "", iter("KMGTPEZY")
    while abs(number) >= _KIBI and (following := next(large, "")):
        number, prefix = number / _KIBI, f"{following}i"
    return f"{number:.4g}{prefix}"


_THOUSAND, _KIBI = 1000.0, 1024.0
_PRINTF = re.compile(r"((?:[^%]|%%)*)%([-+ 0]?[0-9]?[0-9]?(?:\.[0-9])?)([fegdsv])((?:[^%]|%%)*)")
_ENVIRONMENT = ImmutableSandboxedEnvironment()
_ENVIRONMENT.filters = {
    "round": _round,
    "printf": _printf,
    "humanize": _humanized,
    "humanize1024": _humanized_1024,
    "humanizeDuration": lambda value: format_duration(float(value)),
    "humanizePercentage": lambda value: f"{float(value) * 100:.4g}%",
    **{name: FILTERS[name] for name in _FILTERS},
    **{name: _of_cut_text(FILTERS[name]) for name in _TEXT_FILTERS},
}
_ENVIRONMENT.globals = {}


@lru_cache(maxsize=500)
def _template(text: str) -> Template:
    return _ENVIRONMENT.from_string(text)


def value_text(rule: Rule | RuleRequest, value: float) -> str:
    """Return a value with the unit of the rule's field, or with its word; a count has none."""
    words = _WORDS.get(f"{rule.measurement}.{rule.field}", ())
    is_plain = not rule.operator and not rule.compared_with and rule.aggregate != FORECAST
    if is_plain and rule.aggregate in _OF_SAMPLES and value in range(len(words)):
        return f"{words[int(value)]} ({value:g})"
    return format_value(unit_field(rule), value)
