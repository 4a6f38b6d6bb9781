"""Space and inodes of file systems."""
