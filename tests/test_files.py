"""Files that quoth writes for its users: whole or not at all, never in place of what is no file; reading has limits."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import quoth
from quoth import _files, costs, decoder, saved
from quoth.bench.record import write_record

POSIX = pytest.mark.skipif(os.name != "posix", reason="modes and links of POSIX")


@pytest.fixture(scope="module")
def model(tiny_chat_path: Path) -> quoth.Model:
    return quoth.Model(tiny_chat_path, n_ctx=256, threads=1)


Write = Callable[[Path], object]


@pytest.fixture(params=["helper", "conversation", "costs", "record"])
def write(request: pytest.FixtureRequest, model: quoth.Model, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Each function that writes files, writing to a path."""

    def cost(path: Path) -> None:
        monkeypatch.setattr(costs, "_path", lambda model, folder: path)
        costs.save_costs(model, {1: 1.5}, "today")

    ways: dict[str, Write] = {
        "helper": lambda path: _files.write_whole(path, "text\n"),
        "conversation": lambda path: model.conversation(system="s", sampling=quoth.Sampling(seed=1)).save(path),
        "costs": cost,
        "record": lambda path: write_record(path, "what", "command", {}, {"a": 1}),
    }
    return ways[request.param]


@pytest.fixture
def umask() -> Iterator[None]:
    before = os.umask(0o027)
    yield
    os.umask(before)


@POSIX
@pytest.mark.usefixtures("umask")
def test_a_new_file_has_the_permissions_of_new_files_and_an_old_one_keeps_its_own(write: Write, tmp_path: Path) -> None:
    path = tmp_path / "file"
    write(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    whole = path.read_bytes()
    for mode in (0o600, 0o664, 0o755):
        path.chmod(mode)
        path.write_bytes(b"old")
        write(path)
        assert stat.S_IMODE(path.stat().st_mode) == mode
        assert path.read_bytes() == whole
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"], "nothing is left beside it"


@POSIX
def test_links_stay_and_what_they_point_to_is_written(write: Write, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").write_bytes(b"old")
    (tmp_path / "link").symlink_to(Path("there") / "file")
    (tmp_path / "second").symlink_to("link")
    (tmp_path / "new").symlink_to(Path("there") / "none yet")
    for name, target in (("second", "file"), ("link", "file"), ("new", "none yet")):
        write(tmp_path / name)
        assert (tmp_path / name).is_symlink()
        assert len((tmp_path / "there" / target).read_bytes()) > 3
    assert sorted(entry.name for entry in (tmp_path / "there").iterdir()) == ["file", "none yet"]


@POSIX
def test_what_is_no_file_is_refused_and_stays(write: Write, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "socket"))
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("pipe")
    (tmp_path / "null").symlink_to("/dev/null")
    kinds = {"pipe": "a pipe", "socket": "a socket", "folder": "a folder", "link": "a pipe", "null": "a device"}
    for name, kind in kinds.items():
        before = os.lstat(tmp_path / name)
        with pytest.raises(quoth.OptionsError) as caught:
            write(tmp_path / name)
        assert str(caught.value) == f"`{tmp_path / name}` is {kind}, expected a file or a new name"
        after = os.lstat(tmp_path / name)
        assert (after.st_ino, after.st_mode) == (before.st_ino, before.st_mode)
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == sorted(kinds)
    listener.close()


@POSIX
def test_errors_name_the_path_that_was_given(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(OSError, match="loop") as caught:
        write(tmp_path / "loop")
    assert caught.value.filename == str(tmp_path / "loop")
    (tmp_path / "file").write_bytes(b"old")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device", "beside")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="No space left") as caught:
        write(tmp_path / "file")
    assert (caught.value.errno, caught.value.filename) == (28, str(tmp_path / "file"))
    assert (tmp_path / "file").read_bytes() == b"old"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["file", "loop"]


@POSIX
def test_a_name_may_be_as_long_as_names_may_be(write: Write, tmp_path: Path) -> None:
    write(tmp_path / ("ä" * 127))
    with pytest.raises(OSError, match="too long") as caught:
        write(tmp_path / ("a" * 256))
    assert caught.value.filename == str(tmp_path / ("a" * 256))


def test_the_folder_of_a_conversation_must_be_there_and_is_named(model: quoth.Model, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        model.conversation().save(tmp_path / "none" / "chat.json")
    assert caught.value.filename == str(tmp_path / "none" / "chat.json")


@pytest.mark.parametrize("path", ["a\0b", Path("a\0b"), "\ud800", b"x", 3, None, ["x"]], ids=ascii)
def test_what_is_no_path_is_refused(model: quoth.Model, path: object) -> None:
    chat = model.conversation()
    for use in (chat.save, lambda path: quoth.Conversation.load(path, model)):
        with pytest.raises(quoth.OptionsError, match=r"^path is .*, expected a path$"):
            use(path)  # type: ignore[arg-type]
    if isinstance(path, Path):
        with pytest.raises(quoth.OptionsError, match=r"^reference is .*, expected a path$"):
            chat.add_reference(path)


# ---- reading


def test_reading_ends_at_the_limit_whatever_the_size(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for n_bytes in (0, 1, 99, 100):
        path.write_bytes(b"x" * n_bytes)
        assert _files.read_whole(path, 100) == b"x" * n_bytes
    path.write_bytes(b"x" * 101)
    with pytest.raises(quoth.OptionsError, match=r"file` has 101 bytes or more, expected at most 100$"):
        _files.read_whole(path, 100)


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no /dev/zero, which never ends")
def test_a_conversation_is_read_from_files_alone_up_to_a_limit(model: quoth.Model, tmp_path: Path) -> None:
    for path, kind in (("/dev/zero", "a device"), (tmp_path, "a folder")):
        with pytest.raises(quoth.OptionsError) as caught:
            quoth.Conversation.load(path, model)
        assert str(caught.value) == f"`{path}` is {kind}, expected a file"
    os.mkfifo(tmp_path / "pipe")  # opening it would never return
    with pytest.raises(quoth.OptionsError, match="is a pipe, expected a file"):
        quoth.Conversation.load(tmp_path / "pipe", model)
    large = tmp_path / "large"
    large.touch()
    os.truncate(large, saved.LIMIT_BYTES + 1)  # has no blocks, so it is quick to make, and is refused unread
    with pytest.raises(quoth.OptionsError, match=f"expected at most {saved.LIMIT_BYTES}"):
        quoth.Conversation.load(large, model)


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no /dev/zero, which never ends")
def test_a_reference_is_read_up_to_a_limit(model: quoth.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chat = model.conversation()
    for path, kind in ((Path("/dev/zero"), "a device"), (tmp_path, "a folder")):
        with pytest.raises(quoth.OptionsError, match=rf"^`{path}` is {kind}, expected a file or a pipe$"):
            chat.add_reference(path)
    assert decoder.REFERENCE_BYTES == 1 << 26
    monkeypatch.setattr(decoder, "REFERENCE_BYTES", 3)
    (tmp_path / "manual.txt").write_bytes(b"abcd")
    with pytest.raises(quoth.OptionsError, match="has 4 bytes or more, expected at most 3"):
        chat.add_reference(tmp_path / "manual.txt")
    assert chat.references == {}
    (tmp_path / "manual.txt").write_bytes(b"abc")
    handle = chat.add_reference(tmp_path / "manual.txt")
    assert chat.references == {handle: 3}
    # What a shell gives for `<(command)` is a pipe.
    end, write_end = os.pipe()
    os.write(write_end, b"xyz")
    os.close(write_end)
    other = chat.add_reference(Path(f"/dev/fd/{end}"))
    assert chat.references == {handle: 3, other: 3}
    os.close(end)


def test_a_conversation_that_could_not_be_read_again_is_not_written(
    model: quoth.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "chat.json"
    chat = model.conversation(system="x" * 3000)
    chat.save(path)
    n_bytes = path.stat().st_size
    monkeypatch.setattr(saved, "LIMIT_BYTES", n_bytes)
    chat.save(path)
    assert quoth.Conversation.load(path, model).messages == chat.messages
    monkeypatch.setattr(saved, "LIMIT_BYTES", n_bytes - 1)
    with pytest.raises(quoth.OptionsError, match=f"takes {n_bytes} bytes, expected at most {n_bytes - 1} for `"):
        chat.save(tmp_path / "other.json")
    assert not (tmp_path / "other.json").exists()
