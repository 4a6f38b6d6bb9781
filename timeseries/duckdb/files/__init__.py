"""Files of sealed samples, on a disk or in a bucket."""
