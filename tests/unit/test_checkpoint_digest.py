"""The digest sees every bit and every scalar of the state, and nothing else."""

from __future__ import annotations

import copy

import pytest
import torch
from checkpoint_cases import make, train
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import SGD, AdamW

from god_ray.checkpoint.state import TrainState, capture, digest


def trained() -> TrainState:
    state = make("adam")
    train(state, 2)
    return state


STATE = trained()
TENSORS = {
    **dict(STATE.model.named_parameters()),
    **dict(STATE.model.named_buffers()),
    **{
        f"{name}::{key}": value
        for name, p in STATE.model.named_parameters()
        for key, value in STATE.optimizer.state.get(p, {}).items()
    },
}
DIGEST = digest(STATE.model, STATE.optimizer)


def raw(tensor: Tensor) -> Tensor:
    return tensor.detach().reshape(-1).view(torch.uint8)


@settings(max_examples=200)
@given(st.data())
def test_one_flipped_bit_anywhere_changes_it_and_flipping_it_back_restores_it(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from([name for name, tensor in TENSORS.items() if tensor.numel()]))
    bits = raw(TENSORS[name])
    index, bit = data.draw(st.integers(0, bits.numel() - 1)), data.draw(st.integers(0, 7))
    bits[index] ^= 1 << bit
    changed = digest(STATE.model, STATE.optimizer)
    bits[index] ^= 1 << bit
    assert changed != DIGEST
    assert digest(STATE.model, STATE.optimizer) == DIGEST


@pytest.mark.parametrize(
    ("key", "value"), [("lr", 0.011), ("betas", (0.9, 0.9991)), ("amsgrad", False), ("eps", 0)]
)
def test_every_option_counts(key: str, value: object) -> None:
    state = copy.deepcopy(STATE)
    state.optimizer.param_groups[0][key] = value
    assert digest(state.model, state.optimizer) != DIGEST


def test_scalar_state_counts() -> None:
    model = nn.Linear(2, 2)
    opt = SGD(model.parameters(), lr=0.1)
    seen = set()
    for count in (1, 2, 2.0, True, None):
        opt.state[model.weight] = {"count": count}
        seen.add(digest(model, opt))
    assert len(seen) == 5


def test_zero_and_minus_zero_differ_and_nan_payloads_too() -> None:
    model = nn.Linear(1, 1)
    opt = SGD(model.parameters(), lr=0.1)
    seen = set()
    for bits in (0, -(2**31), 0x7FC00000, 0x7FC00001):
        with torch.no_grad():
            model.weight.view(torch.int32).fill_(bits)
        seen.add(digest(model, opt))
    assert len(seen) == 4


def test_dtype_shape_and_name_count() -> None:
    def of(name: str, tensor: Tensor) -> str:
        model = nn.Module()
        model.register_parameter(name, nn.Parameter(tensor))
        return digest(model, SGD(model.parameters(), lr=0.1))

    zeros = torch.zeros(4)
    variants = [
        of("a", zeros),
        of("b", zeros),
        of("a", zeros.reshape(2, 2)),
        of("a", torch.zeros(2).double()),
    ]
    variants += [of("a", torch.zeros(4, 0)), of("a", torch.zeros(0, 4))]
    assert len(set(variants)) == len(variants)


def test_order_of_definition_does_not_count() -> None:
    def of(*names: str) -> str:
        model = nn.Module()
        for name in names:
            torch.manual_seed(ord(name))
            model.add_module(name, nn.Linear(3, 3))
        opt = AdamW(model.parameters(), lr=0.1)
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        opt.step()
        return digest(model, opt)

    assert of("a", "b", "c") == of("c", "a", "b")


def test_memory_layout_does_not_count() -> None:
    torch.manual_seed(0)
    model = nn.Conv2d(3, 4, 3)
    opt = SGD(model.parameters(), lr=0.1, momentum=0.9)
    plain = digest(model, opt)
    model.to(memory_format=torch.channels_last)
    assert not model.weight.is_contiguous()
    assert digest(model, opt) == plain
    model.bias.data = torch.cat([torch.zeros(1), model.bias.data])[1:]
    assert digest(model, opt) == plain == capture(TrainState(model, opt)).digest()


def test_implementation_flags_and_gradients_do_not_count() -> None:
    state = copy.deepcopy(STATE)
    state.optimizer.param_groups[0]["foreach"] = True
    state.optimizer.zero_grad()
    state.optimizer.state[state.model.get_parameter("unused")] = {}
    assert digest(state.model, state.optimizer) == DIGEST
