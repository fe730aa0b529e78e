"""The handwritten digits that scikit-learn carries, as map-style torch data sets.

In: nothing (no download). Out: `train` and `test`, 1437 and 360 items of `image` [1, 8, 8] float32 in 0..1
and `label`. god_ray goes through them once and keeps the rows beside the runs.
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch.utils.data import Dataset

TEST_EVERY = 5


class Digits(Dataset):
    def __init__(self, test: bool) -> None:
        source = load_digits()
        chosen = (torch.arange(len(source.images)) % TEST_EVERY == 0) == test
        self.images = torch.tensor(source.images, dtype=torch.float32)[chosen, None] / 16
        self.labels = source.target[chosen.numpy()]

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> dict:
        return {"image": self.images[index], "label": int(self.labels[index])}


def train() -> Digits:
    return Digits(test=False)


def test() -> Digits:
    return Digits(test=True)
