"""The HTTP API of a Mesos agent, as far as logs and statistics need it: 1.0 and later."""

from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from tests.mesos.cluster import Cluster, Task
from tests.mesos.serving import HTTPError, application, body_of

DEFAULT_LENGTH = 65536


def agent_app(cluster: Cluster) -> Starlette:
    """Return the agent's endpoints."""

    def state(_request: Request) -> JSONResponse:
        with cluster.lock:
            tasks = list(cluster.tasks.values())
        names = sorted({task.framework for task in tasks})
        return JSONResponse(
            {
                "version": "1.9.0",
                "id": cluster.agent_id,
                "hostname": cluster.hostname,
                "resources": {"cpus": cluster.cpus, "mem": cluster.mem, "gpus": cluster.gpus},
                "frameworks": [
                    {
                        "id": name,
                        "name": name,
                        "executors": _executors(tasks, name, is_final=False),
                        "completed_executors": _executors(tasks, name, is_final=True),
                    }
                    for name in names
                ],
                "completed_frameworks": [],
            }
        )

    def read(request: Request) -> JSONResponse:
        directory, _, name = request.query_params["path"].rpartition("/")
        with cluster.lock:
            matching_tasks = [
                task for task in cluster.tasks.values() if task.directory == directory
            ]
        if not matching_tasks or name not in {"stdout", "stderr"}:
            raise HTTPError(404, "")
        content = cluster.read(matching_tasks[0], name)
        offset = int(request.query_params.get("offset", -1))
        if offset < 0:
            return JSONResponse({"offset": len(content), "data": ""})
        length = int(request.query_params.get("length", DEFAULT_LENGTH))
        chunk = content[offset : offset + length].decode(errors="replace")
        return JSONResponse({"offset": offset, "data": chunk})

    def statistics(_request: Request) -> JSONResponse:
        with cluster.lock:
            tasks = list(cluster.tasks.values())
        statistics_of_tasks = [(task, cluster.statistics(task)) for task in tasks]
        return JSONResponse(
            [
                {"executor_id": task.id, "framework_id": task.framework, "statistics": usage}
                for task, usage in statistics_of_tasks
                if usage is not None
            ]
        )

    async def operator(request: Request) -> JSONResponse:
        call = (await body_of(request)).get("type")
        if call != "GET_TASKS":
            raise HTTPError(501, f"{call} is not known to the contract server")
        with cluster.lock:
            tasks = list(cluster.tasks.values())
        tasks_by_state: dict[str, list[Any]] = {"launched_tasks": [], "completed_tasks": []}
        for task in tasks:
            status = {"state": task.state, "message": task.message}
            tasks_by_state["completed_tasks" if task.is_final else "launched_tasks"].append(
                {"task_id": {"value": task.id}, "state": task.state, "statuses": [status]}
            )
        return JSONResponse({"type": call, "get_tasks": tasks_by_state})

    return application(
        [
            Route("/state", state),
            Route("/api/v1", operator, methods=["POST"]),
            Route("/files/read", read),
            Route("/monitor/statistics", statistics),
        ]
    )


def _executors(tasks: list[Task], framework: str, *, is_final: bool) -> list[dict[str, Any]]:
    return [
        {
            "id": task.id,
            "source": task.id,
            "directory": task.directory,
            "tasks": [] if is_final else [{"id": task.id, "state": task.state}],
            "completed_tasks": [{"id": task.id, "state": task.state}] if is_final else [],
        }
        for task in tasks
        if task.framework == framework and task.is_final is is_final
    ]
