"""A small PyTorch training for the demonstration: fits a sine of a random direction. Knows nothing of Perdure."""

import sys
import warnings

import torch

warnings.filterwarnings("ignore")
torch.manual_seed(0)
torch.set_num_threads(1)
steps = int(sys.argv[1])
model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.Tanh(), torch.nn.Linear(512, 512), torch.nn.Tanh(), torch.nn.Linear(512, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
truth = torch.randn(64, 1)
smooth = None
for step in range(1, steps + 1):
    x = torch.randn(256, 64)
    loss = torch.nn.functional.mse_loss(model(x), torch.sin(x @ truth / 4))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    smooth = loss.item() if smooth is None else 0.99 * smooth + 0.01 * loss.item()
    if step % 50 == 0:
        print(f"step {step:6d}  loss {smooth:.12f}  {'#' * int(60 * smooth / 0.6)}", flush=True)
print("weights", sum(p.double().sum().item() for p in model.parameters()).hex())
