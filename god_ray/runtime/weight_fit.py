"""Which tensors of a file belong where in a model, and what does not fit; all of it at once.

In: a model, tensors by name, whether a part is enough. Out: the model with their values, and `Taken`. Nothing
is touched unless it is allowed. Must not know files. A misfit shows as UserError with every list, whole in
its `data`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field

import torch
import xxhash
from torch import Tensor, nn

from god_ray.errors import UserError, few
from god_ray.runtime.taken import DIFFERENCES, Taken

Named = Mapping[str, Tensor]
_WRAPPERS: dict[str, Callable[[str], str]] = {
    "module.": lambda name: name.removeprefix("module."),  # DistributedDataParallel
    "_orig_mod.": lambda name: name.replace("_orig_mod.", ""),  # torch.compile, also of a part of the model
    "model.": lambda name: name.removeprefix("model."),  # a LightningModule that holds the model
}
_DEEPEST = 3  # wrappers around each other


@dataclass
class _Slot:
    """One tensor of the model under all its names."""

    target: Tensor
    names: list[str] = field(default_factory=list)


@dataclass
class _Fit:
    """`pairs`: (the model's tensor, the file's). `wrong`: what not even a partial start may take."""

    pairs: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    shapes: list[str] = field(default_factory=list)
    casts: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def take(model: nn.Module, tensors: Named, partial: bool, path: str) -> Taken:
    """Copy what fits into the model, in place. Raises UserError, with the model as it was."""
    unkept = _unkept(model)
    slots = _slots(model, unkept)
    stripped, named = _best_names(slots, tensors)
    fit = _compare(slots, {name: tensor for name, tensor in named.items() if name not in unkept})
    taken = Taken(
        path=path,
        fingerprint=fingerprint(tensors),
        num_taken=len(fit.pairs),
        num_tensors=len(fit.pairs) + len(fit.missing) + len(fit.shapes) + len(fit.wrong),
        missing=fit.missing,
        unknown=fit.unknown,
        shapes=fit.shapes,
        casts=fit.casts,
        stripped=stripped,
    )
    if fit.wrong or not fit.pairs or not (partial or taken.whole):
        raise _misfit(taken, fit.wrong)
    with torch.no_grad():
        for target, source in fit.pairs:
            target.copy_(source)
    return taken


def _unkept(model: nn.Module) -> set[str]:
    """Buffers that follow from how the model was built (`persistent=False`): they stay as built."""
    return {name for name, _ in model.named_buffers(remove_duplicate=False)} - model.state_dict().keys()


def _slots(model: nn.Module, unkept: set[str]) -> list[_Slot]:
    slots: dict[int, _Slot] = {}
    for named in (model.named_parameters, model.named_buffers):
        for name, tensor in named(remove_duplicate=False):
            if name not in unkept:
                slots.setdefault(id(tensor), _Slot(tensor)).names.append(name)
    return list(slots.values())


def _best_names(slots: list[_Slot], tensors: Named) -> tuple[str, Named]:
    """Under which names most tensors fit; as few wrappers taken off as possible."""
    shapes = {name: slot.target.shape for slot in slots for name in slot.names}

    def fitting(named: Named) -> tuple[int, int]:
        known = [name for name in named if name in shapes]
        return sum(named[name].shape == shapes[name] for name in known), len(known)

    return max(_unwrapped(tensors), key=lambda variant: (*fitting(variant[1]), -len(variant[0])))


def _unwrapped(tensors: Named, depth: int = 0) -> Iterator[tuple[str, Named]]:
    """The tensors as they are, and with the prefixes of wrappers taken off, in every order."""
    yield "", tensors
    for prefix, strip in _WRAPPERS.items():
        named = {strip(name): tensor for name, tensor in tensors.items()}
        if depth < _DEEPEST and named.keys() != tensors.keys() and len(named) == len(tensors):
            for more, variant in _unwrapped(named, depth + 1):
                yield prefix + more, variant


def _compare(slots: list[_Slot], tensors: Named) -> _Fit:
    fit = _Fit()
    for slot in slots:
        found = [name for name in slot.names if name in tensors]
        if found:
            _place(fit, slot.target, {name: tensors[name] for name in found})
        else:
            fit.missing.append(slot.names[0])
    known = {name for slot in slots for name in slot.names}
    fit.unknown += [name for name in tensors if name not in known]
    return fit


def _place(fit: _Fit, target: Tensor, sources: dict[str, Tensor]) -> None:
    (name, source), *others = sources.items()
    for other, tensor in others:
        if not _same(source, tensor):
            fit.wrong.append(f"{name} and {other}, one tensor in the model, differ in the file")
            return
    if source.shape != target.shape:
        fit.shapes.append(f"{name} {[*source.shape]} (the file's), {[*target.shape]} (the model's)")
    elif source.dtype == target.dtype:
        fit.pairs.append((target, source))
    elif _casts(source, target.dtype):
        fit.casts.append(f"{name} {_word(source.dtype)} to {_word(target.dtype)}")
        fit.pairs.append((target, source))
    else:
        fit.wrong.append(f"{name} is {_word(source.dtype)}, and as {_word(target.dtype)} its values change")


def _casts(source: Tensor, dtype: torch.dtype) -> bool:
    """Whether every value comes back. Whole numbers are not taken for floats: quantized weights look so."""
    kinds = {(kind.is_floating_point, kind.is_complex, kind == torch.bool) for kind in (source.dtype, dtype)}
    return len(kinds) == 1 and _same(source, source.to(dtype).to(source.dtype))


def _same(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(_raw(a), _raw(b))


def _raw(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def fingerprint(tensors: Named) -> str:
    """A hash of names, dtypes, shapes and bytes."""
    digest = xxhash.xxh3_128()
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"\n{name!r} {tensor.dtype} {list(tensor.shape)}\n".encode())
        if tensor.numel():
            digest.update(_raw(tensor).numpy().data)
    return digest.hexdigest()


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _misfit(taken: Taken, wrong: list[str]) -> UserError:
    lists = {**asdict(taken), "wrong": wrong}
    said = {**DIFFERENCES, "wrong": "cannot be taken"}
    why = "; ".join(f"{text}: {few(lists[name])}" for name, text in said.items() if lists[name])
    if wrong:
        fix = "save them in the model's dtype and as the model ties them, or build the model as they are."
    elif not taken.num_taken:
        fix = "use weights of the same model; not one name with its shape is the same."
    else:
        path = taken.path
        fix = f"use weights of the same model, or take what fits: init_from: {{path: {path}, partial: true}}."
    return UserError(
        f"init_from: {taken.path} does not fit the model: {taken.num_taken} of {taken.num_tensors} fit.",
        f"{why[:1].upper()}{why[1:]}.",
        fix,
        **lists,
    )
