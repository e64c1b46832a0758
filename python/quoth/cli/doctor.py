"""`quoth doctor`: this machine as quoth sees it, and what would make it faster.

In: the machine. Out: a page, or JSON.
"""
# ruff: noqa: PLC0415 - see `quoth.cli`

from __future__ import annotations

import contextlib
import json
import os
import platform
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer

from quoth import machine
from quoth.cli._console import bar, grid, show, visible
from quoth.cli._options import AsJson
from quoth.cli._units import as_json, size

LIBRARIES = ("numpy", "jinja2", "rich", "typer", "huggingface_hub")
VARIABLES = ("XDG_CACHE_HOME", "HF_HOME", "HF_ENDPOINT", "HF_HUB_OFFLINE", "NO_COLOR", "FORCE_COLOR")


def doctor(
    *,
    bandwidth: Annotated[
        bool, typer.Option("--bandwidth/--no-bandwidth", help="Measure how fast memory is read: 2 s and 512 MiB.")
    ] = True,
    json_: AsJson = False,
) -> None:
    """Look at this machine: instruction sets, cores, memory, cache folder, and what would make quoth faster."""
    facts = _facts()
    if bandwidth:
        facts["bandwidth"] = _bandwidth(facts["threads"]["default"], facts["memory"]["available_bytes"])
    facts["advice"] = list(_advice(facts))
    if json_:
        print(json.dumps(as_json(facts), ensure_ascii=False))
        return
    show(grid([(name, visible(text)) for name, text in _page(facts)]), "")
    if facts["advice"]:
        show("What would make it faster:", grid([("-", visible(line)) for line in facts["advice"]]))
    else:
        show("Nothing to improve was found.")


def _facts() -> dict[str, Any]:
    from quoth import __version__, _core
    from quoth.hub import cache_dir

    sets = [{"name": name, "detail": detail} for name, detail in _core.kernel_sets()]
    usable = machine.usable_cores()
    return {
        "versions": {"quoth": __version__, "python": platform.python_version(), **_libraries()},
        "system": platform.platform(),
        "cpu": machine.cpu_name(),
        "kernels": {"available": sets, **_kernels(sets[-1]["name"])},
        "cores": {"logical": machine.cores(), "usable": usable, "quota": machine.cpu_quota()},
        "threads": {"physical": _core.default_threads(), **_threads(_core.default_threads())},
        "memory": {"total_bytes": machine.total_bytes(), "available_bytes": machine.available_bytes()},
        "huge_pages": machine.huge_pages(),
        "governor": machine.governor(),
        "load": machine.load_average(),
        "cache": {"path": str(cache_dir()), "files": list(_cached(cache_dir()))},
        "environment": {
            name: value for name, value in sorted(os.environ.items()) if name.startswith("QUOTH_") or name in VARIABLES
        },
        "bandwidth": None,
    }


def _libraries() -> dict[str, str | None]:
    return {name: _version(name) for name in LIBRARIES}


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _kernels(best: str) -> dict[str, Any]:
    """The instruction set that a model gets by default; None, and why, if it would be refused."""
    from quoth.errors import OptionsError
    from quoth.loaded import kernels_setting

    forced = bool(os.environ.get("QUOTH_KERNELS"))
    try:
        return {"in_use": kernels_setting(None) or best, "forced": forced, "error": None}
    except OptionsError as error:
        return {"in_use": None, "forced": forced, "error": str(error)}


def _threads(physical: int) -> dict[str, Any]:
    """Threads that a model gets by default, and what is wrong with what the environment says."""
    from quoth.errors import OptionsError
    from quoth.loaded import threads_setting

    try:
        return {"default": threads_setting(None), "error": None}
    except OptionsError as error:
        return {"default": physical, "error": str(error)}


def _cached(folder: Path) -> Iterator[dict[str, Any]]:
    """Files in the cache folder: models, tables of costs."""
    for path in sorted(folder.rglob("*")):
        with contextlib.suppress(OSError):  # it went away
            if path.is_file() and not path.is_symlink() and not path.name.endswith(".lock"):
                yield {"path": str(path.relative_to(folder)), "n_bytes": path.stat().st_size}


def _bandwidth(threads: int, available: int | None) -> dict[str, Any]:
    from quoth.bench.bandwidth import DEFAULT_BYTES, read_bandwidth

    n_bytes = DEFAULT_BYTES
    while available is not None and n_bytes > available // 2 and n_bytes > 1 << 20:
        n_bytes //= 2
    try:
        with bar("reading memory"):
            measured = read_bandwidth(threads, n_bytes)
    except MemoryError:
        return {"error": f"no room for {n_bytes} bytes"}
    how = measured.how if n_bytes == DEFAULT_BYTES else f"{measured.how}, little as memory is scarce"
    return {"bytes_per_second": measured.best, "median_bytes_per_second": measured.median, "how": how}


def _advice(facts: dict[str, Any]) -> Iterator[str]:
    """What the user could change, the largest effects first."""
    sets, kernels = facts["kernels"]["available"], facts["kernels"]
    cores, threads, usable = facts["cores"], facts["threads"], facts["cores"]["usable"]
    if kernels["error"]:
        yield f"{kernels['error']}: models cannot be loaded."
    elif kernels["in_use"] == "reference":
        yield f"QUOTH_KERNELS is reference, plain code for tests; without it quoth takes {sets[-1]['detail']}."
    elif kernels["forced"] and kernels["in_use"] != sets[-1]["name"]:
        yield f"QUOTH_KERNELS is {kernels['in_use']}; without it quoth takes {sets[-1]['detail']}."
    elif sets[-1]["name"] == "scalar":
        yield "The processor has none of the instruction sets avx2, avx512, neon: plain code is many times slower."
    if threads["error"]:
        yield threads["error"]
    elif threads["default"] < threads["physical"]:
        yield f"QUOTH_THREADS is {threads['default']}; this process may use {threads['physical']} physical cores."
    elif usable is not None and threads["default"] > len(usable):
        yield f"QUOTH_THREADS is {threads['default']}, more than the {len(usable)} cores that this process may use."
    if usable is not None and cores["logical"] is not None and len(usable) < cores["logical"]:
        yield f"This process may use {len(usable)} of {cores['logical']} cores: see taskset, or the container's cpuset."
    if cores["quota"] is not None and cores["quota"] < threads["default"]:
        yield (
            f"The container may use {cores['quota']:g} cores' worth of time, and {threads['default']} threads wait for "
            f"one another: set QUOTH_THREADS={max(1, int(cores['quota']))}, or raise the limit."
        )
    if facts["huge_pages"] == "never":
        yield (
            "Large pages are off: echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled gives them to "
            "programs that ask, as quoth does."
        )
    if facts["governor"] == "powersave":
        yield "The clock governor is powersave; performance keeps the clock up during short answers."
    if facts["load"] is not None and facts["load"] > 0.7:
        yield (
            f"About {facts['load']:.1f} other processes were running in the last minute; each takes a core from the "
            "threads of a step, which wait for one another."
        )
    if not any(entry["path"].startswith("costs") for entry in facts["cache"]["files"]):
        yield "No verification costs are measured yet: quoth bench verify MODEL makes the gate's decisions fit here."


def _page(facts: dict[str, Any]) -> list[tuple[str, str]]:
    kernels, cores, threads, memory = facts["kernels"], facts["cores"], facts["threads"], facts["memory"]
    usable = cores["usable"]
    affinity = "" if usable is None else f", usable {_ranges(usable)}"
    quota = "" if cores["quota"] is None else f", time limited to {cores['quota']:g}"
    source = "from QUOTH_THREADS" if os.environ.get("QUOTH_THREADS") and not threads["error"] else "the physical cores"
    known = {name: version for name, version in facts["versions"].items() if version is not None}
    missing = [name for name, version in facts["versions"].items() if version is None]
    rows = [
        ("quoth", f"{known.pop('quoth')}, Python {known.pop('python')} at {sys.executable}"),
        (
            "libraries",
            ", ".join(f"{n} {v}" for n, v in known.items()) + (f"; without {', '.join(missing)}" if missing else ""),
        ),
        ("system", facts["system"]),
        ("processor", facts["cpu"]),
        ("instruction sets", ", ".join(entry["detail"] for entry in kernels["available"])),
        ("in use", (kernels["in_use"] or "none") + (" (from QUOTH_KERNELS)" if kernels["forced"] else "")),
        ("cores", f"{cores['logical']} logical{affinity}{quota}"),
        ("threads", f"{threads['default']}, {source}"),
    ]
    if memory["total_bytes"] is not None:
        free = memory["available_bytes"]
        rows.append(("memory", size(memory["total_bytes"]) + ("" if free is None else f", {size(free)} available")))
    rows += _bandwidth_page(facts["bandwidth"])
    rows.append(("large pages", facts["huge_pages"] or "not told by the system"))
    if facts["load"] is not None:
        rows.append(("load", f"{facts['load']:.1f} runnable processes in the last minute"))
    files = facts["cache"]["files"]
    total = sum(entry["n_bytes"] for entry in files)
    rows.append(("cache folder", facts["cache"]["path"] + (f", {size(total)}" if files else ", empty")))
    rows += [("", f"{entry['path']}  {size(entry['n_bytes'])}") for entry in files[:20]]
    if len(files) > 20:
        rows.append(("", f"… {len(files)} files in all"))
    environment = [f"{name}={value}" for name, value in facts["environment"].items()]
    rows.append(("environment", ", ".join(environment) or "nothing set"))
    return rows


def _bandwidth_page(measured: dict[str, Any] | None) -> list[tuple[str, str]]:
    if measured is None:
        return []
    if "error" in measured:
        return [("memory read", measured["error"])]
    speed = measured["bytes_per_second"]
    per_gb = speed / 1e9
    return [
        ("memory read", f"{size(speed)}/s ({measured['how']})"),
        ("", f"plain decoding of 1 GB of weights: at most {per_gb:.0f} tok/s"),
    ]


def _ranges(numbers: list[int]) -> str:
    """Numbers with runs shortened: 0-3, 8."""
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
