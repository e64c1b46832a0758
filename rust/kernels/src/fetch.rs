//! Asking for memory ahead of its use. Changes no result, only when the bytes arrive.

/// Bytes that arrive together.
const LINE: usize = 64;

/// Asks for every line of `bytes`. Where the target has no such instruction that is stable, nothing happens.
#[inline(always)]
pub(crate) fn fetch(bytes: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    for line in bytes.chunks(LINE) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads nothing that the program can see and cannot fault; SSE is part of the target.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (bytes, LINE);
}
