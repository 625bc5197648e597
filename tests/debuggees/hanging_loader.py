"""A DataLoader whose worker never comes back."""

import time

import torch
from torch.utils.data import DataLoader, Dataset


class Slow(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        if index:
            time.sleep(600)
        return index


def train():
    for batch in DataLoader(Slow(), num_workers=1):  # @loader
        print("hangs", int(batch), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    train()
