"""`python -m god_ray`: the command line for a Python that has no `god-ray` script on its PATH.

In: argv. Out: the exit code. Holds nothing of its own; a Ray job's entrypoint is this.
"""

import sys

from god_ray.cli import main

if __name__ == "__main__":
    sys.exit(main())
