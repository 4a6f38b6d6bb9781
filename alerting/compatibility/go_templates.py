"""Templates of Prometheus' annotations as those of ours: `{{ $value | humanize }}`."""

import json
import re
from collections.abc import Mapping

from alerting.language.annotations import MAX_TEMPLATE_LENGTH

_ACTION = re.compile(r"\{\{-?\s*(.*?)\s*-?\}\}", re.DOTALL)
_LABEL = re.compile(r"\$?\.?[lL]abels\.(\w+)")
_VALUE = re.compile(r"\$value|\.Value")
_PRINTF = re.compile(r'printf\s+("(?:[^"\\]|\\.)*")\s*(.*)')
_FUNCTIONS = frozenset(
    {"humanize", "humanize1024", "humanizeDuration", "humanizePercentage", "title"}
)
_OUR_NAMES = {"toUpper": "upper", "toLower": "lower", "title": "title"}
# `labels.items` would be the method of a mapping.
_METHODS = frozenset(dir(dict))


def converted_template(text: str, renamed: Mapping[str, str]) -> str:
    """Return a template of ours.

    Args:
        text: that of Prometheus.
        renamed: our tag for labels that have another name.

    Raises:
        ValueError: names the action that has no equivalent.
    """
    parts, at = [], 0
    for match in _ACTION.finditer(text):
        parts += [_plain(text[at : match.start()]), _action(match[1], renamed)]
        at = match.end()
    return "".join([*parts, _plain(text[at:])]).strip()


def annotation_of(
    annotations: Mapping[str, object], renamed: Mapping[str, str]
) -> tuple[str, list[str]]:
    """Return the annotation of a rule, and what of Prometheus' annotations is not in it."""
    texts, left_out = list[str](), list[str]()
    for key, prefix in (("summary", ""), ("description", ""), ("runbook_url", "Runbook: ")):
        text = annotations.get(key, annotations.get("message") if key == "summary" else None)
        if text is None:
            continue
        try:
            converted = prefix + converted_template(str(text), renamed)
        except ValueError as error:
            left_out.append(f"annotation {key} ({error})")
            continue
        if len("\n".join([*texts, converted])) > MAX_TEMPLATE_LENGTH:
            left_out.append(f"annotation {key} (too long)")
        else:
            texts.append(converted)
    others = annotations.keys() - {"summary", "description", "runbook_url", "message"}
    left_out += [f"annotation {name}" for name in sorted(map(str, others))]
    return "\n".join(texts), left_out


def _action(text: str, renamed: Mapping[str, str]) -> str:
    operand, *filters = (part.strip() for part in text.split("|"))
    words = operand.split()
    if len(words) > 1 and words[0] in _FUNCTIONS | _OUR_NAMES.keys():
        operand, filters = " ".join(words[1:]), [words[0], *filters]
    if printf := _PRINTF.fullmatch(operand):
        operand, filters = printf[2].strip() or filters.pop(0), [f"printf {printf[1]}", *filters]
    result = _operand(operand, renamed)
    for name in filters:
        result += f"|{_filter(name)}"
    return f"{{{{ {result} }}}}"


def _operand(text: str, renamed: Mapping[str, str]) -> str:
    if _VALUE.fullmatch(text):
        return "value"
    if text in {"$labels", ".Labels"}:
        return "labels"
    label = _LABEL.fullmatch(text)
    if label is None:
        raise ValueError(f"{{{{ {text[:60]} }}}} has no equivalent")
    name = renamed.get(label[1], label[1])
    return f'labels["{name}"]' if name in _METHODS else f"labels.{name}"


def _filter(text: str) -> str:
    if printf := _PRINTF.fullmatch(text):
        return f"printf({json.dumps(json.loads(printf[1]))})"
    if text in _FUNCTIONS | _OUR_NAMES.keys():
        return _OUR_NAMES.get(text, text)
    raise ValueError(f"{text[:60]!r} has no equivalent")


def _plain(text: str) -> str:
    """Return text outside of actions, which must not begin ours."""
    return text.replace("{%", "{ %").replace("{#", "{ #")
