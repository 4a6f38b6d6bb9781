"""Relabeling: rules that keep, drop and rewrite targets and samples by their labels.

Source: https://prometheus.io/docs/prometheus/latest/configuration/configuration/#relabel_config
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from hashlib import md5
from typing import Annotated

from msgspec import Meta

Labels = Mapping[str, str]
_REFERENCE = re.compile(r"\$(?:(\w+)|\{(\w+)\}|(\$))")


class Action(StrEnum):
    """What a rule does."""

    REPLACE = "replace"
    KEEP = "keep"
    DROP = "drop"
    HASHMOD = "hashmod"
    LABELMAP = "labelmap"
    LABELDROP = "labeldrop"
    LABELKEEP = "labelkeep"
    LOWERCASE = "lowercase"
    UPPERCASE = "uppercase"


@dataclass(frozen=True, slots=True, kw_only=True)
class RelabelRule:
    """A rule, with the keys and defaults of Prometheus.

    Attributes:
        source_labels: labels whose values are joined by `separator`.
        regex: must match the whole value (labelmap, labeldrop, labelkeep: the whole name).
        replacement: the new value; `$1` is a group of the regular expression.
        modulus: of hashmod.
    """

    action: Action = Action.REPLACE
    source_labels: tuple[str, ...] = ()
    separator: str = ";"
    regex: str = "(.*)"
    target_label: str = ""
    replacement: str = "$1"
    modulus: Annotated[int, Meta(ge=1)] = 1

    def __post_init__(self) -> None:
        try:
            _pattern(self.regex)
        except re.error as error:
            raise ValueError(f"regex {self.regex!r} is invalid: {error}") from error
        needs_target = self.action in {
            Action.REPLACE,
            Action.HASHMOD,
            Action.LOWERCASE,
            Action.UPPERCASE,
        }
        if needs_target and not self.target_label:
            raise ValueError(f"the action {self.action} needs target_label")


def relabeled(labels: Labels, rules: Sequence[RelabelRule]) -> dict[str, str] | None:
    """Return the labels after some rules; None if one of them drops what has these labels."""
    result: dict[str, str] | None = dict(labels)
    for rule in rules:
        if result is None:
            break
        result = _ACTIONS[rule.action](rule, result)
    return result


def _keep(rule: RelabelRule, labels: dict[str, str]) -> dict[str, str] | None:
    return labels if _pattern(rule.regex).fullmatch(_source(rule, labels)) else None


def _drop(rule: RelabelRule, labels: dict[str, str]) -> dict[str, str] | None:
    return None if _pattern(rule.regex).fullmatch(_source(rule, labels)) else labels


def _replace(rule: RelabelRule, labels: dict[str, str]) -> dict[str, str]:
    match = _pattern(rule.regex).fullmatch(_source(rule, labels))
    if match is None:
        return labels
    target = _expanded(rule.target_label, match)
    return _with(labels, target, _expanded(rule.replacement, match))


def _hashmod(rule: RelabelRule, labels: dict[str, str]) -> dict[str, str]:
    digest = md5(_source(rule, labels).encode(), usedforsecurity=False).digest()
    number = int.from_bytes(digest[8:], "big") % rule.modulus
    return _with(labels, rule.target_label, str(number))


def _labelmap(rule: RelabelRule, labels: dict[str, str]) -> dict[str, str]:
    mapped = dict(labels)
    for name, value in labels.items():
        if match := _pattern(rule.regex).fullmatch(name):
            mapped[_expanded(rule.replacement, match)] = value
    return mapped


def _labeldrop(rule: RelabelRule, labels: dict[str, str]) -> dict[str, str]:
    return {
        name: value for name, value in labels.items() if not _pattern(rule.regex).fullmatch(name)
    }


def _labelkeep(rule: RelabelRule, labels: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in labels.items() if _pattern(rule.regex).fullmatch(name)}


def _lowercase(rule: RelabelRule, labels: dict[str, str]) -> dict[str, str]:
    return _with(labels, rule.target_label, _source(rule, labels).lower())


def _uppercase(rule: RelabelRule, labels: dict[str, str]) -> dict[str, str]:
    return _with(labels, rule.target_label, _source(rule, labels).upper())


_ACTIONS: Mapping[Action, Callable[[RelabelRule, dict[str, str]], dict[str, str] | None]] = {
    Action.KEEP: _keep,
    Action.DROP: _drop,
    Action.REPLACE: _replace,
    Action.HASHMOD: _hashmod,
    Action.LABELMAP: _labelmap,
    Action.LABELDROP: _labeldrop,
    Action.LABELKEEP: _labelkeep,
    Action.LOWERCASE: _lowercase,
    Action.UPPERCASE: _uppercase,
}


@lru_cache(maxsize=1000)
def _pattern(regex: str) -> re.Pattern[str]:
    return re.compile(regex, re.DOTALL)


def _source(rule: RelabelRule, labels: Labels) -> str:
    return rule.separator.join(labels.get(name, "") for name in rule.source_labels)


def _with(labels: dict[str, str], name: str, value: str) -> dict[str, str]:
    """Return labels with another value; an empty one removes the label."""
    others = {key: text for key, text in labels.items() if key != name}
    return others | {name: value} if value else others


def _expanded(template: str, match: re.Match[str]) -> str:
    def value(reference: re.Match[str]) -> str:
        if reference[3]:
            return "$"
        name = reference[1] or reference[2]
        try:
            return match[int(name) if name.isdecimal() else name] or ""
        except IndexError:
            return ""

    return _REFERENCE.sub(value, template)
