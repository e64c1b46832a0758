//! Rolling acceptance: what became of the last drafted tokens of one source.
//!
//! In: settled drafts. Out: the acceptance over the window, to `cascade`, which mutes on it.
//!
//! W1  One bit a drafted token, newest first; the window holds at most [`MAX_WINDOW`].
//! W2  In a draft the accepted tokens come first, the rejected ones after them.

/// The longest window, in drafted tokens.
pub const MAX_WINDOW: usize = 64;

/// Accepted or not, for the last drafted tokens.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window {
    bits: u64,
    len: usize,
    size: usize,
}

impl Window {
    /// An empty window of `size` tokens, 1 to `MAX_WINDOW`.
    pub(crate) fn new(size: usize) -> Self {
        Self { bits: 0, len: 0, size: size.clamp(1, MAX_WINDOW) }
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::new(self.size);
    }

    /// Adds a draft of which the first `accepted` of `drafted` tokens were committed.
    pub(crate) fn record(&mut self, accepted: usize, drafted: usize) {
        // Only the last `size` tokens can matter.
        for i in drafted.saturating_sub(self.size)..drafted {
            self.bits = self.bits << 1 | u64::from(i < accepted);
        }
        self.bits &= u64::MAX >> (MAX_WINDOW - self.size);
        self.len = self.size.min(self.len + drafted);
    }

    /// Accepted tokens among the last `len`, once the window is full.
    pub(crate) fn full(&self) -> Option<(usize, usize)> {
        (self.len == self.size).then_some((self.bits.count_ones() as usize, self.len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_window_equals_a_list_of_flags(
            size in 1usize..=MAX_WINDOW,
            drafts in prop::collection::vec((0usize..100, 0usize..100), 0..40),
        ) {
            let mut window = Window::new(size);
            let mut flags = Vec::new();
            for (a, b) in drafts {
                let (accepted, drafted) = (a.min(b), a.max(b));
                window.record(accepted, drafted);
                flags.extend((0..drafted).map(|i| i < accepted));
                let last = &flags[flags.len().saturating_sub(size)..];
                let expected = (last.len() == size).then(|| (last.iter().filter(|&&flag| flag).count(), size));
                prop_assert_eq!(window.full(), expected);
            }
            window.clear();
            prop_assert_eq!(window.full(), None);
        }
    }
}
