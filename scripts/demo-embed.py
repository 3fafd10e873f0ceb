"""An embedding server for the demonstration: all-MiniLM-L6-v2 in PyTorch, behind HTTP on this machine. Knows nothing of Perdure.

    demo-embed.py MODEL_FOLDER PORT TEXT

``GET /health`` answers 200 when it serves; ``POST /embed`` with {"text": …} answers its vector; ``GET /index`` embeds the next lines of
TEXT, keeps the vectors in its index in memory, and answers how often it did.

The model (Wang et al. 2020; Reimers and Gurevych 2019) is a BERT of six layers, the mean of its last states, normalised. It is written out
here because the usual libraries take three times as long to import; its vectors agree with theirs to 1e-6.
"""

import http.server
import json
import pathlib
import struct
import sys
import unicodedata

import torch
from torch.nn import functional

HEADS, LONGEST, AT_ONCE = 12, 256, 4


def read_weights(path):
    """The tensors of a safetensors file: a length, a header of JSON, then the bytes."""
    content = bytearray(path.read_bytes())
    (length,) = struct.unpack_from("<Q", content)
    header = json.loads(content[8 : 8 + length])
    header.pop("__metadata__", None)
    found = {}
    for name, one in header.items():
        kind = {"F32": torch.float32, "I64": torch.int64}[one["dtype"]]
        begin, end = (8 + length + offset for offset in one["data_offsets"])
        count = (end - begin) // kind.itemsize
        found[name] = torch.frombuffer(content, dtype=kind, count=count, offset=begin).reshape(one["shape"])
    return found


class Tokens:
    """BERT's pieces of words, without case and accents."""

    def __init__(self, path):
        self.vocabulary = json.loads(path.read_text("utf-8"))["model"]["vocab"]

    def of(self, sentence):
        pieces = [piece for word in self.words(sentence) for piece in self.pieces(word)]
        return [self.vocabulary[name] for name in ("[CLS]", *pieces[: LONGEST - 2], "[SEP]")]

    @staticmethod
    def words(sentence):
        text = ""
        for letter in unicodedata.normalize("NFD", sentence.lower()):
            kind = unicodedata.category(letter)
            if kind == "Mn" or (kind.startswith("C") and letter not in "\t\n\r"):
                continue
            alone = kind.startswith("P") or (letter.isascii() and not letter.isalnum()) or 0x3400 <= ord(letter) <= 0x9FFF
            text += f" {letter} " if alone else letter
        return text.split()

    def pieces(self, word):
        found, begin = [], 0
        while begin < len(word):
            ends = range(len(word), begin, -1)
            known = ((end, ("##" if begin else "") + word[begin:end]) for end in ends)
            end, piece = next((one for one in known if one[1] in self.vocabulary), (0, ""))
            if not end or len(word) > 100:
                return ["[UNK]"]
            found.append(piece)
            begin = end
        return found


class Model:
    def __init__(self, folder):
        self.weights = read_weights(folder / "model.safetensors")
        self.tokens = Tokens(folder / "tokenizer.json")

    def linear(self, name, states):
        return functional.linear(states, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])

    def norm(self, name, states):
        return functional.layer_norm(states, states.shape[-1:], self.weights[f"{name}.weight"], self.weights[f"{name}.bias"], 1e-12)

    def attend(self, name, states):
        parts = (self.linear(f"{name}.self.{part}", states) for part in ("query", "key", "value"))
        heads = (part.reshape(len(states), HEADS, -1).transpose(0, 1) for part in parts)
        mixed = functional.scaled_dot_product_attention(*heads).transpose(0, 1).reshape(len(states), -1)
        return self.norm(f"{name}.output.LayerNorm", self.linear(f"{name}.output.dense", mixed) + states)

    @torch.no_grad()
    def embed(self, sentence):
        pieces = torch.tensor(self.tokens.of(sentence))
        words, places, kinds = (self.weights[f"embeddings.{name}_embeddings.weight"] for name in ("word", "position", "token_type"))
        states = self.norm("embeddings.LayerNorm", words[pieces] + places[: len(pieces)] + kinds[0])
        for number in range(6):
            layer = f"encoder.layer.{number}"
            states = self.attend(f"{layer}.attention", states)
            wider = functional.gelu(self.linear(f"{layer}.intermediate.dense", states))
            states = self.norm(f"{layer}.output.LayerNorm", self.linear(f"{layer}.output.dense", wider) + states)
        return functional.normalize(states.mean(0), dim=0).tolist()


class Handler(http.server.BaseHTTPRequestHandler):
    timeout = 10

    def do_GET(self):
        if self.path == "/index":
            begin = len(index) * AT_ONCE
            index.append([model.embed(lines[(begin + offset) % len(lines)]) for offset in range(AT_ONCE)])
        self.answer({"indexed": len(index)})

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.answer({"vector": model.embed(asked["text"])})

    def answer(self, document):
        body = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_words):
        """Say nothing of each request."""


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder, port, text = sys.argv[1:]
    model = Model(pathlib.Path(folder))
    lines = [line.strip() for line in pathlib.Path(text).read_text("utf-8").splitlines() if len(line.split()) > 3]
    index = []
    print("serving", flush=True)
    http.server.HTTPServer(("127.0.0.1", int(port)), Handler).serve_forever()
