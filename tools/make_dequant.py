#!/usr/bin/env python3
"""Write random blocks of GGUF tensor types, and what the package `gguf` says that they stand for.

A file `TYPE.bin` holds blocks of random bytes, then their values as little-endian f32. Any bytes are blocks, so scales
that are infinite or no numbers occur too. The kernels' test `blocks_stand_for_the_golden_values` reads such files:
those in `tests/data/dequant`, or those in the folder that `QUOTH_DEQUANT` names. So many more blocks are compared by

    python tools/make_dequant.py --blocks 100000 --out DIR
    QUOTH_DEQUANT=DIR cargo test -p quoth-kernels blocks_stand_for

Cost: 100,000 blocks of all types are 2.3 GB. Needs `numpy` and `gguf`.
"""

from __future__ import annotations

import argparse
import zlib
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

TYPES = (
    *("BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS"),
    *("MXFP4", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S", "IQ1_M", "TQ1_0", "TQ2_0", "NVFP4"),
)


def write(out: Path, name: str, blocks: int) -> None:
    """Write one type's blocks and values."""
    kind = GGMLQuantizationType[name]
    rng = np.random.Generator(np.random.SFC64(zlib.crc32(name.encode())))
    raw = np.frombuffer(rng.bytes(blocks * GGML_QUANT_SIZES[kind][1]), np.uint8).reshape(blocks, -1)
    with np.errstate(invalid="ignore", over="ignore"):
        values = quants.dequantize(raw, kind)
    with open(out / f"{name}.bin", "wb") as file:
        file.write(raw.tobytes())
        file.write(values.astype("<f4").tobytes())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("types", nargs="*", default=TYPES, metavar="TYPE", help="tensor types; all if none is named")
    parser.add_argument("--blocks", type=int, default=4, help="blocks of each type")
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for name in args.types:
        write(args.out, name, args.blocks)


if __name__ == "__main__":
    main()
