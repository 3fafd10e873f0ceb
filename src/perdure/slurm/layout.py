"""What an installation makes on a node, path by path, in order: what `--dry-run` prints and the manifest lists. Called by `install`.

The libraries stand in a folder named after their content, ``PREFIX/versions/ID``, and one link leads to the one in force: an upgrade is
one rename, and jobs that run keep what they began with. What leads new jobs to us, the entrance, is made last and removed first.
"""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

import msgspec

from perdure import errors
from perdure.slurm import checks, daemons, folder, manifest, policy, site, unit
from perdure.slurm.checks import Node
from perdure.slurm.manifest import Entry, Manifest
from perdure.slurm.payload import Item, Payload
from perdure.slurm.site import Site

COMMAND = "/usr/local/bin/perdure"
SHIM_ONLY = "shim-only"
"""Instead of the name of what is installed, where that is the shim alone."""
_READ = 0o644
_RUN = 0o755
_PRIVATE = 0o700
_STATE = ("users", "seats", "workloads", "agent.lock")
"""What the agent and seats keep in the state folder, beside what root's own runs have there."""


class Step(msgspec.Struct, frozen=True):
    """An entry, and where its content comes from: given here, or an item of the payload."""

    entry: Entry
    content: bytes | None = None
    item: Item | None = None


class Plan(msgspec.Struct, frozen=True):
    """All that is made, and what is in the way of it."""

    id: str
    steps: tuple[Step, ...]
    conflicts: tuple[str, ...]
    """Paths where something else stands that may not be put aside."""

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Of the manifest."""
        return tuple(step.entry for step in self.steps)


def identity(payload: Payload, node: Node, prefix: str) -> str:
    """Return the name of what is installed: the same for the same files, Python and place."""
    said = msgspec.json.encode([payload.items, node.python, prefix])
    return hashlib.sha256(said).hexdigest()[:12]


def plan(wanted: Site, payload: Payload, node: Node, *, old: Manifest | None, bare: bool) -> Plan:
    """Return what to make on `node`; `old` is what an installation before has made, whose paths are ours.

    `bare`: the manifest's folder is there only because this installation needs it, or not at all.
    """
    name = SHIM_ONLY if wanted.shim_only else identity(payload, node, wanted.prefix)
    making = _Making(wanted, old, Path(manifest.folder_of_prefix(wanted.prefix, name)))
    making.first(bare)
    if wanted.shim_only:
        making.shim(node)
        return Plan(name, tuple(making.steps), tuple(making.conflicts))
    making.libraries(payload, node)
    making.state()
    making.store()
    making.configuration(node.slurm.commands)
    making.entrance(node)
    return Plan(name, tuple(making.steps), tuple(making.conflicts))


class _Making:
    """The plan as it grows."""

    def __init__(self, wanted: Site, old: Manifest | None, version: Path) -> None:
        self.site = wanted
        self.old = old
        self.version = version
        self.steps: list[Step] = []
        self.conflicts: list[str] = []
        self._folders: set[str] = set()

    def first(self, bare: bool) -> None:
        """Add the manifest's own folder."""
        if bare or self._kind(manifest.FOLDER):
            self._add(Entry(path=manifest.FOLDER, kind="grown", mode=_PRIVATE))
        self._folders.add(manifest.FOLDER)

    def libraries(self, payload: Payload, node: Node) -> None:
        """Add the version's folder: the payload, and what makes it an environment of the node's Python."""
        root = str(self.version)
        python = f"python{payload.python}"
        self.file(
            f"{root}/pyvenv.cfg",
            f"home = {os.path.dirname(node.python)}\ninclude-system-site-packages = false\nversion = {node.python_version}\n".encode(),
        )
        self.link(f"{root}/bin/{python}", node.python)
        self.link(f"{root}/bin/python3", python)
        # Isolated: neither variables nor a user's own libraries change what root runs.
        program = f"#!{root}/bin/{python} -I\nimport sys\nfrom perdure.__main__ import main\nsys.exit(main())\n"
        self.file(f"{root}/bin/perdure", program.encode(), mode=_RUN)
        compiled = set()
        for item in payload.items:
            path = f"{root}/{item.path}"
            if item.target:
                self.link(path, item.target)
                continue
            self._parents(path)
            self._add(
                Entry(
                    path=path,
                    kind="file",
                    mode=item.mode,
                    size_bytes=item.size_bytes,
                    sha256=item.sha256,
                    before=self._before(path, item.sha256),
                ),
                item=item,
            )
            if path.endswith(".py"):
                compiled.add(f"{os.path.dirname(path)}/__pycache__")
        for path in sorted(compiled):
            self._add(Entry(path=path, kind="cache", mode=_RUN))

    def state(self) -> None:
        """Add what comes and fills while jobs run."""
        whole = any(step.entry.path == manifest.FOLDER for step in self.steps)
        inside = [] if whole else [f"{manifest.FOLDER}/{name}" for name in _STATE]
        for path in (*inside, site.CACHE, site.RUN, site.CRIU_CACHE):
            if self._is_ours(path):
                self._add(Entry(path=path, kind="grown"))

    def store(self) -> None:
        """Add the store's folder and its mark, where neither is there yet."""
        store = self.site.store
        if not self.site.is_folder:
            return
        if self._is_ours(store):
            self._parents(store)
            self._add(Entry(path=store, kind="store", mode=_PRIVATE))
        self._folders.add(store)
        mark = f"{store}/{folder.MARK}"
        if self._is_ours(mark):
            text = hashlib.sha256(f"{os.uname().nodename}:{store}".encode()).hexdigest()[:32]
            self.file(mark, f"{text}\n".encode(), mode=0o600)

    def configuration(self, commands: str | None) -> None:
        """Add what people may change; `commands` is the folder of Slurm's commands."""
        self.config(site.CONFIG, self.site.config(commands))
        self.config(policy.POLICY_FILE, site.POLICY)

    def entrance(self, node: Node) -> None:
        """Add what leads jobs and people to us."""
        self.file(policy.SHIM_FILE, policy.render(policy.load(trusted=True)), entrance=True, derived=True)
        if node.systemd:
            self.file(unit.PATH, unit.text(self.site.prefix), entrance=True)
            self.link(unit.WANTED, unit.PATH, entrance=True)
        command = f"{self.site.prefix}/bin/perdure"
        self.link(command, f"../{self.version.relative_to(self.site.prefix)}/bin/perdure", entrance=True)
        if self._is_ours(COMMAND):
            self.link(COMMAND, command, entrance=True)
        self.shim(node)

    def shim(self, node: Node) -> None:
        """Add what Slurm loads in each task, and the line by which it finds that."""
        if node.shim is None or node.slurm.plugstack is None:
            return
        self.file(f"{self.site.prefix}/lib/slurm/perdure-task", node.shim.program, mode=_RUN, entrance=True)
        self.file(f"{self.site.prefix}/lib/slurm/perdure_spank.so", node.shim.plugin, mode=_RUN, entrance=True)
        line = checks.line(self.site.prefix)
        drop_ins = [f"{node.slurm.include}/{name}" for name in (daemons.DROP_IN, daemons.FORMER_DROP_IN)]
        ours = (*drop_ins, node.slurm.plugstack, os.path.realpath(node.slurm.plugstack))
        if daemons.lists(node.slurm.plugstack, line) and not any(map(self._kind, ours)):
            return  # the controller's file, or one that nodes share: whoever put the line there takes it out
        if node.slurm.include is not None:
            self.file(drop_ins[0], line.encode(), entrance=True)
        elif not os.path.lexists(node.slurm.plugstack) or self._kind(node.slurm.plugstack) == "file":
            self.file(node.slurm.plugstack, line.encode(), entrance=True)
        else:
            self.line(os.path.realpath(node.slurm.plugstack), line)

    def folder(self, path: str, mode: int = _RUN) -> None:
        """Add the folder `path`, unless somebody else has made it."""
        if path not in self._folders and self._is_ours(path):
            self._add(Entry(path=path, kind="folder", mode=mode))
        self._folders.add(path)

    def file(self, path: str, content: bytes, *, mode: int = _READ, entrance: bool = False, derived: bool = False) -> None:
        """Add the file `path` and the folders that lead to it."""
        self._parents(path)
        digest = hashlib.sha256(content).hexdigest()
        entry = Entry(
            path=path,
            kind="file",
            mode=mode,
            size_bytes=len(content),
            sha256=digest,
            before=self._before(path, digest),
            entrance=entrance,
            derived=derived,
        )
        self._add(entry, content=content)

    def config(self, path: str, content: bytes) -> None:
        """Add a file that the admin may change; one that is there and says enough stays as it is, and is not ours."""
        self._parents(path)
        listed = self.old.find(path) if self.old is not None else None
        if listed is None and os.path.lexists(path) and _says_enough(path, self.site):
            return
        digest = hashlib.sha256(content).hexdigest()
        entry = Entry(
            path=path, kind="file", mode=_READ, size_bytes=len(content), sha256=digest, before=self._before(path, digest), config=True
        )
        self._add(entry, content=content)

    def link(self, path: str, target: str, *, entrance: bool = False) -> None:
        """Add the link `path` that leads to `target`."""
        self._parents(path)
        if not self._is_ours(path):
            self.conflicts.append(path)
        self._add(Entry(path=path, kind="link", target=target, entrance=entrance))

    def line(self, path: str, text: str) -> None:
        """Add `text` at the end of another's file."""
        content = Path(path).read_bytes()
        listed = self.old.find(path) if self.old is not None else None
        if listed is not None and listed.kind == "line":
            self._add(listed)
            return
        added = ("" if not content or content.endswith(b"\n") else "\n") + text
        entry = Entry(
            path=path,
            kind="line",
            text=added,
            sha256=hashlib.sha256(added.encode()).hexdigest(),
            before=hashlib.sha256(content).hexdigest(),
            entrance=True,
        )
        self._add(entry)

    def _add(self, entry: Entry, *, content: bytes | None = None, item: Item | None = None) -> None:
        self.steps.append(Step(entry, content, item))

    def _parents(self, path: str) -> None:
        missing = [str(above) for above in Path(path).parents if str(above) not in self._folders]
        for above in reversed(missing):
            self.folder(above)

    def _kind(self, path: str) -> str:
        listed = self.old.find(path) if self.old is not None else None
        return listed.kind if listed is not None else ""

    def _is_ours(self, path: str) -> bool:
        """Tell whether `path` is free, or made by an installation before."""
        return not os.path.lexists(path) or self._kind(path) != ""

    def _before(self, path: str, digest: str) -> str:
        """Return what was at `path` before any installation: nothing, or a file, which has to be put aside."""
        listed = self.old.find(path) if self.old is not None else None
        if listed is not None:
            return listed.before
        try:
            found = os.lstat(path)
        except FileNotFoundError:
            return ""
        if not stat.S_ISREG(found.st_mode) or not self.site.replace:
            self.conflicts.append(path)
            return digest
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def _says_enough(path: str, wanted: Site) -> bool:
    """Tell whether the configuration file at `path` is one that an installation can go by."""
    try:
        if path == policy.POLICY_FILE:
            policy.load(path, trusted=True)
            return True
        document = msgspec.toml.decode(Path(path).read_bytes(), type=dict[str, str | int | float | bool])
    except (errors.PerdureError, msgspec.DecodeError, OSError):
        return False
    return document.get("store") == wanted.store and "lease-ttl" in document
