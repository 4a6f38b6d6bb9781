"""Small uploads in one request: a tar archive, as browsers make one of the files that they send."""

import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import BytesIO

from core.errors import InvalidInputError
from protocol.datasets import ManifestHead
from protocol.manifests import ManifestWriter

MAX_ARCHIVE_BYTES = 64 * 1024**2
MAX_ARCHIVE_FILES = 2_000
_CHUNK_BYTES = 1024**2


@dataclass(slots=True)
class UnpackedArchive:
    """What to store of an archive: contents of parts and pages by their SHA-256, and the head."""

    head: ManifestHead
    contents: dict[str, bytes] = field(default_factory=dict)


def unpack_archive(data: bytes) -> UnpackedArchive:
    """Return the manifest and contents of a tar archive.

    Raises:
        InvalidInputError: it is no archive, too large, or has something else than files.
    """
    contents: dict[str, bytes] = {}
    writer = ManifestWriter(lambda part, content: contents.update({part.sha256.hex(): content}))
    try:
        with tarfile.open(fileobj=BytesIO(data), mode="r:") as archive:
            for name, member in sorted(_files(archive).items()):
                is_executable = bool(member.mode & 0o100)
                chunks = _chunks(archive, member)
                pages = writer.add(name, member.size, chunks, is_executable=is_executable)
                contents |= {page.entry.sha256: page.data for page in pages}
        contents |= {page.entry.sha256: page.data for page in writer.finish()}
    except (tarfile.TarError, ValueError, EOFError) as error:
        raise InvalidInputError(f"The archive was refused. {error}", code="bad_archive") from error
    if not writer.entries:
        raise InvalidInputError("The archive has no files. A version needs one at least.")
    return UnpackedArchive(writer.head(), contents)


def _chunks(archive: tarfile.TarFile, member: tarfile.TarInfo) -> Iterator[bytes]:
    stream = archive.extractfile(member)
    while stream is not None and (chunk := stream.read(_CHUNK_BYTES)):
        yield chunk


def _files(archive: tarfile.TarFile) -> dict[str, tarfile.TarInfo]:
    files: dict[str, tarfile.TarInfo] = {}
    total_bytes = 0
    for member in archive:
        if member.isdir():
            continue
        name = member.name.removeprefix("./")
        total_bytes += member.size
        if not member.isreg() or member.issparse():
            raise ValueError(
                f"{name[:200]!r} is no plain file: archives may have files and folders."
            )
        if name in files:
            raise ValueError(f"{name[:200]!r} is twice in it.")
        if len(files) >= MAX_ARCHIVE_FILES or total_bytes > MAX_ARCHIVE_BYTES:
            raise ValueError(
                f"It has more than {MAX_ARCHIVE_FILES} files, or {MAX_ARCHIVE_BYTES} bytes. Use: "
                "vedette dataset upload"
            )
        files[name] = member
    return files
