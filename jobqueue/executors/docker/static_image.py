"""Images with one static program of a few bytes, made here, so that no registry is needed."""

import io
import struct
import tarfile
from collections.abc import Mapping

_LOAD_ADDRESS = 0x400000
ELF_MACHINES: Mapping[str, int] = {"x86_64": 62, "aarch64": 183}
"""The number of a processor in ELF, by `platform.machine()`."""


def image_of(machine: str, program_name: str, code: bytes) -> bytes:
    """Return the file system of an image with one program, as a tar archive."""
    program = _program(ELF_MACHINES[machine], code)
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        entry = tarfile.TarInfo(program_name)
        entry.size, entry.mode = len(program), 0o755
        tar.addfile(entry, io.BytesIO(program))
    return archive.getvalue()


def _program(machine: int, code: bytes) -> bytes:
    """Return an ELF file with one segment: its headers and the code.

    Source: Tool Interface Standard, "Executable and Linking Format"; ELF-64 Object File Format.
    """
    header_bytes, segment_bytes = 64, 56
    code_at = header_bytes + segment_bytes
    size = code_at + len(code)
    identity = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)  # 64 bits, little-endian, version 1
    entry = _LOAD_ADDRESS + code_at
    sizes = (header_bytes, segment_bytes, 1, 0, 0, 0)
    header = struct.pack(
        "<16sHHIQQQIHHHHHH", identity, 2, machine, 1, entry, header_bytes, 0, 0, *sizes
    )
    address = _LOAD_ADDRESS
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, address, address, size, size, 0x1000)
    return header + segment + code
