"""Areas of a page that change their figures in place.

Dash mounts a component's children anew whenever they are written: focus, selection, a half-made
click and running transitions would be lost at every refresh. So an area's tree is split into its
*shape* (elements, links, ids) and its *values* (text, class, title and width of each element, in
document order). Children are sent only when the shape changed; otherwise `assets/dashboards.js`
writes the values into the elements that stand there.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dash import ClientsideFunction, Dash, Input, Output, State, dcc, html, no_update
from dash.development.base_component import Component

# Class, title, width and text; None where the element has none.
Values = tuple[str | None, str | None, str | None, str | None]


@dataclass(frozen=True, slots=True)
class Areas:
    """The live areas of one tier, by the id of their element."""

    tier: str
    names: tuple[str, ...]

    def stores(self) -> list[Component]:
        """Return what the tier's skeleton must hold for its areas."""
        return [dcc.Store(id=f"{self.tier}-shapes"), dcc.Store(id=f"{self.tier}-values")]

    def outputs(self) -> list[Output]:
        """Return the outputs that `fill` answers, in its order."""
        return [
            Output(f"{self.tier}-shapes", "data"),
            Output(f"{self.tier}-values", "data"),
            *[Output(name, "children") for name in self.names],
        ]

    def state(self) -> State:
        """Return the state that `fill` takes: the shapes that the page shows now."""
        return State(f"{self.tier}-shapes", "data")

    def register(self, app: Dash) -> None:
        """Register the script that writes values into elements."""
        app.clientside_callback(  # type: ignore[no-untyped-call]
            ClientsideFunction(namespace="vedette", function_name="write"),
            Output(f"{self.tier}-values", "modified_timestamp"),
            Input(f"{self.tier}-values", "data"),
        )

    def fill(self, shown: Mapping[str, str] | None, trees: Mapping[str, Any]) -> list[Any]:
        """Return shapes, values, and the children of each area whose shape is not `shown`."""
        shapes = {name: shape_of(trees[name]) for name in self.names}
        values = {name: values_of(trees[name]) for name in self.names}
        children = [
            no_update if (shown or {}).get(name) == shapes[name] else trees[name]
            for name in self.names
        ]
        return [shapes, values, *children]


def area(ident: str, *, classes: str) -> Component:
    """Return the element of a live area."""
    return html.Div(id=ident, className=classes)


def shape_of(tree: Any) -> str:  # noqa: ANN401 - what Dash takes as children
    """Return a digest of everything but the values."""
    text = json.dumps(_skeleton(tree), separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def values_of(tree: Any) -> list[Values]:  # noqa: ANN401 - what Dash takes as children
    """Return the values of every element, in document order."""
    return [_values(element) for element in _elements(tree)]


def _elements(tree: Any) -> Iterator[Component]:  # noqa: ANN401
    if isinstance(tree, list | tuple):
        for node in tree:
            yield from _elements(node)
    elif isinstance(tree, Component):
        yield tree
        yield from _elements(getattr(tree, "children", None))


def _values(element: Component) -> Values:
    children = getattr(element, "children", None)
    return (
        getattr(element, "className", None),
        getattr(element, "title", None),
        (getattr(element, "style", None) or {}).get("width"),
        children if isinstance(children, str) else None,
    )


def _skeleton(tree: Any) -> Any:  # noqa: ANN401
    if isinstance(tree, list | tuple):
        # Text beside elements is part of the shape: no element of its own could take it.
        return [node if isinstance(node, str) else _skeleton(node) for node in tree]
    if not isinstance(tree, Component):
        return None
    own = [str(getattr(tree, name, "")) for name in ("id", "href", "key")]
    return [type(tree).__name__, *own, _skeleton(getattr(tree, "children", None))]
