"""Bring one file of a package index to this machine, whatever interrupts it.

In: a project and a file name. Out: the file's bytes, under a name that the caller verifies. Used by `hub`.

D1  Bytes that arrived stay in the part file; the next attempt, also of another process, asks only for the rest.
D2  Nothing here is trusted: the caller compares a checksum before the bytes get their real name.
D3  The index is the one that pip is configured with, credentials included; they go to that host alone.

The connection may break silently: a short body raises nothing in `http.client`, so lengths are compared. Index pages
come as JSON or as HTML (PEP 691 and PEP 503).
"""

from __future__ import annotations

import ast
import base64
import contextlib
import dataclasses
import errno
import hashlib
import html.parser
import http.client
import json
import os
import shutil
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .errors import ModelFileError

Progress = Callable[[int, "int | None"], None]
"""Called with the bytes that are here and the bytes in all (None: not known), from the calling thread."""

PYPI = "https://pypi.org/simple"
TIMEOUT_S = 30.0
CHUNK_BYTES = 1 << 18
ATTEMPTS = 5  # in a row without a new byte
PAUSE_S = 0.2  # before the second attempt; doubles
WORTH_RETRYING = {408, 425, 429, 500, 502, 503, 504}
FAILURES = (OSError, http.client.HTTPException)


class _Broken(Exception):
    """The connection failed in a way that another attempt may mend."""


@dataclasses.dataclass(frozen=True)
class Index:
    """A package index as pip is configured to use it."""

    url: str
    """Without credentials, without a slash at the end."""
    authorization: str | None = None
    """Header value for the index's own host."""
    cert: str | None = None
    """File with certificate authorities; None: the system's."""

    def open(self, url: str, headers: dict[str, str]) -> Any:
        """The response to a GET; follows redirects, but takes the credentials nowhere else.

        Raises:
            OSError: No answer, or an error status (`urllib.error.HTTPError`).
            http.client.HTTPException: The answer is not HTTP.
        """
        scheme, host = urllib.parse.urlsplit(url)[:2]
        if scheme not in ("http", "https"):
            raise OSError(f"`{url}` has scheme `{scheme}`, expected http or https")
        request = urllib.request.Request(url, headers={"User-Agent": "quoth", "Accept-Encoding": "identity", **headers})
        if self.authorization is not None and host == urllib.parse.urlsplit(self.url).netloc:
            request.add_unredirected_header("Authorization", self.authorization)
        context = ssl.create_default_context(cafile=self.cert) if scheme == "https" else None
        return urllib.request.urlopen(request, timeout=TIMEOUT_S, context=context)


@dataclasses.dataclass(frozen=True)
class Link:
    """A file on an index."""

    name: str
    url: str
    sha256: str | None


# --- the index ------------------------------------------------------------------------------------------------------


def pip_settings() -> dict[str, str]:
    """pip's configuration, as far as it concerns downloads: environment over `download` over `global`."""
    by_scope: dict[str, dict[str, str]] = {"global": {}, "download": {}, ":env:": {}}
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "config", "list"]
        listing = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
        for line in listing.splitlines():
            key, _, value = line.partition("=")
            scope, _, name = key.rpartition(".")
            with contextlib.suppress(ValueError, SyntaxError):
                by_scope.get(scope, {})[name] = str(ast.literal_eval(value))
    if "PIP_INDEX_URL" in os.environ:  # also where pip itself is missing
        by_scope[":env:"]["index-url"] = os.environ["PIP_INDEX_URL"]
    return {**by_scope["global"], **by_scope["download"], **by_scope[":env:"]}


def configured_index() -> Index:
    """The index that pip would ask.

    Raises:
        OSError: pip is told to use none.
    """
    settings = pip_settings()
    if settings.get("no-index", "").lower() in ("1", "true", "yes", "on"):
        raise OSError("pip is configured to use no index")
    url = urllib.parse.urlsplit(settings.get("index-url") or PYPI)
    user, at, host = url.netloc.rpartition("@")
    secret = urllib.parse.unquote(user if ":" in user else user + ":")
    authorization = "Basic " + base64.b64encode(secret.encode()).decode() if at else None
    clean = urllib.parse.urlunsplit((url.scheme, host, url.path.rstrip("/"), "", ""))
    return Index(clean, authorization, settings.get("cert"))


class _Anchors(html.parser.HTMLParser):
    """Collects the links of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.base = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        href = dict(attrs).get("href")
        if href and tag == "a":
            self.links.append(href)
        if href and tag == "base":
            self.base = href


def find_file(index: Index, project: str, name: str) -> Link:
    """Look a file up on a project's page.

    Raises:
        OSError: The page cannot be read, is in no known form, or does not list the file.
    """
    page = f"{index.url}/{project}/"
    accept = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.5, text/html;q=0.1"
    try:
        with index.open(page, {"Accept": accept}) as response:
            body = response.read(1 << 25)
            kind, base = response.headers.get_content_type(), response.geturl()
        if kind.endswith("json"):
            links = [
                Link(f["filename"], f["url"], f.get("hashes", {}).get("sha256")) for f in json.loads(body)["files"]
            ]
        else:
            links, base = _links_of_html(body.decode("utf-8", "replace"), base)
    except (*FAILURES, ValueError, KeyError, TypeError, AttributeError) as error:
        raise OSError(f"cannot read `{page}`: {error}") from error
    for link in links:
        if link.name == name:
            return dataclasses.replace(link, url=urllib.parse.urljoin(base, link.url))
    raise OSError(f"`{page}` does not list `{name}`")


def _links_of_html(text: str, base: str) -> tuple[list[Link], str]:
    """Links of a PEP 503 page and the URL that they are relative to."""
    page = _Anchors()
    page.feed(text)
    links = []
    for href in page.links:
        url, _, fragment = href.partition("#")
        name = urllib.parse.unquote(urllib.parse.urlsplit(url).path.rpartition("/")[2])
        kind, _, digest = fragment.partition("=")
        links.append(Link(name, url, digest if kind == "sha256" else None))
    return links, urllib.parse.urljoin(base, page.base)


# --- the bytes ------------------------------------------------------------------------------------------------------


def fetch(
    index: Index, link: Link, part: Path, *, limit_bytes: int, spare_bytes: int, progress: Progress | None
) -> None:
    """Download a file into `part`, going on where an earlier attempt stopped.

    Args:
        index: Where `link` comes from.
        link: The file.
        part: Holds what has arrived; kept when the download fails. Its folder exists.
        limit_bytes: A larger file is refused.
        spare_bytes: Room that must be left on the disk afterwards.
        progress: Told after each piece.

    Raises:
        OSError: The server gives nothing more, or the disk is full or not writable.
        ModelFileError: The file is larger than `limit_bytes`; `part` is removed.
    """
    fruitless = 0
    while True:
        before = _size(part)
        try:
            _continue(index, link, part, limit_bytes=limit_bytes, spare_bytes=spare_bytes, progress=progress)
            return
        except ModelFileError:
            part.unlink(missing_ok=True)
            raise
        except _Broken as broken:
            fruitless = 0 if _size(part) > before else fruitless + 1
            if fruitless == ATTEMPTS:
                raise OSError(f"download of `{link.url}` stopped at byte {_size(part)}: {broken}") from broken.__cause__
            time.sleep(PAUSE_S * 2**fruitless)


def _continue(
    index: Index, link: Link, part: Path, *, limit_bytes: int, spare_bytes: int, progress: Progress | None
) -> None:
    """One request for what is missing; returns when `part` is as long as the file."""
    have = _size(part)
    try:
        response = index.open(link.url, {"Range": f"bytes={have}-"} if have else {})
    except urllib.error.HTTPError as error:
        if error.code == 416:  # nothing after byte `have`: the part is complete, or longer than the file
            if error.headers.get("Content-Range") == f"bytes */{have}":
                if progress is not None:
                    progress(have, have)
                return
            part.unlink()
            raise _Broken("the part file was longer than the file") from error
        if error.code in WORTH_RETRYING:
            raise _Broken(f"status {error.code}") from error
        raise OSError(f"cannot fetch `{link.url}`: {error}") from error
    except FAILURES as error:
        raise _Broken(str(error)) from error
    with response:
        begin, total = _extent(response)
        if begin not in (0, have):
            raise OSError(f"`{link.url}` answers from byte {begin}, asked from {have}")
        if total is not None and total > limit_bytes:
            raise ModelFileError(f"`{link.url}` has {total} bytes, expected at most {limit_bytes}")
        if total is not None:
            require_room(part.parent, total - begin + spare_bytes)
        have = begin
        with part.open("ab" if have else "wb") as out:
            if progress is not None:
                progress(have, total)
            while chunk := _read(response):
                have += len(chunk)
                if have > limit_bytes:
                    raise ModelFileError(f"`{link.url}` has more than {limit_bytes} bytes")
                with naming(part):
                    out.write(chunk)
                    out.flush()
                if progress is not None:
                    progress(have, total)
    if total is not None and have != total:
        raise _Broken(f"connection closed, {total} bytes expected")


def _read(response: Any) -> bytes:
    """The next piece of a body, empty at its end."""
    try:
        piece: bytes = response.read(CHUNK_BYTES)
    except FAILURES as error:
        raise _Broken(str(error) or type(error).__name__) from error
    return piece


def _extent(response: Any) -> tuple[int, int | None]:
    """Where a body begins in the file, and the file's length if known."""
    if response.status == 206:
        span, _, total = response.headers.get("Content-Range", "").removeprefix("bytes ").partition("/")
        begin = span.partition("-")[0]
        if not begin.isdecimal():
            raise OSError(f"`{response.geturl()}` answers without a valid Content-Range")
        return int(begin), int(total) if total.isdecimal() else None
    length = response.headers.get("Content-Length", "")
    return 0, int(length) if length.isdecimal() else None


def pip_download(requirement: str, folder: Path) -> None:
    """Let pip fetch a wheel without its dependencies into `folder`: it knows mirrors and credentials that we do not.

    Raises:
        OSError: pip is missing or fails.
    """
    options = ["--disable-pip-version-check", "--quiet", "--no-input", "--no-deps", "--only-binary=:all:"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), requirement]
    run = subprocess.run(command, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if run.returncode:
        reason = run.stderr.strip().splitlines()
        raise OSError(f"pip cannot download `{requirement}`: {reason[-1] if reason else run.returncode}")


# --- files ----------------------------------------------------------------------------------------------------------


def _size(path: Path) -> int:
    """Bytes in a file; 0 where there is none."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def sha256_of(path: Path) -> str:
    """A file's SHA-256 in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def require_room(folder: Path, n_bytes: int) -> None:
    """Refuse early what the disk cannot hold.

    Raises:
        OSError: `ENOSPC`, with both figures.
    """
    free = shutil.disk_usage(folder).free
    if free < n_bytes:
        raise OSError(errno.ENOSPC, f"{n_bytes} bytes needed, {free} free", str(folder))


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Give an `OSError` that names no file, as a failed write does, this one."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            raise OSError(error.errno, os.strerror(error.errno), str(path)) from error
        raise


@contextlib.contextmanager
def folder_lock(folder: Path) -> Iterator[bool]:
    """Hold a folder against other threads and processes; waits for its turn and ends with the process.

    Yields:
        False where the file system knows no locks: then names must be made unique.
    """
    with (folder / ".lock").open("a+b") as file:
        if sys.platform == "win32":
            import msvcrt  # noqa: PLC0415 - not everywhere

            while True:
                file.seek(0)
                try:
                    msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
                    break
                except PermissionError:
                    time.sleep(0.1)
            try:
                yield True
            finally:
                file.seek(0)
                msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)
        else:
            import fcntl  # noqa: PLC0415 - not everywhere

            locked = True
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
            except OSError:
                locked = False
            yield locked
