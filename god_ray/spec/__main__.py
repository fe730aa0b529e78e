"""`python -m god_ray.spec [FILE]`: write the reference of the run spec, by default to docs/spec.md.

Run it in the repository's root. A test fails when the file is older than the models.
"""

import sys
from pathlib import Path

from god_ray.spec import reference_markdown


def main() -> None:
    Path(sys.argv[1] if len(sys.argv) > 1 else "docs/spec.md").write_text(
        reference_markdown(), encoding="utf-8"
    )


main()
