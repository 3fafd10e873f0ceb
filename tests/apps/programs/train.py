"""PyTorch on the CPU: a small network fed by DataLoader workers; every loss is printed exactly. Goes on slowly until it may hurry."""

import os
import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset


class Points(Dataset):
    def __len__(self):
        return 256

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        x = torch.randn(32, generator=generator)
        return x, (x.sum() > 0).float()


def main():
    steps, workers = int(sys.argv[1]), int(sys.argv[2])
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(32, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = DataLoader(Points(), batch_size=32, num_workers=workers, persistent_workers=workers > 0)
    step = 0
    while step < steps:
        for x, y in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.binary_cross_entropy_with_logits(model(x)[:, 0], y)
            loss.backward()
            optimizer.step()
            print("step", step, loss.item().hex(), flush=True)
            step += 1
            if step > 20 and not os.path.exists("hurry"):
                time.sleep(3)
    print("end", sum(float(p.detach().double().sum()) for p in model.parameters()).hex())


if __name__ == "__main__":
    main()
