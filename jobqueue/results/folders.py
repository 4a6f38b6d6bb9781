"""The output folders of attempts as their appliances get them."""

from collections.abc import Sequence

from sqlalchemy.orm import Session

from jobqueue.models import Attempt
from protocol.results import OutputFolders


def output_folders(session: Session, attempts: Sequence[Attempt]) -> dict[str, OutputFolders]:
    """Return the output folders of attempts whose jobs have any, by the attempt's id."""
    return {}
