"""The Mesos agent on this appliance: output in sandboxes, resource use, and why tasks ended.

Schedulers don't tell why a task ended, or only in an event that is never repeated; the agent keeps
the last statuses of tasks.

Source: Mesos' documentation, "Operator HTTP API" (`GET_TASKS`), "/state", "/files/read",
"/monitor/statistics".
"""

import re
import signal
import time
from collections.abc import Mapping
from typing import Any

from jobqueue.executors.base import NotFoundError
from jobqueue.executors.pull_failures import pull_failure
from jobqueue.executors.recorded import Ending
from jobqueue.executors.scheduler_api import SchedulerAPI
from jobqueue.executors.settings import ServerSettings

# The agent's whole state is read at most this often.
STATE_SECONDS = 1.0
EXITED = re.compile(r"exited with status (\d+)")
SIGNALED = re.compile(r"terminated with signal (\w+)")
SIGNAL_BASE = 128
NOT_IN_IMAGE = 127


class MesosAgent:
    """The API of one Mesos agent; tasks are found by a part of their id."""

    def __init__(self, settings: ServerSettings) -> None:
        self._api = SchedulerAPI("The Mesos agent", settings)
        self._executors: list[Mapping[str, Any]] = []
        self._read_at = float("-inf")

    def sandboxes(self, part: str) -> list[str]:
        """Return the folders of the tasks with this part in their id."""
        if time.monotonic() - self._read_at > STATE_SECONDS:
            state = self._api.get("/state")
            frameworks = [*state.get("frameworks", []), *state.get("completed_frameworks", [])]
            self._executors = [
                executor
                for framework in frameworks
                for kind in ("executors", "completed_executors")
                for executor in framework.get(kind, [])
            ]
            self._read_at = time.monotonic()
        return [
            executor["directory"] for executor in self._executors if part in executor.get("id", "")
        ]

    def read(self, path: str, *, offset: int, limit: int) -> bytes:
        """Return a part of a file in a sandbox; nothing if it is gone."""
        params = {"path": path, "offset": str(offset), "length": str(limit)}
        try:
            data: str = self._api.get("/files/read", params)["data"]
        except NotFoundError:
            return b""
        return data.encode()

    def status_message(self, part: str) -> str:
        """Return what the agent knows of the last task with this part in its id."""
        response = self._api.request("POST", "/api/v1", body={"type": "GET_TASKS"})
        tasks = response.json().get("get_tasks", {})
        messages = [
            task["statuses"][-1].get("message", "")
            for kind in ("completed_tasks", "terminated_tasks", "launched_tasks")
            for task in tasks.get(kind, [])
            if part in task["task_id"]["value"] and task.get("statuses")
        ]
        return messages[-1] if messages else ""

    def statistics(self, part: str) -> list[Mapping[str, Any]]:
        """Return the resource statistics of the running tasks with this part in their id."""
        rows = self._api.get("/monitor/statistics")
        return [row["statistics"] for row in rows if part in row.get("executor_id", "")]

    def describe(self) -> tuple[str, str]:
        """Return Mesos' version and the agent's host name, which show that it answers."""
        state = self._api.get("/state")
        return str(state.get("version", "unknown")), str(state.get("hostname", ""))

    def close(self) -> None:
        """Close the connections."""
        self._api.close()


def explain(image: str, message: str) -> Ending:
    """Return why a task ended, from the message of its last status."""
    text = message.strip().rstrip(".")
    if "Failed to launch container" in message:
        return Ending(*pull_failure(image, text))
    if match := EXITED.search(message):
        code = int(match[1])
        hint = " Often the image lacks the command." if code == NOT_IN_IMAGE else ""
        return Ending("exit_code", f"The command exited with code {code}. See the log.{hint}", code)
    if "Memory limit exceeded" in message:
        return Ending("out_of_memory", f"Out of memory: {text}. Request more memory.")
    if match := SIGNALED.search(message):
        hint = " It may have used too much memory." if match[1] == "Killed" else ""
        return Ending("signal", f"{text}.{hint}", _signal_code(match[1]))
    return Ending("executor_error", f"The task failed: {text}.")


def _signal_code(description: str) -> int | None:
    numbers = {signal.strsignal(number): number for number in signal.valid_signals()}
    number = numbers.get(description)
    return None if number is None else SIGNAL_BASE + number
