"""An embedding server for the demonstration: sentence-transformers behind HTTP on this machine. Knows nothing of Perdure.

    demo-embed.py MODEL_FOLDER PORT TEXT

``GET /health`` answers 200 when it serves; ``POST /embed`` with {"text": …} answers its vector; ``GET /index`` embeds the next line of TEXT,
keeps the vector in its index in memory, and answers how many there are.
"""

import http.server
import json
import sys

import torch
from sentence_transformers import SentenceTransformer

torch.set_num_threads(1)
folder, port, text = sys.argv[1:]
model = SentenceTransformer(folder, device="cpu", local_files_only=True)
with open(text, encoding="utf-8") as handle:
    lines = [line.strip() for line in handle if len(line.split()) > 3]
index = []


def embed(sentence):
    return model.encode(sentence, normalize_embeddings=True, show_progress_bar=False).tolist()


class Handler(http.server.BaseHTTPRequestHandler):
    timeout = 10

    def do_GET(self):
        if self.path == "/index":
            index.append(embed(lines[len(index) % len(lines)]))
        self.answer({"indexed": len(index)})

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.answer({"vector": embed(asked["text"])})

    def answer(self, document):
        body = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_words):
        """Say nothing of each request."""


print("serving", flush=True)
http.server.HTTPServer(("127.0.0.1", int(port)), Handler).serve_forever()
