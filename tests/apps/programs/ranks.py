"""Data-parallel training by as many processes as it is started with: rank 0 prints each step's loss. Arguments: steps.

Goes on slowly until it may hurry.
"""

import os
import sys
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(20, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(int(sys.argv[1])):
    loss = model(torch.randn(8, 20)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if dist.get_rank() == 0:
        print(step, loss.item(), flush=True)
    time.sleep(0.01 if step < 60 or os.path.exists("hurry") else 0.5)
dist.destroy_process_group()
