"""A run's record (`run.json`) as it was read: refused where it is damaged, before anything believes it.

In: the file. Out: a `Record`, whose known fields have the right kinds if they are there; to ask for one that
is not there shows damage, too. Must import neither torch, ray nor pydantic before it is asked for the spec.
Damage shows as RunNotFound.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from god_ray.errors import RunNotFound

if TYPE_CHECKING:
    from god_ray.spec import RunSpec

FORMAT = 1
_RESTORE = "restore it from a copy of the run; checkpoints and ledger are beside it."
_DAMAGED = "It was damaged, or written by something else"
_NULL = type(None)
_MAPPINGS = "a list of mappings"
_KINDS: dict[str, tuple[str, tuple[type, ...]]] = {
    "name": ("text", (str,)),
    "id": ("text", (str,)),
    "reason": ("text", (str, _NULL)),
    "spec": ("a mapping", (dict,)),
    "data_fingerprint": ("text", (str,)),
    "fitted": ("text or null", (str, _NULL)),
    "eval_fingerprint": ("text or null", (str, _NULL)),
    "fingerprint": ("a mapping or null", (dict, _NULL)),
    "init_from": ("a mapping or null", (dict, _NULL)),
    "result": ("a mapping or null", (dict, _NULL)),
    "num_rows": ("a whole number", (int,)),
    "num_steps": ("a whole number", (int,)),
    "steps_per_epoch": ("a whole number", (int,)),
    "generation": ("a whole number", (int,)),
    "recoveries": ("a whole number", (int,)),
    "durable_step": ("a whole number or null", (int, _NULL)),
    "created_at": ("a number or null", (int, float, _NULL)),
    "started_at": ("a number or null", (int, float, _NULL)),
    "ended_at": ("a number or null", (int, float, _NULL)),
    "attempts": (_MAPPINGS, (list,)),
    "workers": (_MAPPINGS, (list,)),
}


class Record(dict[str, Any]):
    """The fields. To ask by [] for one that is not there raises RunNotFound; `get` gives None."""

    def __init__(self, path: Path, fields: dict[str, Any], prefix: str = "") -> None:
        super().__init__(fields)
        self.path, self.prefix = path, prefix

    def __missing__(self, key: str) -> Any:
        raise RunNotFound(f"{self.path} lacks {self.prefix}{key}.", f"{_DAMAGED}.", _RESTORE)

    def run_spec(self) -> RunSpec:
        """The spec that the run was started with."""
        from pydantic import ValidationError

        from god_ray.spec import RunSpec

        try:
            return RunSpec.model_validate(self["spec"])
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            key = ".".join(str(part) for part in ("spec", *first["loc"]))
            why = f"{_DAMAGED}: {key}: {first['msg']}."
            raise RunNotFound(f"{self.path} holds no spec of a run.", why, _RESTORE) from error


def read(path: Path, states: Collection[str]) -> Record:
    """Raises RunNotFound."""
    try:
        content = path.read_bytes()
    except OSError as error:
        fix = "make it a file that can be read; if it was replaced, restore it from a copy of the run."
        raise RunNotFound(f"{path} cannot be read: {error.strerror}.", "", fix) from error
    return parse(content, path, states)


def parse(content: bytes, path: Path, states: Collection[str]) -> Record:
    """`states`: those that a run can have. Raises RunNotFound, which names `path`."""
    try:
        fields = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise RunNotFound(f"{path} cannot be read: {error}.", f"{_DAMAGED}.", _RESTORE) from error
    if not isinstance(fields, dict) or "state" not in fields:
        raise RunNotFound(f"{path} is not a run's record.", f"{_DAMAGED}.", _RESTORE)
    if fields.get("format") != FORMAT:
        raise RunNotFound(
            f"{path} has format {fields.get('format')!r}.",
            f"This god_ray reads format {FORMAT}.",
            "use the version that made the run.",
        )
    if fault := _fault(fields, states):
        raise RunNotFound(f"{path} is not a run's record: {fault}.", f"{_DAMAGED}.", _RESTORE)
    if "spec" in fields:
        fields["spec"] = Record(path, fields["spec"], "spec.")
    return Record(path, fields)


def _fault(fields: dict[str, Any], states: Collection[str]) -> str:
    """Values are shown short: a damaged one may be anything."""
    state = fields["state"]
    if not isinstance(state, str) or state not in states:
        return f"state is {_short(state)}, and must be one of {', '.join(states)}"
    for key, (words, kinds) in _KINDS.items():
        if key not in fields:
            continue
        value = fields[key]
        sound = type(value) in kinds
        if sound and words == _MAPPINGS:
            sound = all(isinstance(item, dict) for item in value)
        if not sound:
            return f"{key} is {_short(value)}, and must be {words}"
    return ""


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
