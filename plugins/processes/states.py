"""How many processes are in which state: one pass over `/proc/PID/stat`.

Source: proc_pid_stat(5), field 3; the kernel's fs/proc/array.c, `task_state_array`.
"""

import os
from collections import Counter
from pathlib import Path

# The name of a program may hold anything, parentheses too, but is not longer than this.
STAT_HEAD_BYTES = 256
FIELD_OF_STATE = {
    "R": "running",
    "D": "blocked",
    "S": "sleeping",
    "I": "idle",
    "T": "stopped",
    "t": "stopped",
    "Z": "zombies",
    "X": "zombies",
}
STATE_FIELDS = ("running", "blocked", "sleeping", "idle", "stopped", "zombies")


def count_states(proc: Path) -> dict[str, int]:
    """Return how many processes there are in all and in each state; those that end are left out.

    Raises:
        OSError: the folder can't be listed.
    """
    folder = os.open(proc, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        states = Counter(
            state
            for name in os.listdir(folder)  # noqa: PTH208 - a Path for each of thousands costs more
            if name.isdigit() and (state := _state(folder, name))
        )
    finally:
        os.close(folder)
    counts = dict.fromkeys(("total", *STATE_FIELDS), 0)
    for state, number in states.items():
        counts["total"] += number
        counts[FIELD_OF_STATE.get(state, "sleeping")] += number
    return counts


def _state(folder: int, process: str) -> str:
    """Return the letter of a process's state, nothing for one that ended meanwhile."""
    try:
        file = os.open(f"{process}/stat", os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return ""
    try:
        head = os.read(file, STAT_HEAD_BYTES)
    except OSError:
        return ""
    finally:
        os.close(file)
    end_of_name = head.rfind(b") ")
    return chr(head[end_of_name + 2]) if end_of_name > 0 else ""
