"""Holds GPU memory and says what is in it when a file asks: `gpu_work.py FOLDER UUID BYTES`. Knows nothing of checkpoints.

``FOLDER/ask`` with ``NUMBER digest`` or ``NUMBER step N`` is answered by ``FOLDER/answer`` with ``NUMBER VALUE``; ``FOLDER/ready`` says
that it works. Files instead of pipes, so that whoever asks need not be the one who started it.
"""

import os
import sys
import time
from pathlib import Path

from perdure.checkpoint.host.gpu_buffers import Buffers

folder, uuid, size_bytes = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])


def write(name: str, text: str) -> None:
    aside = folder / f".{name}"
    aside.write_text(text)
    os.replace(aside, folder / name)


buffers = Buffers(uuid, size_bytes)
write("ready", "ready")
answered = ""
while True:
    try:
        asked = (folder / "ask").read_text()
    except FileNotFoundError:
        asked = ""
    if asked and asked != answered:
        number, what, *rest = asked.split()
        if what == "step":
            buffers.step(int(rest[0]))
        write("answer", f"{number} {buffers.digest() if what == 'digest' else 'stepped'}")
        answered = asked
    time.sleep(0.01)
