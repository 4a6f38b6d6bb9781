"""Areas as HTML text.

Dash keeps state for each component, and a fleet's page has thousands: that took most of its time.
An area that only shows text and links is therefore a single component that contains HTML.
"""

import re
from collections.abc import Mapping
from html import escape
from typing import Any

from dash.development.base_component import Component

_NAMES = {"className": "class", "tabIndex": "tabindex", "colSpan": "colspan", "htmlFor": "for"}
_VOID = frozenset({"br", "hr", "img"})
_CAPITAL = re.compile("[A-Z]")


def area(ident: str = "", class_name: str = "", *, text: str = "") -> Any:  # noqa: ANN401 - a Dash component
    """Return the component that `markup.js` draws; its `children` are HTML text."""
    props = {"id": ident, "className": class_name, "children": text}
    present_props = {name: value for name, value in props.items() if value or name == "children"}
    return {"namespace": "vedette_dash", "type": "Markup", "props": present_props}


def markup(node: Any) -> str:  # noqa: ANN401 - Dash components
    """Return Dash's HTML components and links as HTML."""
    if node is None:
        return ""
    if isinstance(node, list | tuple):
        return "".join(map(markup, node))
    if isinstance(node, Component):
        node = node.to_plotly_json()  # type: ignore[no-untyped-call]
    if not isinstance(node, dict):
        return escape(str(node))
    props = node["props"]
    tag = "a" if node["type"] == "Link" else node["type"].lower()
    attributes = "".join(
        _attribute(name, value) for name, value in props.items() if name != "children"
    )
    if tag in _VOID:
        return f"<{tag}{attributes}>"
    return f"<{tag}{attributes}>{markup(props.get('children'))}</{tag}>"


def _attribute(name: str, value: Any) -> str:  # noqa: ANN401 - of any kind
    if value is None or value is False:
        return ""
    name = _NAMES.get(name, name)
    if value is True:
        return f" {name}"
    return f' {name}="{escape(_style(value) if isinstance(value, Mapping) else str(value))}"'


def _style(values: Mapping[str, Any]) -> str:
    return ";".join(
        f"{_CAPITAL.sub(lambda match: f'-{match[0].lower()}', name)}:{value}"
        for name, value in values.items()
    )
