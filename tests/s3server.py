"""A real object store for tests: Ceph's S3 gateway over one monitor and one OSD that keeps its data in memory, on loopback only.

Debian's packages ``radosgw ceph-mon ceph-osd ceph-common``: 60 MB to fetch, 270 MB installed. It is up in some seconds. Its conditional
put is decided where the object lies, so of many writers at once exactly one succeeds; `perdure.store.backends.s3` depends on that.
Every daemon is ended by its process id.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from datetime import timedelta
from pathlib import Path

import ports

PROGRAMS = ("ceph", "ceph-mon", "ceph-osd", "ceph-authtool", "radosgw", "radosgw-admin")
_LIMIT_S = 180.0
_CLASSES = "*/rados-classes"
"""Where Debian puts the operations that the gateway has the OSD do, below /usr/lib."""
_CONFIGURATION = """
[global]
fsid = {fsid}
mon host = v2:127.0.0.1:{mon_port}
mon initial members = a
keyring = {folder}/keyring
public network = 127.0.0.0/8
ms bind ipv6 = false
mon data = {folder}/mon
mon data avail crit = 0
mon allow pool size one = true
auth allow insecure global id reclaim = false
# One server of little data: nothing is gained by gathering changes before agreeing on them.
paxos propose interval = 0.02
paxos min wait = 0.01
osd data = {folder}/osd
osd objectstore = memstore
memstore device bytes = 1G
osd memory target = 1G
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 1
osd pool default pgp num = 1
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
# Debian 13's own answer is relative to the working directory.
osd class dir = {classes}
run dir = {folder}
admin socket =
log file = {folder}/$name.log
[client.rgw]
rgw frontends = beast endpoint=127.0.0.1:{port} tcp_nodelay=1
rgw data = {folder}/rgw
rgw thread pool size = 32
"""


def missing() -> str | None:
    """Return what is not here, in words; None: the server can be started."""
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    if absent:
        return f"no {', '.join(absent)} on this machine"
    return None if os.geteuid() == 0 else "Ceph's daemons are started as root here"


class S3Server:
    """One object store. `stop_gateway` and `start_gateway` keep its data; `remove` ends it."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="s3-"))
        # Kept while the gateway is away too: who tries to reach it meanwhile must not be given its port, nor meet somebody else there.
        self._kept = [ports.reserve(), ports.reserve()]
        self.port, mon_port = map(ports.number, self._kept)
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self.access_key, self.secret_key = secrets.token_hex(8), secrets.token_hex(16)
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        for name in ("mon", "osd", "rgw"):
            (self.folder / name).mkdir()
        self._configuration = self.folder / "ceph.conf"
        classes = next(Path("/usr/lib").glob(_CLASSES))
        text = _CONFIGURATION.format(fsid=uuid.uuid4(), folder=self.folder, port=self.port, mon_port=mon_port, classes=classes)
        self._configuration.write_text(text)
        self._mon_address = f"v2:127.0.0.1:{mon_port}"

    def start(self) -> None:
        """Start the daemons, make a user, and wait until the gateway answers."""
        keyring = self.folder / "keyring"
        for name, *capabilities in (("mon.", "mon"), ("client.rgw", "mon", "osd"), ("osd.0", "mon", "osd")):
            grants = [word for kind in capabilities for word in ("--cap", kind, "allow *")]
            self._call("ceph-authtool", keyring, *(() if keyring.exists() else ("--create-keyring",)), "--gen-key", "-n", name, *grants)
        monitor = ("ceph-mon", "-i", "a", "--public-addr", self._mon_address)
        self._call(*monitor, "--mkfs", "--keyring", keyring)
        self._start("mon", *monitor)
        identity = str(uuid.uuid4())
        self._call("ceph", "-n", "client.rgw", "--connect-timeout", f"{_LIMIT_S:g}", "osd", "new", identity, "0")
        self._call("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", identity)
        self._start("osd", "ceph-osd", "-i", "0")
        self.start_gateway()
        self.admin(
            "user", "create", "--uid=perdure", "--display-name=perdure", f"--access-key={self.access_key}", f"--secret={self.secret_key}"
        )

    def start_gateway(self) -> None:
        """Start the gateway and wait until it answers."""
        gateway = self._start("rgw", "radosgw", "-n", "client.rgw")
        until_s = time.monotonic() + _LIMIT_S
        while True:
            try:
                urllib.request.urlopen(self.endpoint, timeout=5).close()
            except OSError as error:
                if gateway.poll() is not None or time.monotonic() > until_s:
                    logs = "\n".join(path.read_text(errors="replace")[-2000:] for path in self.folder.glob("*.log"))
                    raise RuntimeError(f"the gateway did not start: {logs}") from error
                time.sleep(0.05)
            else:
                return

    def stop_gateway(self) -> None:
        """End the gateway; what was stored stays."""
        self._end("rgw")

    def bucket(self) -> str:
        """Make a new bucket and return its name."""
        import obstore
        from obstore.store import S3Store

        name = f"b-{secrets.token_hex(6)}"
        configuration = {"endpoint": self.endpoint, "access_key_id": self.access_key, "secret_access_key": self.secret_key}
        store = S3Store(name, config=configuration, client_options={"allow_http": True})
        address = obstore.sign(store, "PUT", "", timedelta(minutes=5))
        urllib.request.urlopen(urllib.request.Request(address, method="PUT"), timeout=_LIMIT_S).close()
        return name

    def url(self, bucket: str, prefix: str = "store") -> str:
        """Return the address of a store in `bucket`."""
        return f"s3://{bucket}/{prefix}?endpoint={self.endpoint}"

    def environment(self) -> dict[str, str]:
        """Return the variables that hold the credentials."""
        return {"AWS_ACCESS_KEY_ID": self.access_key, "AWS_SECRET_ACCESS_KEY": self.secret_key}

    def admin(self, *arguments: str) -> object:
        """Call Ceph's administration of the gateway and return what it answers."""
        answer = self._call("radosgw-admin", "-n", "client.rgw", *arguments)
        return json.loads(answer) if answer.strip() else None

    def remove(self) -> None:
        """End all daemons and delete their folder."""
        for name in ("rgw", "osd", "mon"):
            self._end(name)
        for kept in self._kept:
            kept.close()
        shutil.rmtree(self.folder)

    def _start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        with open(self.folder / f"{name}.log", "ab") as log:
            daemon = subprocess.Popen([*command, "-f", "-c", self._configuration], stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        self._daemons[name] = daemon
        return daemon

    def _end(self, name: str) -> None:
        daemon = self._daemons.pop(name, None)
        if daemon is not None:
            with contextlib.suppress(ProcessLookupError):
                daemon.kill()  # nothing is worth saving, and they take seconds to say goodbye
            daemon.wait(_LIMIT_S)

    def _call(self, program: str, *arguments: str | Path) -> str:
        done = subprocess.run(
            [program, "-c", self._configuration, *arguments] if program != "ceph-authtool" else [program, *arguments],
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{program} failed:\n{done.stdout}{done.stderr}")
        return done.stdout
