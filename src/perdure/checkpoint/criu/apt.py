"""apt, kept private: indexes and packages of another suite through the system's mirror, proxies and keys, none of its state touched.

Called by `prefix`. Nothing here needs root. Which mirror to ask is read from the system's own sources, so that a site's mirror,
proxy and credentials are used as for everything else; what arrives is verified by apt against Debian's archive keyring.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import msgspec

from perdure import errors
from perdure.base import text

KEYRINGS = ("/usr/share/keyrings/debian-archive-keyring.gpg", "/usr/share/keyrings/debian-archive-keyring.pgp")
"""Debian's archive keys, as the package debian-archive-keyring installs them."""

_ROLLING = ("stable", "oldstable", "testing", "unstable", "sid")
_UPDATE_S = 300.0
_DOWNLOAD_S = 600.0


class Source(msgspec.Struct, frozen=True):
    """One enabled line or paragraph of apt's sources that binary packages come from."""

    uris: tuple[str, ...]
    suites: tuple[str, ...]
    components: tuple[str, ...]


class Package(msgspec.Struct, frozen=True):
    """One version of a package."""

    name: str
    version: str


def parse_lines(content: str) -> list[Source]:
    """Read one-line sources (``deb [options] URI SUITE COMPONENT…``). What is no such line is passed over."""
    found = []
    for line in content.splitlines():
        match = re.fullmatch(r"\s*deb\s+(?:\[[^\]]*\]\s+)?(\S+)\s+(\S+)\s*([^#]*)(?:#.*)?", line)
        if match:
            found.append(Source((match[1],), (match[2],), tuple(match[3].split())))
    return found


def parse_paragraphs(content: str) -> list[Source]:
    """Read deb822 sources. Paragraphs that are disabled or give no binary packages are passed over."""
    found = []
    for paragraph in re.split(r"\n[ \t]*\n", content):
        fields = _fields(paragraph)
        if "deb" in fields.get("types", "").split() and fields.get("enabled", "yes").lower() not in ("no", "false", "0", "off"):
            found.append(
                Source(*(tuple(fields.get(name, "").split()) for name in ("uris", "suites", "components"))),
            )
    return found


def _fields(paragraph: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    name = ""
    for line in paragraph.splitlines():
        if line.startswith("#"):
            continue
        if line[:1] in (" ", "\t"):
            fields[name] = f"{fields.get(name, '')} {line.strip()}"
        elif ":" in line:
            name, _, value = line.partition(":")
            name = name.strip().lower()
            fields[name] = value.strip()
    return fields


def choose_mirrors(sources: list[Source], codename: str) -> list[str]:
    """Return the URIs that this system takes its own suite from, the likeliest first.

    A source of somebody else's packages rarely uses the name of the suite itself; where one does, it has no Debian suite to
    offer, and the keyring would refuse what it sends.
    """
    ranked: dict[str, int] = {}
    for source in sources:
        if source.components and "main" not in source.components:
            continue
        for rank, names in enumerate(((codename,), _ROLLING)):
            if any(name in source.suites for name in names):
                for uri in source.uris:
                    if uri.partition(":")[0] not in ("cdrom", "file", "copy") or uri.startswith("file:/"):
                        ranked[uri] = min(rank, ranked.get(uri, rank))
    return sorted(ranked, key=lambda uri: ranked[uri])


def system_mirrors() -> list[str]:
    """Return the system's mirrors, the likeliest first; empty where there are none. Raises `errors.EnvironmentUnfit` without apt."""
    require_apt()
    folders = _apt_config("Dir::Etc::sourcelist/f", "Dir::Etc::sourceparts/d")
    parts = Path(folders[1])
    files = [Path(folders[0]), *(sorted(parts.iterdir()) if parts.is_dir() else [])]
    sources: list[Source] = []
    for path in files:
        if not path.is_file():
            continue
        content = path.read_text("utf-8", "replace")
        if path.suffix == ".sources":
            sources += parse_paragraphs(content)
        elif path.suffix == ".list":
            sources += parse_lines(content)
    return choose_mirrors(sources, _codename())


def require_apt() -> None:
    """Raise `errors.EnvironmentUnfit` unless apt and dpkg are here."""
    lacking = [name for name in ("apt-get", "apt-config", "dpkg", "dpkg-deb") if shutil.which(name) is None]
    if lacking:
        raise errors.EnvironmentUnfit(
            f"this system has no {', '.join(lacking)}: CRIU can be brought by itself on Debian and its relatives only",
            hint="install CRIU 4.2.1 or newer by this system's means and name it: PERDURE_CRIU=/path/to/criu",
        )


def keyring() -> str:
    """Return the path of Debian's archive keys. Raises `errors.EnvironmentUnfit` when they are not installed."""
    for path in KEYRINGS:
        if Path(path).is_file():
            return path
    raise errors.EnvironmentUnfit(
        "Debian's archive keys are not installed, so that its packages cannot be verified",
        hint="apt-get install debian-archive-keyring",
    )


class Archive:
    """One suite of one mirror, with lists and downloads in a folder of its own.

    `folder` must be reachable by the user `_apt` when this is root, so that apt can download without root's rights.
    """

    def __init__(self, folder: Path, *, mirror: str, suite: str, environ: Mapping[str, str]) -> None:
        self.folder = folder
        self.mirror = mirror
        self.suite = suite
        # Proxies may come from the environment as well as from apt's own configuration.
        kept = ("PATH", "HOME", "TMPDIR", "SSL_CERT_FILE", "APT_CONFIG")
        self._environment = {key: value for key, value in environ.items() if key in kept or key.lower().endswith("_proxy")}
        self._environment |= {"LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
        self._environment.setdefault("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")

    def update(self) -> None:
        """Fetch and verify the suite's index. Raises `errors.EnvironmentUnfit`."""
        self._write_configuration()
        done = self._run("apt-get", "update", timeout_s=_UPDATE_S)
        if done.returncode != 0:
            raise self._refusal(done.stdout, f"cannot read the package index of Debian's {self.suite}")

    def closure(self, names: tuple[str, ...]) -> list[Package]:
        """Return what `names` depend on, themselves included, nothing optional. Raises `errors.EnvironmentUnfit`."""
        done = self._run("apt-get", "install", "--simulate", "--yes", "--no-install-recommends", *names, timeout_s=_UPDATE_S)
        if done.returncode != 0:
            raise self._refusal(done.stdout, f"Debian's {self.suite} cannot give {' and '.join(names)}")
        return [Package(*match) for match in re.findall(r"^Inst (\S+) \((\S+) ", done.stdout, re.MULTILINE)]

    def candidate(self, name: str) -> Package | None:
        """Return the version of `name` that the suite has, or None."""
        done = self._run("apt-cache", "policy", name, timeout_s=_UPDATE_S)
        match = re.search(r"^\s*Candidate: (\S+)", done.stdout, re.MULTILINE)
        return Package(name, match[1]) if match and match[1] != "(none)" else None

    def download(self, packages: list[Package]) -> list[Path]:
        """Download and verify `packages`. Raises `errors.EnvironmentUnfit`."""
        target = self.folder / "packages"
        target.mkdir(exist_ok=True)
        # apt gives the single files to _apt by itself, and needs a folder that _apt may enter.
        wanted = [f"{package.name}={package.version}" for package in packages]
        done = self._run("apt-get", "download", *wanted, timeout_s=_DOWNLOAD_S, cwd=target)
        files = sorted(target.glob("*.deb"))
        if done.returncode != 0 or len(files) != len(packages):
            raise self._refusal(done.stdout, f"cannot download {packages[0].name} from Debian's {self.suite}")
        return files

    def _write_configuration(self) -> None:
        for name in ("state/lists/partial", "cache/archives/partial", "etc"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        (self.folder / "state/status").touch()
        architecture = subprocess.run(["dpkg", "--print-architecture"], capture_output=True, text=True, check=True).stdout.strip()
        (self.folder / "etc/sources.list").write_text(
            f"deb [arch={architecture} signed-by={keyring()}] {self.mirror} {self.suite} main\n", "utf-8"
        )
        (self.folder / "apt.conf").write_text(_CONFIGURATION.format(folder=self.folder), "utf-8")

    def _run(self, *command: str, timeout_s: float, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        program, *arguments = command
        try:
            return subprocess.run(
                [program, "--config-file", str(self.folder / "apt.conf"), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env=self._environment,
                cwd=cwd or self.folder,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise errors.EnvironmentUnfit(
                f"{program} {arguments[0]} did not end within {timeout_s:.0f} s", hint="see whether the package mirror answers"
            ) from error

    def _refusal(self, output: str, what: str) -> errors.EnvironmentUnfit:
        reason = _causal_line(output)
        if re.search(r"NO_PUBKEY|EXPKEYSIG|is not signed|Missing key|verification failed|Unable to verify", output, re.IGNORECASE):
            hint = "the keyring may be older than the suite: apt-get install --only-upgrade debian-archive-keyring"
        elif re.search(r"is expired \(invalid since|is not valid yet", output):
            hint = (
                "the mirror is not kept up to date, or this machine's clock is wrong; name another mirror with --mirror, or, for one that"
                ' is old on purpose, set Acquire::Check-Valid-Until "false" in apt\'s configuration'
            )
        elif re.search(r"No space left|write error", output):
            hint = "free some space in the folder for temporary files, or set TMPDIR"
        else:
            hint = "see whether the package mirror can be reached, and whether it carries this suite"
        return errors.EnvironmentUnfit(f"{what}: {text.printable(reason)}", hint=hint)


# The lists #clear would have to hold every hook: a system's hooks clean up its own folders after an update, which is not ours to start.
_CONFIGURATION = """\
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear DPkg::Pre-Install-Pkgs;
Dir::Etc::SourceList "{folder}/etc/sources.list";
Dir::Etc::SourceParts "/dev/null";
Dir::Etc::Preferences "/dev/null";
Dir::Etc::PreferencesParts "/dev/null";
Dir::State "{folder}/state";
Dir::State::Lists "{folder}/state/lists";
Dir::State::status "{folder}/state/status";
Dir::State::extended_states "{folder}/state/extended_states";
Dir::Cache "{folder}/cache";
Dir::Cache::Archives "{folder}/cache/archives";
Dir::Log "{folder}";
APT::Default-Release "";
APT::Update::Error-Mode "any";
APT::Get::AllowUnauthenticated "false";
Acquire::AllowInsecureRepositories "false";
Acquire::AllowWeakRepositories "false";
Acquire::Languages "none";
Acquire::Retries "1";
Debug::NoLocking "true";
"""


def _causal_line(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    for prefix in ("E:", "Err:", "W:"):
        for line in lines:
            if line.startswith(prefix):
                return line.removeprefix(prefix).strip()
    return lines[-1] if lines else "apt said nothing"


def _apt_config(*keys: str) -> list[str]:
    arguments = [part for number, key in enumerate(keys) for part in (f"V{number}", key)]
    done = subprocess.run(["apt-config", "shell", *arguments], capture_output=True, text=True, check=False)
    values = dict(re.findall(r"^(V\d+)='(.*)'$", done.stdout, re.MULTILINE))
    return [values.get(f"V{number}", "") for number in range(len(keys))]


def _codename() -> str:
    try:
        content = Path("/etc/os-release").read_text("utf-8", "replace")
    except OSError:
        return ""
    match = re.search(r'^VERSION_CODENAME="?([^"\n]+)"?$', content, re.MULTILINE)
    return match[1] if match else ""
