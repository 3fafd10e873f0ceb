"""A PyTorch training with deterministic kernels: `gpu_train.py DEVICE STEPS`. Prints its loss to the last bit."""

import os
import sys

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what deterministic matrix products ask for

import torch

device, steps = sys.argv[1], int(sys.argv[2])
torch.use_deterministic_algorithms(True)
torch.backends.cudnn.benchmark = False
torch.manual_seed(0)
layer = torch.nn.TransformerEncoderLayer(256, 8, 1024, dropout=0.1, batch_first=True)
model = torch.nn.Sequential(torch.nn.Linear(32, 256), layer, torch.nn.Linear(256, 32)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(1, steps + 1):
    x = torch.randn(32, 64, 32, device=device)
    loss = torch.nn.functional.mse_loss(model(x), torch.sin(x.cumsum(1)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item().hex(), flush=True)
print("weights", sum(p.double().sum().item() for p in model.parameters()).hex(), flush=True)
