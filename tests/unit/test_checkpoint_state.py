"""capture and restore: nothing of a training state is lost, nothing shared, nothing wrong is let in."""

from __future__ import annotations

import json

import pytest
import torch
from checkpoint_cases import OPTIMIZERS, Net, make, train
from torch import nn
from torch.optim import SGD, AdamW

from god_ray.checkpoint.state import TrainState, capture, digest, restore, restore_model
from god_ray.errors import CheckpointError, RecipeError


def of(state: TrainState) -> str:
    return digest(state.model, state.optimizer)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_restored_state_goes_on_to_the_same_bits(optimizer: str) -> None:
    first = make(optimizer)
    train(first, 5)
    snapshot = capture(first)
    second = make(optimizer, seed=1)
    restore(snapshot, second)
    assert of(second) == of(first) == snapshot.digest()
    train(first, 5, seed=7)
    train(second, 5, seed=7)
    assert of(second) == of(first) != snapshot.digest()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_state_before_the_first_step_is_kept_too(optimizer: str) -> None:
    first, second = make(optimizer), make(optimizer, seed=1)
    restore(capture(first), second)
    train(first, 3)
    train(second, 3)
    assert of(first) == of(second)


def test_restoring_goes_back_as_well_as_forward() -> None:
    state = make("momentum")
    early = capture(state)
    train(state, 3)
    restore(early, state)
    assert of(state) == early.digest()
    assert not state.optimizer.state


def test_every_tensor_and_entry_is_in_the_snapshot() -> None:
    state = make("adam")
    train(state, 2)
    snapshot = capture(state)
    assert set(snapshot.model) == {
        *(
            "embed.weight",
            "conv.weight",
            "conv.bias",
            "norm.weight",
            "norm.bias",
            "scale",
            "brain",
            "unused",
            "frozen",
        ),
        *(
            "norm.running_mean",
            "norm.running_var",
            "norm.num_batches_tracked",
            "seen",
            "cache",
            "mask",
            "empty",
        ),
    }
    assert snapshot.scalars["tied"] == {"head.weight": "embed.weight"}
    assert snapshot.optimizer["scale::step"] == 2
    assert "unused::exp_avg" not in snapshot.optimizer  # it never had a gradient
    assert json.loads(json.dumps(snapshot.scalars, allow_nan=False)) == snapshot.scalars
    assert snapshot.num_bytes == sum(
        t.nbytes for t in (*snapshot.model.values(), *snapshot.optimizer.values())
    )


def test_a_snapshot_shares_no_memory_with_the_state() -> None:
    state = make("fused")
    state.extra = {"counts": [1]}
    train(state, 2)
    snapshot = capture(state)
    before = snapshot.digest()
    train(state, 2)
    state.extra["counts"].append(2)
    assert snapshot.digest() == before
    other = make("fused")
    restore(snapshot, other)
    train(other, 2)
    other.extra["counts"].append(3)
    assert snapshot.digest() == before
    assert snapshot.scalars["extra"] == {"counts": [1]}
    live = {t.data_ptr() for t in state.model.state_dict().values() if t.numel()}
    assert not live & {t.data_ptr() for t in snapshot.model.values()}


def test_parameters_keep_identity_layout_and_ties() -> None:
    state = make("momentum")
    model = state.model.to(memory_format=torch.preserve_format)
    image = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    opt = SGD(image.parameters(), lr=0.1, momentum=0.9)
    image(torch.randn(2, 3, 5, 5)).sum().backward()
    opt.step()
    conv = TrainState(image, opt)
    snapshot = capture(conv)
    assert snapshot.model["weight"].is_contiguous()
    weight, strides = image.weight, image.weight.stride()
    restore(snapshot, conv)
    assert image.weight is weight
    assert image.weight.stride() == strides
    assert opt.state[weight]["momentum_buffer"].stride() == strides
    restore(capture(state), state)
    assert isinstance(model, Net)
    assert model.head.weight is model.embed.weight


def test_step_stays_where_torch_keeps_it_and_implementation_flags_are_the_running_ones() -> None:
    first = make("foreach")
    train(first, 2)
    second = make("fused")
    restore(capture(first), second)
    assert second.optimizer.param_groups[0]["fused"] is True
    assert second.optimizer.param_groups[0]["foreach"] is None
    assert of(first) == of(second)


def test_optimizer_state_beyond_tensors_is_kept() -> None:
    model = nn.Linear(2, 2)
    opt = SGD(model.parameters(), lr=0.1)
    opt.state[model.weight] = {
        "count": 3,
        "pair": (1, 2.5),
        "none": None,
        "momentum_buffer": torch.ones(2, 2),
    }
    state = TrainState(model, opt)
    snapshot = capture(state)
    opt.state.clear()
    restore(snapshot, state)
    kept = opt.state[model.weight]
    assert (kept["count"], kept["pair"], kept["none"]) == (3, (1, 2.5), None)
    assert torch.equal(kept["momentum_buffer"], torch.ones(2, 2))


def test_a_learning_rate_tensor_stays_the_same_object() -> None:
    first, second = make("tensor lr"), make("tensor lr")
    first.optimizer.param_groups[0]["lr"].fill_(0.5)
    held = second.optimizer.param_groups[0]["lr"]
    restore(capture(first), second)
    assert second.optimizer.param_groups[0]["lr"] is held
    assert held == 0.5


def test_only_the_model_can_be_restored() -> None:
    first = make("fused")
    train(first, 2)
    torch.manual_seed(9)
    model = Net()
    restore_model(capture(first), model)
    for name, tensor in first.model.state_dict().items():
        assert torch.equal(tensor, model.state_dict()[name]), name
    assert torch.equal(model.cache, first.model.cache)


# ---- what is refused


def test_a_parameter_that_is_not_the_models_is_refused() -> None:
    model, other = nn.Linear(2, 2), nn.Parameter(torch.zeros(3))
    with pytest.raises(RecipeError, match=r"group 0 .*number 2, shape \(3,\)"):
        TrainState(model, SGD([*model.parameters(), other], lr=0.1))


def test_optimizer_state_under_a_foreign_key_is_refused() -> None:
    model = nn.Linear(2, 2)
    opt = SGD(model.parameters(), lr=0.1)
    opt.state["global"] = {"count": 1}  # type: ignore[index]
    with pytest.raises(RecipeError, match="'global'"):
        capture(TrainState(model, opt))


def test_an_option_without_exact_form_is_refused_by_name() -> None:
    model = nn.Linear(2, 2)
    opt = SGD([{"params": list(model.parameters()), "hook": print}], lr=0.1)
    with pytest.raises(RecipeError, match=r"optimizer\.param_groups\[0\]\.hook"):
        capture(TrainState(model, opt))


class Counting(nn.Linear):
    def get_extra_state(self) -> dict[str, int]:
        return {"calls": 1}


@pytest.mark.parametrize(
    ("model", "word"),
    [(nn.Sequential(Counting(2, 2)), "extra state"), (nn.Sequential(nn.LazyLinear(2)), "lazy")],
)
def test_state_that_would_be_lost_is_refused(model: nn.Module, word: str) -> None:
    opt = SGD(nn.Linear(1, 1).parameters(), lr=0.1)
    with pytest.raises(RecipeError, match=word):
        TrainState(model, opt)


def test_a_sparse_buffer_is_refused_by_name() -> None:
    model = nn.Linear(2, 2)
    model.register_buffer("graph", torch.eye(2).to_sparse())
    with pytest.raises(RecipeError, match="graph"):
        capture(TrainState(model, SGD(model.parameters(), lr=0.1)))


class Changed(nn.Module):
    """Two linear layers, and one thing changed."""

    def __init__(self, change: str) -> None:
        super().__init__()
        self.a = nn.Linear(3, 4 if change == "shape" else 3)
        self.renamed = nn.Identity()
        setattr(self, "c" if change == "name" else "b", nn.Linear(3, 3))
        if change == "order":
            self.a = self._modules.pop("a")
        if change == "frozen":
            self.a.weight.requires_grad_(False)
        if change == "tied":
            self.b.weight = self.a.weight
        if change == "dtype":
            self.a.double()
        self.register_buffer("count", torch.zeros(2 if change == "buffer" else 1))


@pytest.mark.parametrize(
    ("change", "saved", "found"),
    [
        ("name", "b.weight", "c.weight"),
        ("shape", "a.weight float32[3, 3]", "a.weight float32[4, 3]"),
        ("order", "a.weight", "b.weight"),
        ("frozen", "a.weight float32[3, 3]", "a.weight float32[3, 3] (frozen)"),
        ("tied", "b.weight", "none"),
        ("dtype", "a.weight float32[3, 3]", "a.weight float64[3, 3]"),
        ("buffer", "count float32[1]", "count float32[2]"),
    ],
)
def test_another_model_is_refused_with_both_lists(change: str, saved: str, found: str) -> None:
    before = Changed("")
    snapshot = capture(TrainState(before, SGD(before.parameters(), lr=0.1)))
    after = Changed(change)
    state = TrainState(after, SGD(after.parameters(), lr=0.1))
    untouched = of(state)
    with pytest.raises(CheckpointError) as caught:
        restore(snapshot, state)
    then, now = caught.value.why.removeprefix("in the checkpoint: ").split("; in the recipe: ")
    assert saved in then
    assert found in now
    assert caught.value.data["saved"] != caught.value.data["found"]
    assert of(state) == untouched


def test_another_optimizer_or_grouping_is_refused() -> None:
    model = nn.Linear(2, 2)
    snapshot = capture(TrainState(model, SGD(model.parameters(), lr=0.1)))
    with pytest.raises(CheckpointError, match=r"(?s)optimizer changed.*SGD.*AdamW"):
        restore(snapshot, TrainState(model, AdamW(model.parameters())))
    grouped = SGD([{"params": [model.bias]}, {"params": [model.weight]}], lr=0.1)
    with pytest.raises(CheckpointError, match=r"(?s)group 0: weight.*group 1: weight"):
        restore(snapshot, TrainState(model, grouped))


def test_a_long_list_is_shortened_in_the_message_but_whole_in_the_data() -> None:
    def model(n: int) -> TrainState:
        layers = nn.Sequential(*(nn.Linear(1, 1) for _ in range(n)))
        return TrainState(layers, SGD(layers.parameters(), lr=0.1))

    with pytest.raises(CheckpointError, match="and 32 more") as caught:
        restore(capture(model(30)), model(10))
    assert (len(caught.value.data["saved"]), len(caught.value.data["found"])) == (60, 20)


@pytest.mark.gpu
@pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no CUDA device: digest and restore across devices not run"
)
@pytest.mark.parametrize("optimizer", ["momentum", "foreach", "fused"])
def test_the_device_is_not_part_of_the_state(optimizer: str) -> None:
    host = make(optimizer)
    train(host, 3)
    model = Net().cuda()
    card = TrainState(model, OPTIMIZERS[optimizer](model))
    restore(capture(host), card)
    assert of(card) == of(host)
    assert capture(card).digest() == of(host)
    for entries in card.optimizer.state.values():
        for key, value in entries.items():
            assert value.is_cuda == (key != "step" or optimizer == "fused")
