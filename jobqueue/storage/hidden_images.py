"""Images of customers' jobs in the report of a rented appliance, without their names.

An image is hidden from the first report with it that follows a customer's attempt, and stays so as
long as it is there. One that was there before is the provider's.
"""

import hashlib
from collections.abc import Collection

import msgspec

from jobqueue.rentals import HIDDEN_IMAGE
from protocol.storage import StorageReport, StoredImage, full_image_name

_HIDDEN_ERROR = "An image of a rented job could not be deleted."


def shown_report(
    report: StorageReport, before: StorageReport, *, appliance_id: str, images: Collection[str]
) -> StorageReport:
    """Return a report as it is stored and shown.

    Args:
        report: the new one.
        before: the one before, as it was stored.
        appliance_id: the appliance.
        images: those of customers' jobs on it, of late.
    """
    hidden_before = {image.image_id for image in before.images if image.names == [HIDDEN_IMAGE]}
    if not images and not hidden_before:
        return report
    shown_before = {image.image_id for image in before.images} - hidden_before
    names = {full_image_name(image) for image in images}
    hidden: list[StoredImage] = []
    shown: list[StoredImage] = []
    for image in report.images:
        alias = _alias(appliance_id, image.image_id)
        is_new = image.image_id not in shown_before
        is_customers = is_new and names & {full_image_name(name) for name in image.names}
        if alias in hidden_before or is_customers:
            hidden.append(image)
            shown.append(msgspec.structs.replace(image, image_id=alias, names=[HIDDEN_IMAGE]))
        else:
            shown.append(image)
    words = {*images, *(word for image in hidden for word in (image.image_id, *image.names))}
    cleanup = report.cleanup
    if cleanup is not None:
        errors = [
            _HIDDEN_ERROR if any(word in error for word in words) else error
            for error in cleanup.errors
        ]
        cleanup = msgspec.structs.replace(cleanup, errors=errors)
    return msgspec.structs.replace(report, images=shown, cleanup=cleanup)


def _alias(appliance_id: str, image_id: str) -> str:
    """Return the id of a hidden image: its own is that of a public image, or says that of one."""
    return hashlib.sha256(f"{appliance_id} {image_id}".encode()).hexdigest()
