"""A small language model that serves: `gpu_serve.py FOLDER DEVICE`. Listens on a Unix socket, keeps its keys and values on the GPU.

Each request is a line of token numbers, the answer is the 64 tokens that the model goes on with. Its weights are drawn from a seed: what
counts is that the same request has the same answer before and after.
"""

import os
import socket
import sys

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch

folder, device = sys.argv[1], sys.argv[2]
WIDTH, HEADS, LAYERS, TOKENS, NEW = 512, 8, 8, 4096, 64
torch.use_deterministic_algorithms(True)
torch.manual_seed(0)
torch.set_grad_enabled(False)


class Block(torch.nn.Module):
    """Attention over what was seen so far, and a mixing of channels."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)
        self.mix, self.out = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x, seen):
        query, key, value = self.mix(self.first(x)).view(-1, 3, HEADS, WIDTH // HEADS).unbind(1)
        seen.append((key, value))
        keys, values = (torch.cat(parts) for parts in zip(*seen, strict=True))
        weights = torch.softmax(torch.einsum("qhc,khc->hqk", query, keys) / (WIDTH // HEADS) ** 0.5, -1)
        x = x + self.out(torch.einsum("hqk,khc->qhc", weights, values).reshape(-1, WIDTH))
        return x + self.narrow(torch.nn.functional.gelu(self.wide(self.second(x))))


embedding = torch.nn.Embedding(TOKENS, WIDTH).to(device)
blocks = torch.nn.ModuleList(Block() for _ in range(LAYERS)).to(device)


def go_on(tokens: list[int]) -> list[int]:
    """Return the tokens that follow, the likeliest each time."""
    seen = [[] for _ in blocks]
    answer = []
    for token in (*tokens, *[None] * NEW):
        x = embedding(torch.tensor([answer[-1] if token is None else token % TOKENS], device=device))
        for block, cache in zip(blocks, seen, strict=True):
            x = block(x, cache)
        likeliest = int((x @ embedding.weight.T).argmax())
        if token is None or len(answer) == 0:
            answer = [*answer, likeliest] if token is None else [likeliest]
    return answer[:NEW]


path = os.path.join(folder, "server")
listening = socket.socket(socket.AF_UNIX)
listening.bind(path)
listening.listen()
go_on([1])
print("ready", flush=True)
while True:
    connection, _ = listening.accept()
    with connection, connection.makefile("rw") as stream:
        for line in stream:
            stream.write(" ".join(map(str, go_on([int(word) for word in line.split()] or [0]))) + "\n")
            stream.flush()
