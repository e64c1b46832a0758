#!/usr/bin/env python3
"""Write the grids of the codebook formats: `rust/kernels/src/format/levels/grids.rs`.

The grids are constants of the file formats; their values are taken from the Python package `gguf` (MIT). A point is
stored as a 16-bit number: eight two-bit indices into the format's magnitudes, or four indices of four bits; the first
weight's lowest. Needs `numpy` and `gguf`; run `cargo fmt` afterwards.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from gguf import quants

OUT = Path(__file__).parent.parent / "rust" / "kernels" / "src" / "format" / "levels" / "grids.rs"
HEAD = """//! The points of the codebook formats' grids. Constants of the file formats, written by `tools/make_grids.py`
//! from the Python package `gguf` (MIT).
//!
//! A point of eight weights has two bits a weight, a point of four weights four: the index of a magnitude, the first
//! weight's lowest.
"""
GRIDS: dict[str, tuple[str, Any]] = {
    "IQ2_XXS": ("eight weights, magnitudes 8, 25, 43", quants.IQ2_XXS),
    "IQ2_XS": ("eight weights, magnitudes 8, 25, 43", quants.IQ2_XS),
    "IQ2_S": ("eight weights, magnitudes 8, 25, 43", quants.IQ2_S),
    "IQ3_XXS": ("four weights, magnitudes 4, 12, 20, 28, 36, 44, 52, 62", quants.IQ3_XXS),
    "IQ3_S": ("four weights, magnitudes 1, 3, … 15", quants.IQ3_S),
    "IQ1": ("eight weights, numbers −1, 0, 1", quants.IQ1_S),
}


def main() -> None:
    parts = [HEAD]
    for name, (what, kind) in GRIDS.items():
        kind.init_grid()
        points = kind.grid.reshape(kind.grid_shape)
        indices = np.searchsorted(kind.grid_map, points)
        bits = 16 // indices.shape[1]
        words = (indices << (bits * np.arange(indices.shape[1]))).sum(axis=1)
        rows = "".join(f"{word:#06x}, " for word in words)
        parts.append(f"\n/// {what}.\npub(super) static {name}: [u16; {len(words)}] = [{rows}];\n")
    OUT.write_text("".join(parts))


if __name__ == "__main__":
    main()
