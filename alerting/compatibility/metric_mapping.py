"""PromQL about metrics of other programs as PromQL about ours, by `timeseries.metric_map`.

All of an expression is mapped, or nothing of it: half of it would match no series of the other.
Labels of the senders become our tags, and `instance` becomes `appliance`.
"""

import re
from collections.abc import Mapping

import promql_parser as grammar

from timeseries.declared import DECLARED
from timeseries.metric_map import MetricMapping, Use, all_mappings, mapping_of
from timeseries.prometheus_names import metric_name
from timeseries.promql.evaluation import matchers_of
from timeseries.promql.syntax import milliseconds, nodes, on_one_line
from timeseries.promql.values import NAME_LABEL
from timeseries.store import APPLIANCE_TAG

_HOST_LABELS = ("instance", "Hostname", "hostname", "node", "nodename", "host")
_JOB_LABEL = "job"
_GROUPING = re.compile(r"\b(by|without|on|ignoring|group_left|group_right) \(([^()]*)\)")
# A factor of the samples is one of these functions' results.
_LINEAR = frozenset(
    {"avg_over_time", "min_over_time", "max_over_time", "sum_over_time", "last_over_time"}
    | {"delta", "deriv", "idelta", "predict_linear", "quantile_over_time"}
)
_OF_COUNTERS = frozenset({"rate", "irate", "increase"})


class _UnmappableError(ValueError):
    """A part of the expression has no equivalent."""


def onto_our_metrics(tree: grammar.Expr) -> tuple[str, Mapping[str, str]] | None:
    """Return an expression about our metrics, and our tag for each label that it had.

    None if a part of it has no equivalent.
    """
    renamed = dict.fromkeys(_HOST_LABELS, APPLIANCE_TAG)
    replacements: dict[str, str] = {}
    try:
        for node in nodes(tree):
            match node:
                case grammar.Call():
                    replacements |= _replaced_call(node, renamed)
                case grammar.VectorSelector():
                    mapping = _mapping_of(node)
                    if str(node) not in "\0".join(replacements) or mapping.use is not Use.RATE:
                        replacements |= _replaced_selector(node, mapping, renamed)
        text = str(tree)
        # Longer ones first: a call has its selector in it.
        for old in sorted(replacements, key=len, reverse=True):
            text = re.sub(rf"(?<![\w:]){re.escape(old)}", _literal(replacements[old]), text)
        text = _GROUPING.sub(lambda match: _grouping(match, renamed), text)
    except _UnmappableError:
        return None
    return on_one_line(text), renamed


def _replaced_call(node: grammar.Call, renamed: dict[str, str]) -> dict[str, str]:
    """Return the replacement of a function of a range, whose selector can't be arithmetic."""
    ranges = [argument for argument in node.args if isinstance(argument, grammar.MatrixSelector)]
    if not ranges:
        return {}
    selector, name = ranges[0].vector_selector, node.func.name
    mapping = _mapping_of(selector)
    ours = _selector(selector, mapping, renamed)
    seconds = milliseconds(ranges[0].range) / 1000
    if mapping.use is Use.RATE and name in _OF_COUNTERS:
        function = "last_over_time" if name == "irate" else "avg_over_time"
        text = f"{function}({ours}[{seconds:g}s]{_offset(selector)})"
        return {str(node): _scaled(text, mapping.scale / (seconds if name == "increase" else 1))}
    if mapping.use is not Use.VALUE or (mapping.scale != 1 and name not in _LINEAR):
        raise _UnmappableError
    old = str(ranges[0])
    new = str(node).replace(old, f"{ours}[{seconds:g}s]{_offset(selector)}")
    return {str(node): _scaled(new, mapping.scale)}


def _replaced_selector(
    node: grammar.VectorSelector, mapping: MetricMapping, renamed: dict[str, str]
) -> dict[str, str]:
    ours = _selector(node, mapping, renamed) + _offset(node)
    match mapping.use:
        case Use.VALUE:
            return {str(node): _scaled(ours, mapping.scale)}
        case Use.AGE:
            return {str(node): f"(time() - {ours})"}
    raise _UnmappableError


def _mapping_of(node: grammar.VectorSelector) -> MetricMapping:
    required = {label: text for label, sign, text in matchers_of(node) if sign == "="}
    mapping = mapping_of(node.name or "", required)
    if mapping is None or mapping.field not in DECLARED[mapping.measurement].fields:
        raise _UnmappableError
    # Several metrics that are one of ours, such as errors received and sent, can't be told apart.
    sources = {other.source for other in all_mappings() if _has_same_target(other, mapping)}
    if len(sources) > 1:
        raise _UnmappableError
    return mapping


def _has_same_target(mapping: MetricMapping, other: MetricMapping) -> bool:
    return (mapping.sender, mapping.metric) == (other.sender, other.metric)


def _selector(node: grammar.VectorSelector, mapping: MetricMapping, renamed: dict[str, str]) -> str:
    """Return the selector of our metric, without what its series have anyhow."""
    renamed.update(mapping.tags)
    kept_matchers = []
    for label, sign, text in matchers_of(node):
        is_skipped = label in mapping.skip and sign.startswith("!")
        if label in {NAME_LABEL, _JOB_LABEL} or label in mapping.where or is_skipped:
            continue
        if label not in mapping.tags:
            raise _UnmappableError
        escaped = text.replace("\\", "\\\\").replace('"', '\\"')
        kept_matchers.append(f'{mapping.tags[label]}{sign}"{escaped}"')
    name = metric_name(mapping.measurement, mapping.field)
    return f"{name}{{{','.join(kept_matchers)}}}" if kept_matchers else name


def _offset(node: grammar.VectorSelector) -> str:
    seconds = milliseconds(node.offset) / 1000
    return f" offset {seconds:g}s" if seconds else ""


def _scaled(text: str, scale: float) -> str:
    return text if scale == 1 else f"({text} / {scale:.12g})"


def _grouping(match: re.Match[str], renamed: Mapping[str, str]) -> str:
    labels = [label.strip() for label in match[2].split(",")]
    tags = [renamed[label] for label in labels if label in renamed]
    others = [label for label in labels if label and label not in {*renamed, _JOB_LABEL}]
    if others and match[1] in {"by", "on", "group_left", "group_right"}:
        raise _UnmappableError
    return f"{match[1]} ({', '.join(dict.fromkeys(tags))})"


def _literal(text: str) -> str:
    """Return a replacement for `re.sub` that stands for itself."""
    return text.replace("\\", "\\\\")
