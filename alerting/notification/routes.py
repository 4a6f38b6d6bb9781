"""Notification policies: a tree of routes from labels of alerts to receivers, as in Alertmanager.

An alert enters the root, which matches everything, and goes to the first child that matches, or to
further ones after a child that continues; a route without a matching child takes it. What a child
leaves out, it has from its parent, except for matchers and time intervals.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from alerting.language.matchers import match_all, parse_matcher
from alerting.rule_request import Errors
from core.quantities import format_duration, parse_duration

MAX_ROUTES = 100
MAX_DEPTH = 5
MAX_LISTED = 20
MIN_REPEAT_SECONDS = 60.0
MAX_SECONDS = 30 * 24 * 3600.0
_DURATIONS = {
    "group_wait": "group_wait_seconds",
    "group_interval": "group_interval_seconds",
    "repeat_interval": "repeat_seconds",
    "escalate_after": "escalate_after_seconds",
}
EACH_BY_ITSELF = "..."
"""In `group_by`: each alert is sent by itself, as in Alertmanager."""
_TIMES = ("mute_time_intervals", "active_time_intervals")
_LISTS = ("matchers", "receivers", "group_by", "escalate_to", *_TIMES)
_NAMES = {
    "receivers": "Receiver",
    "escalate_to": "Receiver",
    **dict.fromkeys(_TIMES, "Time interval"),
}
KnownNames = Mapping[str, frozenset[str]]
"""The names that a route may use, by what they name."""
_KEYS = frozenset({*_DURATIONS, *_LISTS, "continue", "routes"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A node of the tree.

    Attributes:
        matchers: of labels; see `alerting.language.matchers`.
        receivers: names of receivers.
        group_by: alerts with the same values of these labels share a message; empty, or `...`: one
            each.
        group_wait_seconds: how long the first message of a group waits for others.
        group_interval_seconds: the least time between two messages of a group.
        repeat_seconds: after which a firing alert is sent again; 0 is never.
        escalate_after_seconds: after which an alert that fires and that nobody acknowledged is sent
            to `escalate_to`; 0 is never.
        continues: whether later siblings are tried too.
        mute_time_intervals: names of time intervals in which its receivers are not notified.
        active_time_intervals: names of those in which they are; empty: always.
        path: where the route stands in the tree, such as `route.routes.0`.
    """

    matchers: tuple[str, ...] = ()
    receivers: tuple[str, ...] = ()
    group_by: tuple[str, ...] = ()
    group_wait_seconds: float = 0.0
    group_interval_seconds: float = 300.0
    repeat_seconds: float = 0.0
    escalate_after_seconds: float = 0.0
    escalate_to: tuple[str, ...] = ()
    continues: bool = False
    mute_time_intervals: tuple[str, ...] = ()
    active_time_intervals: tuple[str, ...] = ()
    routes: tuple["Route", ...] = field(default=())
    path: str = "route"

    def matching(self, labels: Mapping[str, str]) -> Iterator["Route"]:
        """Yield the routes that take an alert with these labels."""
        if not match_all(self.matchers, labels):
            return
        has_match = False
        for child in self.routes:
            taken = list(child.matching(labels))
            yield from taken
            has_match = has_match or bool(taken)
            if taken and not child.continues:
                break
        if not has_match:
            yield self

    def group_key(self, labels: Mapping[str, str]) -> str:
        """Return the key of an alert's group at this route; "" without grouping."""
        if not self.group_by or EACH_BY_ITSELF in self.group_by:
            return ""
        values = [labels.get(label, "") for label in self.group_by]
        text = json.dumps([self.path, self.group_by, values])
        return hashlib.sha256(text.encode()).hexdigest()

    def walk(self) -> Iterator["Route"]:
        """Yield this route and all below it."""
        yield self
        for child in self.routes:
            yield from child.walk()

    def used_labels(self) -> list[str]:
        """Return the matchers and the labels that this route and those below it use."""
        return [text for route in self.walk() for text in (*route.matchers, *route.group_by)]


def parse_routes(
    data: object, *, receivers: Sequence[str], time_intervals: Iterable[str] = ()
) -> tuple[Route, Errors]:
    """Return the tree of a policy as YAML or JSON has it, and the errors by path.

    Args:
        data: the root.
        receivers: the names of the tenant's receivers.
        time_intervals: the names of the policy's time intervals.
    """
    errors: Errors = {}
    names = {
        "Receiver": frozenset(receivers),
        "Time interval": frozenset(time_intervals),
    }
    root = _parsed(data, Route(), "route", names, errors, depth=1)
    if root.matchers:
        errors["route.matchers"] = ["The first route takes all: move its matchers to a child."]
    count = sum(1 for _ in root.walk())
    if count > MAX_ROUTES:
        errors["route"] = [f"{count} routes are too many. Use at most {MAX_ROUTES}."]
    return root, {path: [f"{path}: {text}" for text in texts] for path, texts in errors.items()}


def printed(route: Route, parent: Route | None = None) -> dict[str, Any]:
    """Return a tree as `parse_routes` reads it, without what a child has from its parent."""
    parent = parent or Route()
    entry: dict[str, Any] = {}
    if route.matchers:
        entry["matchers"] = list(route.matchers)
    for name in ("receivers", "group_by", "escalate_to"):
        if getattr(route, name) != getattr(parent, name):
            entry[name] = list(getattr(route, name))
    for name, attribute in _DURATIONS.items():
        if getattr(route, attribute) != getattr(parent, attribute):
            entry[name] = format_duration(getattr(route, attribute), exact=True).replace(" ", "")
    entry |= {name: list(getattr(route, name)) for name in _TIMES if getattr(route, name)}
    if route.continues:
        entry["continue"] = True
    if route.routes:
        entry["routes"] = [printed(child, route) for child in route.routes]
    return entry


def stored(route: Route) -> dict[str, Any]:
    """Return a tree as JSON for the database."""
    return asdict(route)


def loaded(data: Mapping[str, Any], path: str = "route") -> Route:
    """Return the tree of `stored`."""
    values: dict[str, Any] = {
        route_field.name: tuple(data[route_field.name])
        if isinstance(data[route_field.name], list)
        else data[route_field.name]
        for route_field in fields(Route)
        if route_field.name in data
    }
    routes = tuple(
        loaded(child, f"{path}.routes.{number}")
        for number, child in enumerate(data.get("routes", ()))
    )
    return Route(**values | {"routes": routes, "path": path})


def _parsed(
    data: object, parent: Route, path: str, known_names: KnownNames, errors: Errors, *, depth: int
) -> Route:
    if not isinstance(data, Mapping):
        errors[path] = ["Expected keys such as 'receivers' and 'routes'."]
        return parent
    unknown = sorted(str(key) for key in data if key not in _KEYS)
    if unknown:
        errors[path] = [
            f"Unknown key {', '.join(map(repr, unknown))}. Use {', '.join(sorted(_KEYS))}."
        ]
    values: dict[str, Any] = {}
    for name in _LISTS:
        if name in data:
            values[name] = _texts(data[name], f"{path}.{name}", errors)
    for name, attribute in _DURATIONS.items():
        if name in data:
            values[attribute] = _seconds(data[name], f"{path}.{name}", errors)
    own: dict[str, Any] = {
        "matchers": (),
        "continues": data.get("continue") is True,
        **dict.fromkeys(_TIMES, ()),
        "routes": (),
        "path": path,
    }
    route = replace(parent, **own | values)
    _check(route, path, known_names, errors)
    children = [] if data.get("routes") is None else data["routes"]
    if not isinstance(children, list):
        errors[f"{path}.routes"] = ["Expected a list of routes."]
    elif children and depth >= MAX_DEPTH:
        errors[f"{path}.routes"] = [f"Use at most {MAX_DEPTH} levels."]
    else:
        parsed = [
            _parsed(child, route, f"{path}.routes.{number}", known_names, errors, depth=depth + 1)
            for number, child in enumerate(children[: MAX_ROUTES + 1])
        ]
        route = replace(route, routes=tuple(parsed))
    return route


def _check(route: Route, path: str, known_names: KnownNames, errors: Errors) -> None:
    for text in route.matchers:
        try:
            parse_matcher(text)
        except ValueError as error:
            errors.setdefault(f"{path}.matchers", []).append(str(error))
    if EACH_BY_ITSELF in route.group_by and len(route.group_by) > 1:
        text = f"'{EACH_BY_ITSELF}' sends each alert by itself: leave out the other labels."
        errors[f"{path}.group_by"] = [text]
    for name, kind in _NAMES.items():
        listed = ", ".join(sorted(known_names[kind])) or "none yet"
        missing = sorted(set(getattr(route, name)) - known_names[kind])
        if missing:
            errors[f"{path}.{name}"] = [
                f"{kind} {text!r} does not exist. {kind}s: {listed}." for text in missing
            ]
    if 0 < route.repeat_seconds < MIN_REPEAT_SECONDS:
        errors[f"{path}.repeat_interval"] = [f"Repeat no faster than {MIN_REPEAT_SECONDS:g} s."]
    if bool(route.escalate_after_seconds) is not bool(route.escalate_to):
        errors[f"{path}.escalate_to"] = ["Set both 'escalate_after' and 'escalate_to', or none."]


def _texts(data: object, path: str, errors: Errors) -> tuple[str, ...]:
    if not isinstance(data, list) or not all(isinstance(text, str) for text in data):
        errors[path] = ["Expected a list of texts."]
        return ()
    if len(data) > MAX_LISTED:
        errors[path] = [f"{len(data)} entries are too many. Use at most {MAX_LISTED}."]
    return tuple(data[:MAX_LISTED])


def _seconds(data: object, path: str, errors: Errors) -> float:
    try:
        seconds = parse_duration(str(data))
    except ValueError as error:
        errors[path] = [str(error)]
        return 0.0
    if not 0 <= seconds <= MAX_SECONDS:
        errors[path] = [f"Use 0 to {format_duration(MAX_SECONDS)}."]
    return seconds
