//! The float environment (N6): every thread that computes runs with the default rounding and no flush to zero, whatever the host has set.

/// Holds the default float environment while it lives, and puts the host's back when it is dropped.
#[derive(Debug)]
pub struct DefaultFloats {
    host: u32,
    // The environment belongs to a thread.
    _thread: std::marker::PhantomData<*const ()>,
}

#[cfg(target_arch = "x86_64")]
mod control {
    /// All exceptions masked, round to nearest, no flush to zero, denormals kept: the reset value of MXCSR.
    pub(super) const DEFAULT: u32 = 0x1f80;

    pub(super) fn read() -> u32 {
        let mut value = 0u32;
        // SAFETY: `stmxcsr` writes the four bytes of `value`; every x86-64 CPU has it.
        unsafe { std::arch::asm!("stmxcsr [{}]", in(reg) &raw mut value, options(nostack, preserves_flags)) };
        value
    }

    pub(super) fn write(value: u32) {
        // SAFETY: `ldmxcsr` reads the four bytes of `value`; the value is the reset value or one that was read before, so no reserved bit is set.
        unsafe {
            std::arch::asm!("ldmxcsr [{}]", in(reg) &raw const value, options(nostack, preserves_flags, readonly))
        };
    }
}

#[cfg(target_arch = "aarch64")]
mod control {
    /// Round to nearest, no flush to zero, no default NaN.
    pub(super) const DEFAULT: u32 = 0;

    pub(super) fn read() -> u32 {
        let value: u64;
        // SAFETY: reading FPCR has no effect.
        unsafe { std::arch::asm!("mrs {}, fpcr", out(reg) value, options(nomem, nostack, preserves_flags)) };
        value as u32
    }

    pub(super) fn write(value: u32) {
        // SAFETY: the value is the default or one that was read before.
        unsafe { std::arch::asm!("msr fpcr, {}", in(reg) u64::from(value), options(nomem, nostack, preserves_flags)) };
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod control {
    pub(super) const DEFAULT: u32 = 0;

    pub(super) fn read() -> u32 {
        DEFAULT
    }

    pub(super) fn write(_value: u32) {}
}

impl DefaultFloats {
    /// Sets the default environment on this thread.
    pub fn set() -> Self {
        let host = control::read();
        control::write(control::DEFAULT);
        DefaultFloats { host, _thread: std::marker::PhantomData }
    }
}

impl Drop for DefaultFloats {
    fn drop(&mut self) {
        control::write(self.host);
    }
}

#[cfg(all(test, any(target_arch = "x86_64", target_arch = "aarch64")))]
mod tests {
    use super::*;

    /// The bits of the control register that flush to zero.
    const FLUSH: u32 = if cfg!(target_arch = "x86_64") { 0x8040 } else { 1 << 24 };

    #[test]
    fn a_host_that_flushes_to_zero_is_overruled_and_restored() {
        let before = control::read();
        control::write(control::DEFAULT | FLUSH);
        let tiny = std::hint::black_box(f32::MIN_POSITIVE);
        assert_eq!(tiny * 0.5, 0.0, "the host flushes");
        {
            let _floats = DefaultFloats::set();
            assert!(std::hint::black_box(tiny) * 0.5 > 0.0, "we do not");
        }
        assert_eq!(control::read() & FLUSH, FLUSH, "the host's setting is back");
        control::write(before);
    }
}
