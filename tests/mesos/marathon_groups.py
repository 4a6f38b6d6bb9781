"""Groups of Marathon's apps: an app's id begins with the path of its group.

Source: Marathon's `GroupsResource` and `GroupUpdate`.
"""

from typing import Any

from tests.mesos.cluster import timestamp
from tests.mesos.marathon import Deployment, Marathon, together
from tests.mesos.serving import Answer, message


def show_group(marathon: Marathon, path: str) -> Answer:
    """Return a group with the apps and groups in it, or 404."""
    if path != "/" and path not in _all_groups(marathon):
        raise message(404, f"Group '{path}' does not exist")
    everything = {"counts", "deployments"}
    return {
        "id": path,
        "apps": [
            marathon.app_answer(app, embed=everything)
            for app_id, app in marathon.apps.items()
            if _parent(app_id) == path
        ],
        "groups": [
            show_group(marathon, group)
            for group in sorted(_all_groups(marathon))
            if _parent(group) == path
        ],
        "pods": [],
        "dependencies": [],
        "version": timestamp(),
    }


def create_group(marathon: Marathon, body: Answer, *, parent: str, force: bool) -> Deployment:
    """Create a group with its apps and groups; 409 if there is one."""
    path = _resolved(parent, str(body.get("id", "")))
    if path in _all_groups(marathon):
        text = f"Group {path} is already created. Use PUT to change this group."
        raise message(409, text)
    if path in marathon.apps:
        raise message(409, f"An app with id [{path}] already exists.")
    return change_group(marathon, path, body, force=force)


def change_group(marathon: Marathon, path: str, body: Answer, *, force: bool) -> Deployment:
    """Make a group as the body says, or scale all its apps by `scaleBy`."""
    if "scaleBy" in body:
        factor = float(body["scaleBy"])
        changes = {
            app_id: {"instances": round(int(marathon.apps[app_id].spec["instances"]) * factor)}
            for app_id in _apps_in(marathon, path)
        }
        parts = [
            marathon.change(app_id, change, is_partial=True, force=force)
            for app_id, change in changes.items()
        ]
        return _deployment(parts, path)
    wanted = dict(_definitions(path, body))
    parts = []
    if "apps" in body or "groups" in body:
        gone = [app_id for app_id in _apps_in(marathon, path) if app_id not in wanted]
        parts += [marathon.delete(app_id, force=force) for app_id in gone]
    for app_id, spec in wanted.items():
        if app_id in marathon.apps:
            parts.append(marathon.change(app_id, spec, is_partial=False, force=force))
        else:
            parts.append(marathon.create({**spec, "id": app_id})[1])
    marathon.groups |= _named(path, body)
    return _deployment(parts, path)


def delete_group(marathon: Marathon, path: str, *, force: bool) -> Deployment:
    """Delete a group with all apps and groups in it, or 404."""
    show_group(marathon, path)
    parts = [marathon.delete(app_id, force=force) for app_id in _apps_in(marathon, path)]
    marathon.groups = {group for group in marathon.groups if not _is_in(group, path)}
    return _deployment(parts, path)


def _deployment(parts: list[Deployment], path: str) -> Deployment:
    """Return the deployment of the parts; without any, one that is done already."""
    return together(parts) if parts else Deployment(path, "ScaleApplication")


def _definitions(path: str, body: Answer) -> list[tuple[str, Any]]:
    apps = [(_resolved(path, str(app.get("id", ""))), app) for app in body.get("apps", [])]
    for group in body.get("groups", []):
        apps += _definitions(_resolved(path, str(group.get("id", ""))), group)
    return apps


def _named(path: str, body: Answer) -> set[str]:
    inner = [
        _named(_resolved(path, str(group.get("id", ""))), group) for group in body.get("groups", [])
    ]
    return {path}.union(*inner) - {"/"}


def _all_groups(marathon: Marathon) -> set[str]:
    """The groups that were created, those that apps are in, and what is above either."""
    paths = set(marathon.groups)
    for inner in (*marathon.groups, *marathon.apps):
        parent = _parent(inner)
        while parent != "/":
            paths.add(parent)
            parent = _parent(parent)
    return paths


def _apps_in(marathon: Marathon, path: str) -> list[str]:
    return [app_id for app_id in marathon.apps if _is_in(app_id, path) and app_id != path]


def _is_in(path: str, group: str) -> bool:
    return path == group or path.startswith(f"{group.rstrip('/')}/")


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def _resolved(group: str, path: str) -> str:
    return path if path.startswith("/") else f"{group.rstrip('/')}/{path}"
