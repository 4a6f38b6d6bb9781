"""Variables of a dashboard: values of filters that are chosen in the toolbar.

A filter such as `gpu: [$gpu]` makes one: its name is `gpu`, its values are those of the tag, and
the address has the chosen value as `var-gpu`. Without one the filter doesn't apply.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from dash_app.custom.panels import Errors, Panel

MAX_VARIABLES = 6
SIGN, PARAMETER_PREFIX = "$", "var-"
_NAME = re.compile(r"\$[a-z][a-z0-9_]{0,31}")


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable with the tag that it is a value of, in a panel's measurement."""

    name: str
    tag: str
    measurement: str

    @property
    def parameter(self) -> str:
        """The query parameter that has its value."""
        return f"{PARAMETER_PREFIX}{self.name}"


def variables_of(panels: Sequence[Panel]) -> list[Variable]:
    """Return the variables of panels by name, in the order of their first use."""
    variables: dict[str, Variable] = {}
    for panel in panels:
        for tag, values in panel.filters.items():
            if is_variable(values):
                name = values[0].removeprefix(SIGN)
                variables.setdefault(name, Variable(name, tag, panel.measurement))
    return list(variables.values())


def resolved(panel: Panel, choices: Mapping[str, str]) -> Panel:
    """Return a panel with the chosen values of its variables, and without filters on all values."""
    filters = {}
    for tag, values in panel.filters.items():
        if not is_variable(values):
            filters[tag] = values
        elif chosen := choices.get(f"{PARAMETER_PREFIX}{values[0].removeprefix(SIGN)}"):
            filters[tag] = [chosen]
    return replace(panel, filters=filters)


def is_variable(values: Sequence[str]) -> bool:
    """Return whether the values of a filter are those of a variable."""
    return len(values) == 1 and values[0].startswith(SIGN)


def variable_errors(panels: Sequence[Panel]) -> Errors:
    """Return the errors of the variables of all panels, by `panels.NUMBER.filters`."""
    errors: Errors = {}
    tags: dict[str, str] = {}
    for number, panel in enumerate(panels):
        for tag, values in panel.filters.items():
            texts = [text for value in values for text in _value_errors(tag, value, len(values))]
            if is_variable(values) and tags.setdefault(values[0], tag) != tag:
                texts.append(
                    f"{values[0]} stands for {tags[values[0]]!r} in a panel before, and for "
                    f"{tag!r} here. Use another name."
                )
            if texts:
                errors.setdefault(f"panels.{number}.filters", []).extend(texts)
    if len(tags) > MAX_VARIABLES:
        errors["panels"] = [f"{len(tags)} variables are too many. Use at most {MAX_VARIABLES}."]
    return errors


def _value_errors(tag: str, value: str, count: int) -> list[str]:
    if not value.startswith(SIGN):
        return []
    if not _NAME.fullmatch(value):
        example = f"{SIGN}{tag.lower()}"
        return [f"{value!r} is no variable. Name it in lower case, for example {example}."]
    return [f"Use {value} as the only value of the filter on {tag!r}."] if count > 1 else []
