"""The output folders of attempts as their appliances get them."""

from collections.abc import Sequence

from jobqueue.models import Attempt
from protocol.results import OutputFolders


def output_folders(attempts: Sequence[Attempt]) -> dict[str, OutputFolders]:
    """Return the output folders of attempts whose jobs have any, by the attempt's id."""
    return {
        attempt.id: OutputFolders(
            paths=attempt.job.outputs, previous_attempt_id=_previous_attempt_id(attempt)
        )
        for attempt in attempts
        if attempt.job.outputs
    }


def _previous_attempt_id(attempt: Attempt) -> str:
    """Return the last attempt before this one that has started, and may have left files."""
    earlier = [
        other.id
        for other in attempt.job.attempts
        if other.number < attempt.number and other.started_at is not None
    ]
    return earlier[-1] if earlier else ""
