"""The speed test between agent and portal: `/agent/v1/transfer`."""

import msgspec

# The largest transfer of a speed test.
MAX_TRANSFER_BYTES = 256 * 1024 * 1024


class TransferReply(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to POST /agent/v1/transfer, which discards the bytes."""

    received_bytes: int
