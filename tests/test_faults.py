"""Files that change, disks that fill up, folders that refuse, processes that die: a clear error or a right result."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import quoth
from broken import model_bytes
from quoth import costs, hub
from test_hub import FAKE, GGUF, Server, files_in, server

__all__ = ["server"]  # a fixture

POSIX = pytest.mark.skipif(os.name != "posix", reason="limits and signals of POSIX")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A model that may be spoiled."""
    path = tmp_path / "model.gguf"
    path.write_bytes(model_bytes())
    os.utime(path, ns=(0, 0))  # long before the test: the clock of files stands still for some milliseconds
    return path


def load(path: Path, progress: Callable[[int, int], bool | None] | None = None) -> quoth.Model:
    return quoth.Model(path, n_ctx=64, threads=1, progress=progress)


# ---- a file that changes


def shorter(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def longer(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


def written_over(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(b"\xff" * 1000)


@pytest.mark.parametrize("change", [shorter, empty, longer, written_over], ids=lambda f: f.__name__)
def test_a_file_that_changes_while_it_is_loaded_is_an_error_that_says_so(
    path: Path, change: Callable[[Path], None]
) -> None:
    n_bytes = path.stat().st_size
    file = quoth._core.GgufFile(str(path))
    change(path)
    with pytest.raises(quoth.ModelFileError) as caught:
        quoth._core.Model(file, 64, 1, None, None)
    now = path.stat().st_size
    assert str(caught.value) == f"{path}: changed since it was opened: {n_bytes} bytes then, {now} now"


@pytest.mark.parametrize("change", [shorter, empty, written_over], ids=lambda f: f.__name__)
def test_a_file_that_changes_at_any_time_gives_the_right_model_or_an_error(
    path: Path, change: Callable[[Path], None]
) -> None:
    allowed = {load(path).session().forward([1, 2, 3]).tobytes()}
    whole = path.read_bytes()
    change(path)
    # What was changed before it was opened is another file, and a right one if it is one.
    with contextlib.suppress(quoth.ModelFileError):
        allowed.add(load(path).session().forward([1, 2, 3]).tobytes())
    draw = random.Random(7)
    refused = tried = 0
    # On a busy machine the change may come too late many times in a row.
    while tried < 60 or (not refused and tried < 2000 and change is not written_over):
        tried += 1
        path.write_bytes(whole)
        os.utime(path, ns=(0, 0))  # else a write within the same tick of the clock of files could not be seen
        pause = draw.random() * 0.004
        thread = threading.Thread(target=lambda pause=pause: (time.sleep(pause), change(path)))
        thread.start()
        refusal, found = "", b""
        try:
            found = load(path).session().forward([1, 2, 3]).tobytes()
        except quoth.ModelFileError as error:
            refusal = str(error)
        thread.join()
        assert found in allowed or str(path) in refusal
        refused += bool(refusal)
    print(f"{refused} of {tried} loads met a change")
    assert refused or change is written_over


@pytest.mark.parametrize("change", [shorter, empty, written_over, Path.unlink], ids=lambda f: f.__name__)
def test_a_file_may_change_or_go_once_it_is_loaded(path: Path, change: Callable[[Path], None]) -> None:
    model = load(path)
    expected = model.session().forward([1, 2, 3]).tobytes()
    change(path)
    assert model.session().forward([1, 2, 3]).tobytes() == expected


@pytest.mark.skipif(os.name == "nt", reason="Windows does not let open files be replaced")
def test_a_file_replaced_by_another_while_it_is_loaded_gives_the_model_that_was_opened(path: Path) -> None:
    expected = load(path).session().forward([1, 2, 3]).tobytes()
    file = quoth._core.GgufFile(str(path))
    other = path.with_name("other.gguf")
    other.write_bytes(b"GGUF")
    os.replace(other, path)
    model = quoth._core.Model(file, 64, 1, None, None)
    assert quoth._core.Session(model, "f32").forward([1, 2, 3], "all").tobytes() == expected


# ---- what is no file, or cannot be read


@POSIX
def test_what_never_ends_or_never_answers_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "socket"))
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "nowhere").symlink_to("gone")
    (tmp_path / "link").symlink_to("pipe")
    for name in ("/dev/zero", "/dev/full", tmp_path / "pipe", tmp_path / "socket", tmp_path / "link", tmp_path):
        with pytest.raises(quoth.ModelFileError, match="expected a"):
            load(Path(name))
    for name in ("loop", "nowhere"):
        with pytest.raises(OSError, match=name):
            load(tmp_path / name)
    listener.close()


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="files that cannot be read are in /proc")
@pytest.mark.parametrize("name", ["/proc/self/mem", "/proc/self/pagemap", "/proc/kmsg", "/proc/self/maps"])
def test_a_file_without_a_length_or_with_pages_that_cannot_be_read_is_refused(name: str) -> None:
    with pytest.raises((quoth.ModelFileError, OSError), match=name):
        load(Path(name))


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="no setpriv, which takes root's right to read everything")
def test_a_file_that_may_not_be_read_is_a_permission_error_with_its_name(path: Path) -> None:
    path.chmod(0)
    code = (
        "import sys, quoth\n"
        "try:\n    quoth.Model(sys.argv[1])\n"
        "except OSError as error:\n    print(type(error).__name__, error.filename)\n"
    )
    powers = [] if os.geteuid() else ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"]
    env = dict(os.environ)
    command = [*powers, sys.executable, "-c", code, str(path)]
    run = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert run.stdout == f"PermissionError {path}\n", run.stderr


# ---- processes that die

IN_A_PROCESS = f"from quoth import hub\nhub.KNOWN['tiny'] = hub.{FAKE!r}\nprint(hub.pull('tiny'))\n"
DIES = "import os, signal\nos.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n" + IN_A_PROCESS


@POSIX
def test_a_pull_that_is_killed_leaves_no_model_and_later_ones_clear_away_what_it_left(
    server: Server, tmp_path: Path
) -> None:
    run = subprocess.run([sys.executable, "-c", DIES], check=False)
    assert run.returncode == -signal.SIGKILL
    folder = tmp_path / "cache" / "tiny"
    (left,) = folder.iterdir()
    assert hub.pull("tiny").read_bytes() == GGUF
    assert left.exists(), "another process may be at work in it"
    (folder / "tiny.gguf").unlink()
    os.utime(left, (0, 0))
    assert hub.pull("tiny").read_bytes() == GGUF
    assert files_in(tmp_path / "cache") == {"tiny/tiny.gguf"}


# ---- full and read-only disks


def on_a_small_disk(folder: Path, options: str, code: str, size: str = "2m") -> subprocess.CompletedProcess[str]:
    """Run Python where `folder` is a disk of its own; skips the test where that cannot be had."""
    unshare, mount = shutil.which("unshare"), shutil.which("mount")
    if unshare is None or mount is None:
        pytest.skip("no unshare or mount, which a small disk needs")
    folder.mkdir(exist_ok=True)
    script = f'mount -t tmpfs -o size={size} none "$1" && {options} && exec "$2" -c "$3"'
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "QUOTH_CACHE": str(folder)}
    arguments = [unshare, "--map-root-user", "--mount", "sh", "-c", script, "sh", str(folder), sys.executable, code]
    run = subprocess.run(arguments, env=env, capture_output=True, text=True, check=False)
    if "unshare:" in run.stderr or "mount:" in run.stderr:
        pytest.skip(f"a small disk cannot be had here: {run.stderr.splitlines()[0]}")
    return run


LAST_LINE = """
import os
for root, _, names in os.walk(os.environ["QUOTH_CACHE"]):
    for name in names:
        print("left", name)
"""


def test_a_disk_that_fills_up_is_an_error_and_nothing_is_left(server: Server, tmp_path: Path) -> None:
    code = f"try:\n    exec({IN_A_PROCESS!r})\nexcept OSError as error:\n    print(error.errno, error.filename)\n"
    run = on_a_small_disk(tmp_path / "disk", "true", code + LAST_LINE, size="1500k")
    assert run.stdout == "28 tiny.gguf\n", run.stderr


def test_a_read_only_disk_is_named_and_gives_what_it_has(server: Server, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    code = f"try:\n    exec({IN_A_PROCESS!r})\nexcept OSError as error:\n    print(error.errno, error)\n"
    run = on_a_small_disk(disk, 'mount -o remount,ro none "$1"', code)
    assert run.stdout == f"30 [Errno 30] Read-only file system: '{disk / 'tiny'}'\n", run.stderr
    assert server.n_downloads == 0
    kept = hub.pull("tiny")
    filled = f'mkdir "$1"/tiny && cp "{kept}" "$1"/tiny/ && mount -o remount,ro none "$1"'
    run = on_a_small_disk(disk, filled, IN_A_PROCESS)
    assert run.stdout == f"{disk / 'tiny' / 'tiny.gguf'}\n", run.stderr


# ---- measured costs and conversations

COSTS = {1: 1.25, 8: 2.0}


def test_costs_on_a_full_or_read_only_disk_are_an_error_that_leaves_nothing_half(path: Path, tmp_path: Path) -> None:
    code = (
        "import os, quoth\n"
        "from pathlib import Path\n"
        "from quoth import costs\n"
        f"model = quoth.Model({str(path)!r}, n_ctx=64, threads=1)\n"
        "folder = Path(os.environ['QUOTH_CACHE'])\n"
        f"try:\n    costs.save_costs(model, {COSTS}, 'today', folder)\nexcept OSError as e:\n    print(e.errno)\n"
        "print(costs.measured_costs(model, folder))\n"
    )
    disk = tmp_path / "disk"
    run = on_a_small_disk(disk, 'mount -o remount,ro none "$1"', code)
    assert run.stdout == "30\nNone\n", run.stderr
    # Full to the last page: a name can still be made, a byte cannot be written.
    full = 'mkdir "$1"/costs && (dd if=/dev/zero of="$1"/filler bs=4096 2>/dev/null; true)'
    run = on_a_small_disk(disk, full, code + LAST_LINE, size="64k")
    assert run.stdout == "28\nNone\nleft filler\n", run.stderr


def test_costs_that_are_damaged_in_any_way_count_as_absent(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings: list[str] = []
    monkeypatch.setattr(costs._log, "warning", lambda text, *rest: warnings.append(text % rest))
    model = load(path)
    file = costs.save_costs(model, COSTS, "today", tmp_path)
    whole = file.read_bytes()
    assert dict((costs.measured_costs(model, tmp_path) or ({}, ""))[0]) == COSTS
    draw = random.Random(1)
    absent = 0
    for case in range(400):
        damaged = bytearray(whole)
        if case % 2:
            del damaged[draw.randrange(len(damaged)) :]
        else:
            for _ in range(draw.randrange(1, 4)):
                damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        file.write_bytes(damaged)
        found = costs.measured_costs(model, tmp_path)
        absent += found is None
        assert found is None or all(1 <= k <= 4096 and 0.5 <= cost <= 10_000 for k, cost in found[0].items())
    assert absent > 200
    oddities = ["[]", "1", '{"costs": []}', '{"costs": {"1": "x"}}', '{"costs": {"1": NaN}}', '{"costs": {"1e999": 1}}']
    for odd in [
        *oddities,
        "[" * 100_000,
        '{"costs": {"1": 1' + "0" * 5000 + "}}",
        '{"costs": {"' + "9" * 5000 + '": 1}}',
    ]:
        file.write_text(odd)
        assert costs.measured_costs(model, tmp_path) is None, odd[:50]
        assert str(file) in warnings[-1]
        assert len(warnings[-1]) < 1000
    file.unlink()
    file.mkdir()
    assert costs.measured_costs(model, tmp_path) is None


@POSIX
def test_costs_saved_by_many_at_once_and_by_the_dying_are_whole(path: Path, tmp_path: Path) -> None:
    code = (
        "import sys, quoth\n"
        "from pathlib import Path\n"
        "from quoth import costs\n"
        f"model = quoth.Model({str(path)!r}, n_ctx=64, threads=1)\n"
        "print('ready', flush=True)\n"
        f"while True: costs.save_costs(model, dict.fromkeys(range(1, 400), 2.0), 'today', Path({str(tmp_path)!r}))\n"
    )
    env = dict(os.environ)
    writers = [subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE) for _ in range(2)]
    model = load(path)
    for writer in writers:
        assert writer.stdout is not None
        writer.stdout.readline()
    seen = 0
    for _ in range(300):
        found = costs.measured_costs(model, tmp_path)
        seen += found is not None
        assert found is None or len(found[0]) == 399
        time.sleep(0.001)
    for writer in writers:
        writer.kill()
        writer.wait()
    assert seen > 200
    found = costs.measured_costs(model, tmp_path)
    assert found is not None
    assert len(found[0]) == 399


def test_a_conversation_that_cannot_be_saved_leaves_the_old_file_as_it_was(
    tiny_chat_path: Path, tmp_path: Path
) -> None:
    code = (
        "import os, quoth\n"
        "from pathlib import Path\n"
        f"chat = quoth.Conversation(quoth.Model({str(tiny_chat_path)!r}, threads=1), max_tokens=2)\n"
        "chat.reply('x' * 60)\n"
        "file = Path(os.environ['QUOTH_CACHE']) / 'chat.json'\n"
        "try:\n    chat.save(file)\nexcept OSError as error:\n    print(error.errno)\n"
        "print(file.read_text())\n"
    )
    full = 'echo old > "$1"/chat.json && (dd if=/dev/zero of="$1"/filler bs=4096 2>/dev/null; true)'
    run = on_a_small_disk(tmp_path / "disk", full, code + LAST_LINE, size="64k")
    assert sorted(run.stdout.split()) == ["28", "chat.json", "filler", "left", "left", "old"], run.stderr


def test_a_saved_conversation_that_is_damaged_is_refused_by_name(tiny_chat_path: Path, tmp_path: Path) -> None:
    model = quoth.Model(tiny_chat_path, threads=1)
    sampling = quoth.Sampling(temperature=0.5, seed=1, logit_bias={3: 1.5, 4: float("-inf")}, banned=[5])
    chat = quoth.Conversation(
        model,
        system="s",
        max_tokens=3,
        sampling=sampling,
        stop=["END", 7],
        tools=[{"name": "f"}],
        template_kwargs={"a": 1},
    )
    chat.reply("Hello")
    chat.reply([100, 101, 102])
    chat.add_reference("Hello")
    file = tmp_path / "chat.json"
    chat.save(file)
    whole = file.read_bytes()
    data = json.loads(whole)
    # All parts that a file can have are there to be damaged.
    assert [sorted(entry) for entry in data["entries"]] == [
        ["message"], ["message"], ["lead", "message", "tokens"], ["message", "tokens"], ["lead", "message", "tokens"]
    ]  # fmt: skip
    assert data["references"]
    assert len(data["options"]["sampling"]["logit_bias"]) == 2
    assert (data["options"]["stop"], data["options"]["sampling"]["banned"]) == (["END", 7], [5])
    quoth.Conversation.load(file, model)
    draw = random.Random(2)
    refused = met = 0
    for case in range(800):
        damaged = bytearray(whole)
        if case % 4 == 0:
            del damaged[draw.randrange(len(damaged)) :]
        elif case % 4 == 1:
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        else:
            lie = json.loads(whole)
            spots: list[tuple[object, object]] = []
            todo: list[object] = [lie]
            while todo:
                at = todo.pop()
                inner = (
                    list(at.items()) if isinstance(at, dict) else list(enumerate(at)) if isinstance(at, list) else []
                )
                spots += [(at, key) for key, _ in inner]
                todo += [value for _, value in inner]
            holder, key = draw.choice(spots)
            odd = [None, -1, 1 << 70, 2.5, "x", [], {}, True, [[]], {"a": {}}, float("nan"), ["x"], [1 << 40], 10**400]
            odd += ["\ud800", "a\0", [[[], 1.0]], [{}], [None]]
            holder[key] = draw.choice(odd)  # type: ignore[index]
            damaged = bytearray(json.dumps(lie).encode())
        file.write_bytes(damaged)
        try:
            try:
                again = quoth.Conversation.load(file, model)
            except (quoth.QuothError, OSError):
                refused += 1
                continue
            met += 1
            again.save(file)
            assert quoth.Conversation.load(file, model).messages == again.messages
            with contextlib.suppress(quoth.QuothError):  # a template may not take what a message is now
                again.reply("More", max_tokens=1)
        except Exception as error:
            raise AssertionError(f"case {case}: {type(error).__name__}: {error}\n{bytes(damaged)[:2000]!r}") from error
    assert data["format"] == "quoth conversation"
    assert refused > 400
    assert met > 20, "what is still right is taken, can be saved again and goes on"
    file.write_text("[" * 200_000)
    with pytest.raises(quoth.OptionsError, match=r"chat\.json"):
        quoth.Conversation.load(file, model)
