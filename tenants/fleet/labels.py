"""Labels: a few words on an appliance by which people find and choose it."""

import re
from collections.abc import Mapping

MAX_LABELS = 50
MAX_VALUE_LENGTH = 200
_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,62}")


def label_faults(labels: Mapping[str, str]) -> list[str]:
    """Return what is wrong with an appliance's labels."""
    faults = [
        f"The label {key[:70]!r} is not 1 to 63 letters, digits, dots, hyphens, slashes and "
        "underscores, the first a letter or digit."
        for key in labels
        if not _KEY.fullmatch(key)
    ]
    faults += [
        f"The label {key!r} has a value of {len(value)} characters; use at most "
        f"{MAX_VALUE_LENGTH}, none of them a line break."
        for key, value in labels.items()
        if len(value) > MAX_VALUE_LENGTH or not value.isprintable()
    ]
    if len(labels) > MAX_LABELS:
        faults.append(f"{len(labels)} labels are too many; use at most {MAX_LABELS}.")
    return faults
