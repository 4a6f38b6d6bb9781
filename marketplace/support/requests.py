"""What users send: new tickets, messages with files, and ratings; with their validation."""

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from core.quantities import format_size
from core.spec import About
from marketplace.support.models import (
    MAX_COMMENT_LENGTH,
    MAX_FILE_NAME_LENGTH,
    MAX_TEXT_LENGTH,
    MAX_TITLE_LENGTH,
    SubjectKind,
)
from marketplace.support.states import Party, Recipient
from tenants.checks import raise_if_invalid

MAX_FILES = 5
# Of all files of a message: a request of the portal has 4 MiB, in base64.
MAX_FILES_BYTES = 2 * 1024**2
MAX_RATING = 5
# What files begin with, and what they are shown as. They are never opened here.
_SIGNATURES: Mapping[bytes, str] = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF8": "image/gif",
    b"%PDF-": "application/pdf",
    b"PK\x03\x04": "application/zip",
    b"\x1f\x8b": "application/gzip",
}


@dataclass(frozen=True, slots=True)
class File:
    """A file of a message."""

    name: str
    content: bytes

    @property
    def media_type(self) -> str:
        """What it is by its content, whatever its name or its sender says."""
        for signature, media_type in _SIGNATURES.items():
            if self.content.startswith(signature):
                return media_type
        try:
            self.content.decode()
        except UnicodeDecodeError:
            return "application/octet-stream"
        return "application/octet-stream" if b"\0" in self.content else "text/plain"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRequest:
    """A file in the body of a request."""

    name: Annotated[str, About("What it is called.")]
    content: Annotated[str, About("Its bytes in base64; 2 MiB for all files of a message.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class TicketRequest:
    """A new ticket."""

    title: Annotated[str, About("What it is about, in a line.")]
    text: Annotated[str, About("The first message.")]
    subject_kind: Annotated[SubjectKind, About("What it is about.")] = SubjectKind.OTHER
    subject_id: Annotated[
        str, About("Of the job, appliance, invoice, contract or offer; empty for others.")
    ] = ""
    recipient: Annotated[
        Recipient | None,
        About("Whom it asks; by default the provider of what is rented, else the operator."),
    ] = None
    tenant_id: Annotated[str, About("Of an operator's ticket, the tenant that it is sent to.")] = ""
    files: Annotated[Sequence[FileRequest], About("Attached to it.", maximum=MAX_FILES)] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRequest:
    """A message to all parties of a ticket, or an internal note."""

    text: Annotated[str, About("The message; `@` and an email address mentions a user.")]
    is_internal: Annotated[bool, About("Whether only your side sees it.")] = False
    waits_for: Annotated[
        Party | None,
        About("The party that should answer; by default the requester, or the one that it asks."),
    ] = None
    files: Annotated[Sequence[FileRequest], About("Attached to it.", maximum=MAX_FILES)] = ()


def decoded_files(files: Sequence[FileRequest]) -> list[File]:
    """Return the files of a request.

    Raises:
        InvalidInputError: there are too many, or one is empty, too large or no base64.
    """
    decoded, errors = [], []
    for file in files:
        try:
            decoded.append(File(file.name, base64.b64decode(file.content, validate=True)))
        except (binascii.Error, ValueError):
            errors.append(f"{file.name[:100]!r} is not in base64.")
    raise_if_invalid({"files": errors or file_errors(decoded)}, "The files were not accepted")
    return decoded


def file_errors(files: Sequence[File]) -> list[str]:
    """Return what is wrong with the files of a message."""
    errors = [f"{file.name[:100]!r} is empty." for file in files if not file.content]
    if len(files) > MAX_FILES:
        errors.append(f"There are {len(files)} files; attach at most {MAX_FILES}.")
    if (size := sum(len(file.content) for file in files)) > MAX_FILES_BYTES:
        limit = format_size(MAX_FILES_BYTES)
        errors.append(f"The files have {format_size(size)}; a message has {limit} at most.")
    return errors


def safe_name(name: str) -> str:
    """Return a file's name without folders and characters that a header must not have."""
    last = re.split(r"[/\\]", name)[-1]
    plain = "".join(char if char.isprintable() and char not in '"<>:|?*' else "_" for char in last)
    return plain.strip(". ")[:MAX_FILE_NAME_LENGTH] or "file"


def text_errors(text: str) -> list[str]:
    """Return what is wrong with a message."""
    if not text.strip():
        return ["The message is empty. Write one."]
    if len(text) > MAX_TEXT_LENGTH:
        return [f"The message has {len(text):,} characters; use at most {MAX_TEXT_LENGTH:,}."]
    return []


def title_errors(title: str) -> list[str]:
    """Return what is wrong with a title."""
    if not title.strip():
        return ["The title is empty. Write what it is about."]
    if len(title) > MAX_TITLE_LENGTH:
        return [f"The title has {len(title)} characters; use at most {MAX_TITLE_LENGTH}."]
    return []


def check_rating(rating: int, comment: str) -> None:
    """Check a rating.

    Raises:
        InvalidInputError: it is out of its limits.
    """
    errors: dict[str, list[str]] = {"rating": [], "comment": []}
    if not 1 <= rating <= MAX_RATING:
        errors["rating"] = [f"The rating is {rating}; choose 1 to {MAX_RATING}."]
    if len(comment) > MAX_COMMENT_LENGTH:
        errors["comment"] = [
            f"The comment has {len(comment)} characters; use at most {MAX_COMMENT_LENGTH}."
        ]
    raise_if_invalid(errors, "The rating was not saved")
