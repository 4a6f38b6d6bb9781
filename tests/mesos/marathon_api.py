"""The endpoints of Marathon's v2 API.

Source: RAML of the releases 1.4 to 1.10, `AppsResource`, `AppTasksResource`, `GroupsResource`.
"""

import json
import re
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from queue import Empty, SimpleQueue

import anyio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.mesos.cluster import Task, timestamp
from tests.mesos.marathon import TICK_SECONDS, Deployment, Marathon
from tests.mesos.marathon_groups import change_group, create_group, delete_group, show_group
from tests.mesos.serving import Answer, application, body_of, flag, message

GROUP_METHODS = ["GET", "POST", "PUT", "DELETE"]
LABEL = re.compile(
    r"\s*(?P<name>[\w.-]+)\s*(?:(?P<operator>==|!=|\bin\b|\bnotin\b)\s*\(?(?P<values>[^)]*)\)?)?\s*"
)


def is_selected(spec: Answer, query: Mapping[str, str]) -> bool:
    """Return whether an app meets the filters `cmd`, `id` and `label` of a list."""
    texts = {"cmd": spec.get("cmd") or "", "id": spec["id"]}
    if any(query.get(name, "").lower() not in text.lower() for name, text in texts.items()):
        return False
    selectors = re.findall(r"[^,(]+(?:\([^)]*\))?", query.get("label", ""))
    return all(_has_label(spec["labels"], selector) for selector in selectors)


def _has_label(labels: Mapping[str, str], selector: str) -> bool:
    match = LABEL.fullmatch(selector)
    if match is None:
        raise message(400, f"Unable to parse label selector {selector!r}")
    values = [value.strip() for value in (match["values"] or "").split(",")]
    has_value = labels.get(match["name"]) in values
    match match["operator"]:
        case None:
            return match["name"] in labels
        case "==" | "in":
            return has_value
        case _:
            return match["name"] in labels and not has_value


def marathon_app(marathon: Marathon) -> Starlette:  # noqa: C901, PLR0915 - a list of endpoints
    """Return the API."""

    def result(deployment: Deployment, status: int = 200) -> Response:
        body = {"version": deployment.version, "deploymentId": deployment.id}
        return JSONResponse(body, status, {"Marathon-Deployment-Id": deployment.id})

    def embeds(request: Request) -> set[str]:
        embedded = request.query_params.getlist("embed")
        return {name.removeprefix("apps.").removeprefix("app.") for name in embedded}

    async def apps(request: Request) -> Response:
        if request.method == "POST":
            body = await body_of(request)
            with marathon.lock:
                app, deployment = marathon.create(body)
                answer = marathon.app_answer(app, embed={"counts", "deployments"})
            headers = {
                "Location": f"{request.url.path}{app.spec['id']}",
                "Marathon-Deployment-Id": deployment.id,
            }
            return JSONResponse(answer, 201, headers)
        with marathon.lock:
            answers = [
                marathon.app_answer(app, embed=embeds(request))
                for app in marathon.apps.values()
                if is_selected(app.spec, request.query_params)
            ]
        return JSONResponse({"apps": answers})

    async def one_app(request: Request) -> Response:
        app_id = request.path_params["app_id"]
        body = await body_of(request) if request.method == "PUT" else {}
        force = flag(request, "force")
        with marathon.lock:
            if request.method == "PUT":
                is_partial = request.query_params.get("partialUpdate", "true").lower() == "true"
                if "/" + app_id not in marathon.apps:
                    return result(marathon.create({**body, "id": app_id})[1], 201)
                return result(marathon.change(app_id, body, is_partial=is_partial, force=force))
            if request.method == "DELETE":
                return result(marathon.delete(app_id, force=force))
            everything = {"counts", "deployments", "tasks", "lastTaskFailure"}
            answer = marathon.app_answer(marathon.app(app_id), embed=embeds(request) | everything)
        return JSONResponse({"app": answer})

    async def restart(request: Request) -> Response:
        with marathon.lock:
            force = flag(request, "force")
            return result(marathon.restart(request.path_params["app_id"], force=force))

    async def versions(request: Request) -> Response:
        with marathon.lock:
            by_version = marathon.app(request.path_params["app_id"]).versions
            version = request.path_params.get("version")
            if version is None:
                return JSONResponse({"versions": sorted(by_version, reverse=True)})
            if version not in by_version:
                name = request.path_params["app_id"]
                raise message(404, f"App '/{name}' does not exist in version {version}")
            return JSONResponse(by_version[version])

    async def tasks(request: Request) -> Response:
        status = request.query_params.getlist("status")
        with marathon.lock:
            app_id = request.path_params.get("app_id")
            owners = marathon.apps.values() if app_id is None else [marathon.app(app_id)]
            answers = [marathon.task_answer(task) for app in owners for task in app.tasks]
        matching = [task for task in answers if not status or task["state"][5:].lower() in status]
        return JSONResponse({"tasks": matching})

    async def kill_tasks(request: Request) -> Response:
        wanted = (await body_of(request)).get("ids", [])
        with marathon.lock:
            tasks = [task for app in marathon.apps.values() for task in app.tasks]
            return killed(request, [task for task in tasks if task.id in wanted])

    def killed(request: Request, tasks: list[Task], *, noun: str = "tasks") -> Response:
        force = flag(request, "force")
        deployment = marathon.kill(tasks, is_scaling=flag(request, "scale"), force=force)
        if deployment is not None:
            return result(deployment)
        answers = [marathon.task_answer(task) for task in tasks]
        return JSONResponse({noun: answers if noun == "tasks" else answers[0]})

    async def kill_of_app(request: Request) -> Response:
        with marathon.lock:
            tasks = marathon.app(request.path_params["app_id"]).tasks
            task_id = request.path_params.get("task_id")
            if task_id is None:
                host = request.query_params.get("host", marathon.cluster.hostname)
                return killed(request, list(tasks) if host == marathon.cluster.hostname else [])
            matching = [task for task in tasks if task.id == task_id]
            if not matching:
                raise message(404, f"Task '{task_id}' does not exist")
            return killed(request, matching, noun="task")

    async def groups(request: Request) -> Response:
        path = "/" + request.path_params.get("group_id", "").strip("/")
        has_body = request.method in {"POST", "PUT"}
        body, force = await body_of(request) if has_body else {}, flag(request, "force")
        with marathon.lock:
            match request.method:
                case "GET":
                    return JSONResponse(show_group(marathon, path))
                case "POST":
                    return result(create_group(marathon, body, parent=path, force=force), 201)
                case "PUT":
                    return result(change_group(marathon, path, body, force=force))
                case _:
                    return result(delete_group(marathon, path, force=force))

    async def deployments(request: Request) -> Response:
        with marathon.lock:
            if request.method == "DELETE":
                force = flag(request, "force")
                rollback = marathon.cancel(request.path_params["deployment_id"], force=force)
                return Response(status_code=202) if rollback is None else result(rollback)
            return JSONResponse(marathon.deployment_answers())

    async def queue(_request: Request) -> Response:
        with marathon.lock:
            return JSONResponse({"queue": marathon.queue_answer()})

    async def reset_delay(request: Request) -> Response:
        with marathon.lock:
            app_id = request.path_params["app_id"]
            if "/" + app_id not in marathon.apps:
                raise message(404, f"Application {app_id} not found in tasks queue.")
            marathon.apps["/" + app_id].launch_at = 0.0
        return Response(status_code=204)

    async def info(_request: Request) -> Response:
        config = {"features": list(marathon.features), "master": "zk://localhost:2181/mesos"}
        body = {
            "name": "marathon", "version": marathon.version, "buildref": "unknown",
            "elected": True, "leader": "localhost:8080", "frameworkId": marathon.framework,
            "marathon_config": config, "zookeeper_config": {}, "http_config": {},
        }  # fmt: skip
        return JSONResponse(body)

    async def leader(_request: Request) -> Response:
        return JSONResponse({"leader": "localhost:8080"})

    async def ping(_request: Request) -> Response:
        return PlainTextResponse("pong")

    async def events(request: Request) -> Response:
        if "text/event-stream" not in request.headers.get("accept", ""):
            return Response(status_code=405)
        wanted = request.query_params.getlist("event_type")
        return StreamingResponse(_events(marathon, wanted), media_type="text/event-stream")

    app, delete = "/v2/apps/{app_id:path}", ["GET", "DELETE"]
    return application(
        [
            Route("/v2/apps", apps, methods=["GET", "POST"]),
            Route(f"{app}/restart", restart, methods=["POST"]),
            Route(f"{app}/versions", versions),
            Route(f"{app}/versions/{{version}}", versions),
            Route(f"{app}/tasks", tasks, methods=["GET"]),
            Route(f"{app}/tasks", kill_of_app, methods=["DELETE"]),
            Route(f"{app}/tasks/{{task_id}}", kill_of_app, methods=["DELETE"]),
            Route(app, one_app, methods=["GET", "PUT", "DELETE"]),
            Route("/v2/groups", groups, methods=GROUP_METHODS),
            Route("/v2/groups/{group_id:path}", groups, methods=GROUP_METHODS),
            Route("/v2/tasks", tasks),
            Route("/v2/tasks/delete", kill_tasks, methods=["POST"]),
            Route("/v2/deployments", deployments),
            Route("/v2/deployments/{deployment_id}", deployments, methods=delete),
            Route("/v2/queue", queue),
            Route("/v2/queue/{app_id:path}/delay", reset_delay, methods=["DELETE"]),
            Route("/v2/info", info),
            Route("/v2/leader", leader),
            Route("/v2/events", events),
            Route("/ping", ping),
        ]
    )


async def _events(marathon: Marathon, wanted: list[str]) -> AsyncIterator[bytes]:
    queue: SimpleQueue[Answer] = SimpleQueue()
    queue.put({"eventType": "event_stream_attached", "timestamp": timestamp(datetime.now(UTC))})
    marathon.listeners.append(queue)
    try:
        while not marathon.cluster.closing.is_set():
            try:
                event = queue.get_nowait()
            except Empty:
                await anyio.sleep(TICK_SECONDS)
                continue
            if not wanted or event["eventType"] in wanted:
                data = json.dumps(event)
                yield f"event: {event['eventType']}\r\ndata: {data}\r\n\r\n".encode()
    finally:
        marathon.listeners.remove(queue)
