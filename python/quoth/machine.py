"""What this machine is: processor, cores, memory, large pages.

In: what the system tells. Out: facts, to cost tables, `quoth doctor` and records of measurements. What the system does
not tell is None, never a guess.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path

__all__ = [
    "available_bytes",
    "cores",
    "cpu_name",
    "cpu_quota",
    "governor",
    "huge_pages",
    "load_average",
    "peak_bytes",
    "total_bytes",
    "usable_cores",
]


def _read(path: str) -> str | None:
    """A small file of the system, or None if there is none."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def cpu_name() -> str:
    """The processor's name, as far as the system tells."""
    for line in (_read("/proc/cpuinfo") or "").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def cores() -> int | None:
    """Logical cores of the machine."""
    return os.cpu_count()


def usable_cores() -> list[int] | None:
    """Logical cores that this process may run on, by number."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return None


def cpu_quota() -> float | None:
    """Cores' worth of time that a container's limit leaves to this process; None without a limit."""
    for line in (_read("/proc/self/cgroup") or "").splitlines():
        group = line.rpartition(":")[2]
        for folder in (f"/sys/fs/cgroup{group}", "/sys/fs/cgroup"):
            words = (_read(f"{folder}/cpu.max") or "").split()
            if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]):
                return int(words[0]) / int(words[1])
    quota, period = _read("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"), _read("/sys/fs/cgroup/cpu/cpu.cfs_period_us")
    if quota and period and quota.isdigit() and period.isdigit() and int(period):
        return int(quota) / int(period)
    return None


def governor() -> str | None:
    """How the system chooses the clock of the first core: `performance`, `powersave`, …"""
    return _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")


def load_average() -> float | None:
    """Runnable processes, mean of the last minute."""
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return None


def _meminfo(field: str) -> int | None:
    for line in (_read("/proc/meminfo") or "").splitlines():
        name, _, value = line.partition(":")
        if name == field and value.split():
            return int(value.split()[0]) * 1024
    return None


def total_bytes() -> int | None:
    """Bytes of main memory."""
    if (found := _meminfo("MemTotal")) is not None:
        return found
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def available_bytes() -> int | None:
    """Bytes that programs can still have without swapping."""
    return _meminfo("MemAvailable")


def peak_bytes() -> int | None:
    """Most bytes of memory that this process held at one time."""
    words = [line.split() for line in (_read("/proc/self/status") or "").splitlines() if line.startswith("VmHWM:")]
    return int(words[0][1]) * 1024 if words else None


def huge_pages() -> str | None:
    """Whether large pages are given out: `always`, `madvise` (to programs that ask, as quoth does) or `never`."""
    setting = _read("/sys/kernel/mm/transparent_hugepage/enabled") or ""
    return next((word.strip("[]") for word in setting.split() if word.startswith("[")), None)
