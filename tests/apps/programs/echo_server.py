"""An asyncio server and its client in one process, over loopback: the connection lives through the checkpoint."""

import asyncio
import os
import sys


async def answer(reader, writer):
    total = 0
    while line := await reader.readline():
        total += int(line)
        writer.write(b"%d\n" % total)
        await writer.drain()
    writer.close()


async def main(steps):
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for step in range(steps):
        writer.write(b"%d\n" % step)
        print("step", step, (await reader.readline()).decode().strip(), flush=True)
        await asyncio.sleep(0.01 if step < 60 or os.path.exists("hurry") else 0.5)
    writer.close()
    await writer.wait_closed()
    server.close()
    print("end")


asyncio.run(main(int(sys.argv[1])))
