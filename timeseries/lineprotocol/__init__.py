"""Line protocol: reading and writing it."""
