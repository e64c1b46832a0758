"""Measured costs of verification, kept per model, machine, threads and instruction set.

In: what `quoth bench verify` measured. Out: the gate's table. A file of its own for each combination, written whole or
not at all (`quoth._files`); one that cannot be read or does not make sense counts as absent.

A mixture of experts that was never measured has a table of its own (`MIXTURE`): its rows choose different experts, so
each row of a verification reads weights that a plain step does not. The core's table is for dense models.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from quoth._files import write_whole
from quoth.machine import cpu_name

if TYPE_CHECKING:
    from quoth.loaded import LoadedModel

__all__ = ["MIXTURE", "expected_costs", "forget_costs", "measured_costs", "save_costs"]

_log = logging.getLogger("quoth")
_VERSION = 1

MIXTURE: Final[Mapping[int, float]] = MappingProxyType(
    {1: 1.35, 2: 1.65, 3: 1.8, 4: 1.95, 6: 2.3, 8: 2.7, 12: 3.4, 16: 4.1, 32: 7.0}
)
"""Costs that are assumed for a mixture of experts: a little more than in `benches/records/moe-verify.toml`."""


def _identity(model: LoadedModel) -> dict[str, Any]:
    """What the costs depend on."""
    config = model.config
    shape = {k: config[k] for k in ("arch", "n_vocab", "n_layer", "n_embd", "n_head", "n_head_kv", "head_dim", "n_ff")}
    if config["n_expert"]:
        shape |= {k: config[k] for k in ("n_expert", "n_expert_used")}
    return {
        "version": _VERSION,
        "shape": shape,
        "weight_bytes": model._model.weight_bytes,
        "threads": model.threads,
        "kernels": model._model.kernels_detail,
        "kv_type": model.kv_type,
        "cpu": cpu_name(),
    }


def _path(model: LoadedModel, folder: Path | None) -> Path:
    from quoth.hub import cache_dir  # noqa: PLC0415  the hub's imports cost more than all others together

    key = json.dumps(_identity(model), sort_keys=True).encode()
    return (folder or cache_dir()) / "costs" / f"{hashlib.sha256(key).hexdigest()[:24]}.json"


def measured_costs(model: LoadedModel, folder: Path | None = None) -> tuple[Mapping[int, float], str] | None:
    """Costs by draft length, in plain steps, and where they come from; None if this combination was never measured."""
    path = _path(model, folder)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        costs = {int(k): float(cost) for k, cost in content["costs"].items()}
        if not costs or not all(1 <= k <= 4096 and 0.5 <= cost <= 10_000 for k, cost in costs.items()):
            raise ValueError("costs out of range")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        _log.warning("the measured costs in %s cannot be used: %s", path, error)
        return None
    return costs, f"measured on this machine, {content.get('date', 'undated')}"


def expected_costs(model: LoadedModel, folder: Path | None = None) -> tuple[Mapping[int, float], str] | None:
    """As `measured_costs`; for a mixture of experts that was never measured, what is assumed for one."""
    measured = measured_costs(model, folder)
    if measured is None and model.config["n_expert"]:
        return MIXTURE, "assumed for a mixture of experts, not measured on this machine"
    return measured


def save_costs(model: LoadedModel, costs: Mapping[int, float], date: str, folder: Path | None = None) -> Path:
    """Keep measured costs for later runs of this combination.

    Raises:
        OSError: The cache folder cannot be written.
    """
    path = _path(model, folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "costs": {str(k): round(cost, 4) for k, cost in sorted(costs.items())},
        "date": date,
        "of": _identity(model),
    }
    write_whole(path, json.dumps(content, indent=1))
    return path


def forget_costs(model: LoadedModel, folder: Path | None = None) -> None:
    """Remove what was measured for this combination."""
    _path(model, folder).unlink(missing_ok=True)
