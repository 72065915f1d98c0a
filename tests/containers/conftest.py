"""These tests belong to the runs that `tests.containers.run` starts: no other has an engine and an image."""

import os

from tests.containers import IMAGE_VARIABLE

if IMAGE_VARIABLE not in os.environ:
    collect_ignore_glob = ["test_*.py"]
