"""Warm start: every kind of source gives the same bits, and what does not fit is named, all at once."""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from small_runs import STEPS
from torch import Tensor, nn

from god_ray.checkpoint.store import CheckpointStore
from god_ray.errors import CheckpointError, UserError
from god_ray.runtime.run_folder import RunFolder
from god_ray.runtime.weight_file import read_file
from god_ray.runtime.weights import initialise
from god_ray.spec import RunSpec, load
from god_ray.storage.local import LocalStore
from god_ray.storage.store import open_store, write_bytes


def net() -> nn.Module:
    """As the small recipe builds it, with other numbers each time."""
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def spec_of(path: object, storage: object = "runs", **more: Any) -> RunSpec:
    start = {"path": str(path), **more}
    given = {"recipe": "r.py", "data": {"train": "t"}, "batch_size": 8, "steps": 1}
    return load({**given, "init_from": start, "storage": str(storage)}).spec


def bits(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def refused(model: nn.Module, path: object, **more: Any) -> UserError:
    """The error; the model is as it was."""
    before = bits(model)
    with pytest.raises(UserError) as caught:
        initialise(model, spec_of(path, **more))
    assert same(before, bits(model))
    assert caught.value.why
    assert caught.value.fix
    return caught.value


SAVED: dict[str, Callable[[dict[str, Tensor]], Any]] = {
    "plain": lambda state: state,
    "state_dict": lambda state: {"state_dict": state, "epoch": 3, "best": np.float64(0.25)},
    "model_state_dict": lambda state: {"model_state_dict": state, "optimizer": {"state": {}, "groups": [1]}},
    "model": lambda state: {"model": state, "rng": np.random.RandomState(0).get_state()},
    "module": lambda state: {"module": state, "args": None},
    "lightning": lambda state: {"state_dict": {f"model.{k}": v for k, v in state.items()}, "hparams": {}},
    "ddp": lambda state: {f"module.{k}": v for k, v in state.items()},
    "compiled": lambda state: {f"_orig_mod.{k}": v for k, v in state.items()},
    "compiled part": lambda state: {k.replace(".", "._orig_mod."): v for k, v in state.items()},
    "ddp of compiled": lambda state: {f"module._orig_mod.{k}": v for k, v in state.items()},
    "parameters": lambda state: {k: nn.Parameter(v) for k, v in state.items()},
}


@pytest.mark.parametrize("kind", SAVED)
@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "before torch 1.6"])
def test_what_torch_save_wrote(tmp_path: Path, kind: str, zipped: bool) -> None:
    source, model = net(), net()
    file = tmp_path / "weights.any"
    torch.save(SAVED[kind](source.state_dict()), file, _use_new_zipfile_serialization=zipped)
    taken = initialise(model, spec_of(file))
    assert taken is not None
    assert (taken.num_taken, taken.num_tensors, taken.whole) == (4, 4, True)
    assert same(bits(source), bits(model))


def test_numbers_of_an_older_numpy_beside_the_weights(tmp_path: Path) -> None:
    """NumPy 1 had them in another module; they are passed over either way."""
    source, model = net(), net()
    held = {"model": source.state_dict(), "best": np.float64(0.5), "rng": np.random.get_state()}
    torch.save(held, tmp_path / "w", _use_new_zipfile_serialization=False)
    content = (tmp_path / "w").read_bytes()
    for module in (b"numpy._core.multiarray\n", b"numpy.core.multiarray\n"):
        written, times = re.subn(rb"numpy\._?core\.multiarray\n", module, content)
        assert times == 2
        (tmp_path / "w").write_bytes(written)
        initialise(model, spec_of(tmp_path / "w"))
        assert same(bits(source), bits(model))


def test_a_safetensors_file_whatever_its_name(tmp_path: Path) -> None:
    source, model = net(), net()
    save_file(source.state_dict(), tmp_path / "w.bin")
    initialise(model, spec_of(tmp_path / "w.bin"))
    assert same(bits(source), bits(model))


def test_a_run_a_checkpoint_and_an_export_give_the_same_bits(
    finished_run: RunFolder, god_ray_here: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    newest = finished_run.checkpoints / f"step-{STEPS:08d}"
    god_ray_here("export", finished_run.path, "--to", tmp_path / "w.safetensors")
    found = []
    for source in (finished_run.path, newest, tmp_path / "w.safetensors"):
        model = net()
        model[0].requires_grad_(False)  # type: ignore[index]  # what is trained may be another part than before
        initialise(model, spec_of(source))
        found.append(bits(model))
    wanted = CheckpointStore(LocalStore(finished_run.checkpoints), 0).load(STEPS)[0].model
    assert all(same(wanted, one) for one in found)


def test_other_runs_checkpoints_in_a_run_are_not_its_weights(small_run: RunFolder) -> None:
    record = json.loads((small_run.path / "run.json").read_text())
    (small_run.path / "run.json").write_text(json.dumps(record | {"id": "another"}))
    with pytest.raises(CheckpointError, match="belongs to another run"):
        initialise(net(), spec_of(small_run.path))


def test_everything_that_does_not_fit_is_named_at_once(tmp_path: Path) -> None:
    state = net().state_dict()
    state["2.weight"] = torch.zeros(5, 8)
    state["head.weight"] = state.pop("2.bias")
    save_file(state, tmp_path / "w")
    error = refused(net(), tmp_path / "w")
    assert error.what == f"init_from: {tmp_path}/w does not fit the model: 2 of 4 fit."
    assert error.why == (
        "Not in the file: 2.bias; not in the model: head.weight; "
        "shape differs: 2.weight [5, 8] (the file's), [3, 8] (the model's)."
    )
    assert error.fix.endswith(f"or take what fits: init_from: {{path: {tmp_path}/w, partial: true}}.")
    assert error.data["missing"] == ["2.bias"]


def test_a_part_is_taken_where_that_was_asked_for(tmp_path: Path) -> None:
    source, model = net(), net()
    built = bits(model)
    state = source.state_dict() | {"2.weight": torch.zeros(5, 8), "head.bias": torch.zeros(1)}
    del state["2.bias"]
    torch.save({"state_dict": {f"module.{k}": v for k, v in state.items()}}, tmp_path / "w.pt")
    taken = initialise(model, spec_of(tmp_path / "w.pt", partial=True))
    assert taken is not None
    assert (taken.num_taken, taken.num_tensors, taken.stripped) == (2, 4, "module.")
    assert (taken.missing, taken.unknown) == (["2.bias"], ["head.bias"])
    assert taken.shapes == ["2.weight [5, 8] (the file's), [3, 8] (the model's)"]
    now = bits(model)
    for name in now:
        assert torch.equal(now[name], (source.state_dict() if name[0] == "0" else built)[name])


def test_nothing_that_fits_is_an_error_even_for_a_part(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(1), "0.weight": torch.zeros(1)}, tmp_path / "w")
    error = refused(net(), tmp_path / "w", partial=True)
    assert "0 of 4 fit" in error.what
    assert "not one name with its shape is the same" in error.fix


def test_many_names_are_cut_short_but_not_in_the_data(tmp_path: Path) -> None:
    save_file({f"t{index:02d}": torch.zeros(1) for index in range(20)}, tmp_path / "w")
    error = refused(net(), tmp_path / "w")
    assert "not in the model: t00, t01, t02, t03, t04, t05, t06, t07 and 12 more." in error.why
    assert len(error.data["unknown"]) == 20


@pytest.mark.parametrize(
    ("held", "built"),
    [
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float64),
    ],
)
def test_a_cast_that_changes_no_value_is_made_and_told(
    tmp_path: Path, held: torch.dtype, built: torch.dtype
) -> None:
    source, model = net().to(held), net().to(built)
    save_file(source.state_dict(), tmp_path / "w")
    taken = initialise(model, spec_of(tmp_path / "w"))
    assert taken is not None
    assert taken.casts[0] == f"0.weight {held} to {built}".replace("torch.", "")
    assert same(bits(source.to(built)), bits(model))


def test_values_that_came_from_a_narrow_type_go_back_into_it(tmp_path: Path) -> None:
    save_file(net().bfloat16().float().state_dict(), tmp_path / "w")
    initialise(net().bfloat16(), spec_of(tmp_path / "w"))


@pytest.mark.parametrize("partial", [False, True])
def test_values_are_never_changed_not_even_for_a_part(tmp_path: Path, partial: bool) -> None:
    state = net().state_dict()
    state["0.bias"] = torch.arange(8)  # whole numbers are no floats: quantized weights look like that
    save_file(state, tmp_path / "w")
    error = refused(net().bfloat16(), tmp_path / "w", partial=partial)
    assert "0.weight is float32, and as bfloat16 its values change" in error.why
    assert "0.bias is int64, and as bfloat16 its values change" in error.why
    assert "save them in the model's dtype" in error.fix


class Tied(nn.Module):
    def __init__(self, tie: bool = True) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        if tie:
            self.outer.weight = self.inner.weight


def test_tied_tensors(tmp_path: Path) -> None:
    inner, outer = torch.randn(4, 4), torch.randn(4, 4)
    for state in ({"inner.weight": inner}, {"outer.weight": inner}, Tied().state_dict()):
        torch.save(state, tmp_path / "w")
        model = Tied()
        taken = initialise(model, spec_of(tmp_path / "w"))
        assert taken is not None
        assert (taken.num_taken, taken.num_tensors) == (1, 1)
        assert model.outer.weight is model.inner.weight
        assert torch.equal(model.inner.weight, next(iter(state.values())))
    torch.save({"inner.weight": inner, "outer.weight": outer}, tmp_path / "w")
    error = refused(Tied(), tmp_path / "w", partial=True)
    assert "inner.weight and outer.weight, one tensor in the model, differ in the file" in error.why
    untied = Tied(tie=False)
    torch.save(Tied().state_dict(), tmp_path / "w")
    assert initialise(untied, spec_of(tmp_path / "w")) is not None
    assert torch.equal(untied.inner.weight, untied.outer.weight)


def test_buffers_come_along_but_for_those_that_are_not_kept(tmp_path: Path) -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(2)
            self.register_buffer("mask", torch.ones(3), persistent=False)

    source, model = Counts(), Counts()
    source.norm.running_mean.fill_(0.5)  # type: ignore[union-attr]
    source.norm.num_batches_tracked.fill_(7)  # type: ignore[union-attr]
    torch.save(source.state_dict() | {"mask": torch.zeros(9)}, tmp_path / "w")
    initialise(model, spec_of(tmp_path / "w"))
    assert same(bits(source), bits(model))
    assert model.mask.tolist() == [1.0, 1.0, 1.0]


def test_a_models_own_prefix_is_not_taken_off(tmp_path: Path) -> None:
    source, model = nn.ModuleDict({"model": net()}), nn.ModuleDict({"model": net()})
    torch.save(source.state_dict(), tmp_path / "w")
    taken = initialise(model, spec_of(tmp_path / "w"))
    assert taken is not None
    assert taken.stripped == ""
    assert same(bits(source), bits(model))


class Malicious:
    """Its pickle calls `os.system` when it is loaded."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.target}",)


@pytest.mark.parametrize("zipped", [True, False])
def test_no_code_of_a_file_is_run(tmp_path: Path, zipped: bool) -> None:
    held = {"state_dict": net().state_dict(), "hook": Malicious(tmp_path / "was run")}
    torch.save(held, tmp_path / "w.ckpt", _use_new_zipfile_serialization=zipped)
    error = refused(net(), tmp_path / "w.ckpt")
    assert "It holds a Python object (posix.system); to load that would run code" in error.why
    assert "torch.save(model.state_dict(), path)" in error.fix
    assert "weights_only" not in str(error)  # torch's advice to load it unsafely is not passed on
    assert not (tmp_path / "was run").exists()


def held_by(file: Path, content: object) -> Path:
    if isinstance(content, bytes):
        file.write_bytes(content)
    else:
        torch.save(content, file)
    return file


@pytest.mark.parametrize(
    ("content", "why", "fix"),
    [
        (net(), "holds a Python object (torch.nn.modules.", "torch.save(model.state_dict(), path)"),
        (torch.zeros(3), "It holds a Tensor, not a state dict.", "torch.save(model.state_dict(), path)"),
        (
            {"net": {"a": torch.zeros(1)}, "step": 3},
            "is a state dict; its keys: net, step.",
            "torch.save",
        ),
        (
            {"model": {"a": torch.zeros(1)}, "state_dict": {"a": torch.ones(1)}},
            "several state dicts: state_dict, model.",
            "by itself",
        ),
        ({}, "its keys: none.", "torch.save"),
        (np.zeros(3), "It holds a NumpyValue, not a state dict.", "torch.save"),
        (b"", "The file is empty.", "name a safetensors file"),
        (b"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer", "git lfs pull"),
        (b"a,b\n1,2\n", "begins neither like a safetensors file", "name a safetensors file"),
        (b"PK\x03\x04 and no more", "torch cannot read it", "it is damaged"),
        (b"\x80\x02 and no more", "torch cannot read it", "it is damaged"),
        (b"\x10\0\0\0\0\0\0\0{ and no more", "", "it is damaged"),
    ],
)
def test_files_that_hold_no_weights(tmp_path: Path, content: object, why: str, fix: str) -> None:
    error = refused(net(), held_by(tmp_path / "w", content))
    assert error.what == f"init_from: no weights can be read from {tmp_path}/w."
    assert why in error.why
    assert fix in error.fix


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    torch.save(net().state_dict(), tmp_path / "w.pt")
    save_file(net().state_dict(), tmp_path / "w.safetensors")
    for whole in ((tmp_path / "w.pt").read_bytes(), (tmp_path / "w.safetensors").read_bytes()):
        for length in (*range(0, 200, 7), *range(200, len(whole), 97), len(whole) - 1):
            (tmp_path / "cut").write_bytes(whole[:length])
            with pytest.raises(UserError, match="no weights can be read"):
                read_file(tmp_path / "cut")


def test_a_program_is_refused(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(net()).save(tmp_path / "w.pt")  # type: ignore[no-untyped-call]
    assert "TorchScript archive" in refused(net(), tmp_path / "w.pt").why


def test_paths_where_there_are_no_weights(tmp_path: Path, small_run: RunFolder) -> None:
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / "model.safetensors").write_text("")
    (tmp_path / "new" / "checkpoints").mkdir(parents=True)
    storage = small_run.path.parent
    for path, why, fix in (
        ("nowhere", "There is nothing at that path.", "name one of these."),
        ("done", "There is nothing at that path.", f"did you mean the run {storage}/done?"),
        ("hub", "It is no file, no run", "name one file in it: model.safetensors."),
        ("new", "The run has no checkpoint yet.", "wait for its first one"),
    ):
        error = refused(net(), tmp_path / path, storage=storage)
        assert error.what == f"init_from: {tmp_path / path} holds no weights."
        assert (error.why.startswith(why), error.fix.startswith(fix)) == (True, True), error


def test_weights_in_a_bucket(
    s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finished_run: RunFolder
) -> None:
    """A file, a checkpoint and a run; what is not there is named."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    bucket = open_store(s3)
    for path in finished_run.path.rglob("*"):
        if path.is_file():
            write_bytes(bucket, f"runs/done/{path.relative_to(finished_run.path)}", path.read_bytes())
    wanted = CheckpointStore(LocalStore(finished_run.checkpoints), 0).load(STEPS)[0].model
    save_file(wanted, tmp_path / "w.safetensors")
    write_bytes(bucket, "w.safetensors", (tmp_path / "w.safetensors").read_bytes())
    for place in ("w.safetensors", f"runs/done/checkpoints/step-{STEPS:08d}", "runs/done"):
        model = net()
        initialise(model, spec_of(f"{s3}/{place}"))
        assert same(bits(model), wanted), place
    assert "there is no such object" in refused(net(), f"{s3}/other.pt").why
    write_bytes(bucket, "runs/new/run.json", (finished_run.path / "run.json").read_bytes())
    error = refused(net(), f"{s3}/runs/new")
    assert error.what == f"init_from: {s3}/runs/new holds no weights."
    assert error.why == "The run has no checkpoint yet."
