"""The buffer on disk between plugins and sender: frames, segments, live samples and backlog."""
