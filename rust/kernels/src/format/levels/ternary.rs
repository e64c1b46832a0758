//! TQ1_0: `w = d·(digit − 1)`, digits 0 to 2, five a byte; TQ2_0: `w = d·(pair − 1)`, bit pairs. There are no sub-blocks: all scales are 1.

use super::{Decoded, LowLevels, repack};
use crate::format::{Repack, half_at};

/// 32 bytes for five runs of 32 weights, 16 bytes for five runs of 16, 4 bytes for four runs of four; d.
pub(crate) const TQ1_0: Repack = repack!(LowLevels, 54, read_1);
/// For each half of 128 weights 32 bytes, whose pairs serve its four runs of 32; d.
pub(crate) const TQ2_0: Repack = repack!(LowLevels, 66, read_2);

/// Where the levels −1, 0, 1 and 2 are in the table. Writers never make a 2, but two bits can say it.
const NIBBLES: [u8; 4] = [5, 3, 13, 7];

/// A byte is a fraction of 256: its digits to the base 3 appear one after another above the point when it is multiplied by 3, modulo 256.
fn read_1(file: &[u8]) -> Decoded {
    const POWERS: [u8; 5] = [1, 3, 9, 27, 81];
    let nibbles = std::array::from_fn(|i| {
        let (byte, run) = match i {
            0..160 => (i % 32, i / 32),
            160..240 => (32 + (i - 160) % 16, (i - 160) / 16),
            _ => (48 + (i - 240) % 4, (i - 240) / 4),
        };
        let fraction = u16::from(file[byte].wrapping_mul(POWERS[run]));
        NIBBLES[usize::from((fraction * 3) >> 8)]
    });
    Decoded { nibbles, scales: [1; 16], d: half_at(file, 52) }
}

fn read_2(file: &[u8]) -> Decoded {
    let pair = |i: usize| file[32 * (i / 128) + i % 32] >> (2 * (i % 128 / 32)) & 3;
    let nibbles = std::array::from_fn(|i| NIBBLES[usize::from(pair(i))]);
    Decoded { nibbles, scales: [1; 16], d: half_at(file, 64) }
}
