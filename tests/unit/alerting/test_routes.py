"""Notification policies: the tree, its notation, and where alerts go."""

import pytest

from alerting.notification.routes import MAX_DEPTH, Route, loaded, parse_routes, printed, stored

RECEIVERS = ["Mail", "Pager", "Manager", "Chat"]
TREE = {
    "receivers": ["Mail"],
    "group_by": ["rule"],
    "group_wait": "30s",
    "repeat_interval": "4h",
    "routes": [
        {"matchers": ["severity=critical"], "receivers": ["Pager"], "continue": True},
        {
            "matchers": ["appliance=~dgx-.*"],
            "receivers": ["Chat"],
            "escalate_after": "30m",
            "escalate_to": ["Manager"],
            "routes": [{"matchers": ["gpu=0"], "group_by": []}],
        },
    ],
}


def parsed(data: object = TREE) -> Route:
    root, errors = parse_routes(data, receivers=RECEIVERS)
    assert errors == {}
    return root


@pytest.mark.parametrize(
    ("labels", "receivers"),
    [
        ({}, [("Mail",)]),
        ({"severity": "critical"}, [("Pager",)]),
        ({"severity": "critical", "appliance": "dgx-1"}, [("Pager",), ("Chat",)]),
        ({"severity": "warning", "appliance": "dgx-1", "gpu": "0"}, [("Chat",)]),
    ],
)
def test_an_alert_goes_to_the_deepest_routes_that_match(
    labels: dict[str, str], receivers: list[tuple[str, ...]]
) -> None:
    assert [route.receivers for route in parsed().matching(labels)] == receivers


def test_a_child_has_what_it_leaves_out_from_its_parent() -> None:
    (deep,) = parsed().matching({"appliance": "dgx-1", "gpu": "0"})
    assert (deep.repeat_seconds, deep.escalate_to) == (4 * 3600.0, ("Manager",))
    assert deep.group_by == ()
    assert deep.group_key({"rule": "x"}) == ""


def test_groups_are_by_the_values_of_their_labels() -> None:
    root = parsed()
    same = {root.group_key({"rule": "x", "gpu": gpu}) for gpu in "01"}
    assert len(same) == 1
    assert root.group_key({"rule": "y"}) not in same


def test_a_tree_is_printed_and_stored_as_it_was_parsed() -> None:
    root = parsed()
    assert printed(root) == TREE
    assert parsed(printed(root)) == root
    assert loaded(stored(root)) == root


def deep(levels: int) -> dict[str, object]:
    return {"routes": [deep(levels - 1)]} if levels else {}


@pytest.mark.parametrize(
    ("data", "path"),
    [
        ([], "route"),
        ({"reciever": []}, "route"),
        ({"receivers": "Mail"}, "route.receivers"),
        ({"receivers": ["Nobody"]}, "route.receivers"),
        ({"matchers": ["a=b"]}, "route.matchers"),
        ({"routes": {}}, "route.routes"),
        ({"routes": [{"matchers": ["a~b"]}]}, "route.routes.0.matchers"),
        ({"routes": [{}, {"group_wait": "soon"}]}, "route.routes.1.group_wait"),
        ({"group_interval": "90d"}, "route.group_interval"),
        ({"repeat_interval": "1s"}, "route.repeat_interval"),
        ({"escalate_after": "1h"}, "route.escalate_to"),
        ({"routes": [{}] * 100}, "route"),
        (deep(MAX_DEPTH), "route.routes.0.routes.0.routes.0.routes.0.routes"),
    ],
)
def test_an_error_names_its_path(data: object, path: str) -> None:
    _, errors = parse_routes(data, receivers=RECEIVERS)
    assert list(errors) == [path]
    assert all(text.startswith(f"{path}: ") for text in errors[path])
