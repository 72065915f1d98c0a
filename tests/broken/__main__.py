"""The command; `run` tells what it does. A module of its own, which the processes that it starts do not import."""

import sys

from tests.broken.run import main

sys.exit(main(sys.argv[1:]))
