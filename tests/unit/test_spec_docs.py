"""docs/spec.md is what the models say, and the spec stays light to import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from god_ray.spec import reference_markdown
from god_ray.spec.problem import dotted
from god_ray.spec.schema import fields, section_at

ROOT = Path(__file__).parents[2]
IMPORT = """
import sys
import god_ray.spec
print([name for name in ("torch", "ray", "pyarrow", "numpy") if name in sys.modules])
"""


def test_the_reference_on_file_is_the_one_the_models_make() -> None:
    written = (ROOT / "docs" / "spec.md").read_text(encoding="utf-8")
    assert written == reference_markdown(), "run `python -m god_ray.spec` and commit docs/spec.md"


def test_every_key_has_a_meaning_and_a_line() -> None:
    text = reference_markdown()
    for path, info in fields():
        assert info.description, dotted(path)
        assert info.description.endswith("."), dotted(path)
        assert f"| `{dotted(path)}` |" in text
        section = section_at(path)
        assert section is None or section.__doc__


def test_importing_the_spec_brings_nothing_heavy() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
