"""The exit codes: one table that the command line, `god-ray exit-code` and docs/exit-codes.md all read.

In: nothing. Out: a code's name, meaning and help page. Each error class says which code it ends in
(`god_ray/errors.py`). A test compares the page with `markdown()` and says how to renew it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Exit:
    code: int
    name: str
    meaning: str  # one sentence
    page: str  # when it happens, and what to do


SUCCEEDED = Exit(
    0,
    "succeeded",
    "The command did what it was asked.",
    """
For `train` and `resume`: the run made every update it was planned to make (or `stop_when` ended
it), and its last checkpoint is written and verified. For `verify`: every check held. For a command
that only looks: it found what was asked for.
""",
)
BUG = Exit(
    1,
    "bug",
    "god_ray itself is at fault.",
    """
An invariant broke, or an error came up that nobody foresaw. The traceback is on stderr, followed by
"this is a bug in god_ray". Please report it with that text. A run that was going on keeps its
checkpoints: `god-ray resume RUN` goes on from the newest intact one.
""",
)
USAGE = Exit(
    2,
    "usage",
    "The command line, the spec, the recipe or the data is at fault; nothing was started.",
    """
stderr says what is wrong with which value, why, and what to change; all faults of a spec are listed
at once, each with file and line. The same code when a name is taken, or when `resume` refuses
because the spec or the data differ from the run's. Correct it and repeat the command.
""",
)
FAILED = Exit(
    100,
    "failed",
    "The run ended without a result, or what was read is damaged.",
    """
The first cause is on stderr and in `god-ray status RUN`. For `train`: the recipe raised while
training, failures used up `failures.max`, or a check that guards the result (audit, fingerprint,
rows, ledger) did not hold. After removing the cause: `god-ray resume RUN`. For `verify`: a named
difference. For `export` and `eval`: a damaged newest checkpoint is passed over by name, and the
newest intact one taken; 100 if none is intact, if the one of `--step` or `--best` is damaged, if one
that is read has another version's format, if the recipe builds another model now, or if the file
cannot be written.
""",
)
NOT_FINISHED = Exit(
    101,
    "not finished",
    "The run has not reached a final state.",
    """
It is queued, starting, waiting for room, training, recovering or changing its size, or its driver
died without writing a final state. `god-ray status RUN` tells them apart. Wait, or `god-ray resume
RUN` if nothing is driving it any more.
""",
)
NOT_FOUND = Exit(
    102,
    "not found",
    "There is no such run, step or checkpoint.",
    """
A run is a name under `--storage` (default ./runs, or GOD_RAY_STORAGE), or the path of its folder.
`god-ray ls` lists the names there.
""",
)
STOPPED = Exit(
    103,
    "stopped",
    "The run was stopped on request.",
    """
By Ctrl-C: once, after a checkpoint at the next step boundary, and `god-ray resume RUN` goes on at the
same step; twice, at once, and `resume` replays the steps since the newest checkpoint.
""",
)
INTERRUPTED = Exit(
    130,
    "interrupted",
    "Ctrl-C ended the command at once.",
    """
A command that only looks ends like this, and `train` or `resume` before their run has begun. No run
was changed; a run that exists already goes on with `god-ray resume RUN`.
""",
)
UNREAD = Exit(
    141,
    "unread",
    "Whoever read the output stopped reading.",
    """
As in `god-ray ledger RUN | head -1`: the command ended quietly when nobody read on. It is the code
of a program that is ended by SIGPIPE, and says nothing about the run.
""",
)

EXITS = (SUCCEEDED, BUG, USAGE, FAILED, NOT_FINISHED, NOT_FOUND, STOPPED, INTERRUPTED, UNREAD)
BY_CODE = {item.code: item for item in EXITS}


def markdown() -> str:
    """docs/exit-codes.md."""
    lines = [
        "# Exit codes",
        "",
        "Generated from god_ray/cli/exits.py. `god-ray exit-code N` prints one page.",
        "",
    ]
    lines += ["| code | name | meaning |", "|---:|---|---|"]
    lines += [f"| {item.code} | {item.name} | {item.meaning} |" for item in EXITS]
    for item in EXITS:
        lines += ["", f"## {item.code}: {item.name}", "", item.meaning, "", item.page.strip()]
    return "\n".join(lines) + "\n"
