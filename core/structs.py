"""Describing all structs before there are threads.

msgspec describes a struct when it is first decoded, and a second thread that decodes it meanwhile
reads a description that is not complete, which crashes the process.
"""

from collections.abc import Iterator

import msgspec


def describe_structs() -> None:
    """Let msgspec describe all structs that are imported. Call it before threads are started."""
    for struct in _subclasses(msgspec.Struct):
        msgspec.json.Decoder(struct)


def _subclasses(struct: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    for subclass in struct.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)
