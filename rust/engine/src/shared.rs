//! A buffer that the threads of one job write in disjoint parts.
//!
//! Rust cannot see that workers take different rows or columns, so this type carries that promise: each `unsafe` call names the reason why its part is its
//! own. Everything else about the buffer stays checked.

use std::marker::PhantomData;
use std::ops::Range;

/// A mutable slice that may be handed to several threads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shared<'a, T> {
    data: *mut T,
    len: usize,
    borrow: PhantomData<&'a mut [T]>,
}

// SAFETY: a `Shared` only lends parts through unsafe calls whose makers promise that parts in use at once do not overlap, so threads hold either disjoint
// exclusive parts or shared ones; that is sound for elements that may be sent and shared.
unsafe impl<T: Send + Sync> Send for Shared<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for Shared<'_, T> {}

impl<'a, T> Shared<'a, T> {
    /// Takes the slice for as long as this lives.
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        Shared { data: slice.as_mut_ptr(), len: slice.len(), borrow: PhantomData }
    }

    /// Elements in all.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The address of the first element.
    pub(crate) fn as_mut_ptr(&self) -> *mut T {
        self.data
    }

    /// A part to write.
    ///
    /// # Panics
    /// If the range is outside the slice.
    ///
    /// # Safety
    /// Until the part is given up, no other thread may use any element of it.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn part(&self, range: Range<usize>) -> &'a mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {}", self.len);
        // SAFETY: inside the slice that was lent to `new` for 'a; exclusive by the caller.
        unsafe { std::slice::from_raw_parts_mut(self.data.add(range.start), range.len()) }
    }

    /// A part to read.
    ///
    /// # Panics
    /// If the range is outside the slice.
    ///
    /// # Safety
    /// Until the part is given up, no thread may write any element of it.
    pub(crate) unsafe fn read(&self, range: Range<usize>) -> &'a [T] {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {}", self.len);
        // SAFETY: inside the slice that was lent to `new` for 'a; nobody writes it, by the caller.
        unsafe { std::slice::from_raw_parts(self.data.add(range.start), range.len()) }
    }
}
