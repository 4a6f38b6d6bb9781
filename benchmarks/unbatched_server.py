"""A Vedette server that stores every post on its own, without `request_batcher`."""

from access.ingest import request_batcher
from cli.main import main

if __name__ == "__main__":
    request_batcher.MAX_POST_BYTES = 0
    main(["server"])
