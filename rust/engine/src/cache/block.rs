//! A block of the cache: memory that several caches may hold, and the meter that counts what a model's caches hold.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::error::Result;
use crate::model::load::Arena;

/// Counts the blocks that exist, of all caches of a model together.
#[derive(Debug, Default)]
pub struct Meter {
    blocks: AtomicUsize,
    bytes: AtomicUsize,
}

impl Meter {
    /// Blocks that exist now.
    pub fn blocks(&self) -> usize {
        self.blocks.load(Ordering::Relaxed)
    }

    /// Their bytes. A block that several caches share counts once.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// Chunks of [`CHUNK`](quoth_kernels::attend::CHUNK) positions, one for each key/value head of each layer of a group.
#[derive(Debug)]
pub(crate) struct Block {
    memory: Arena,
    meter: Arc<Meter>,
}

impl Block {
    /// A block of zeros.
    ///
    /// # Errors
    /// Memory ran out.
    pub(crate) fn new(bytes: usize, meter: &Arc<Meter>) -> Result<Block> {
        let memory = Arena::new(bytes, "the key/value cache")?;
        meter.blocks.fetch_add(1, Ordering::Relaxed);
        meter.bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(Block { memory, meter: meter.clone() })
    }

    /// A copy, byte for byte.
    ///
    /// # Errors
    /// Memory ran out.
    pub(crate) fn copy(&self, meter: &Arc<Meter>) -> Result<Block> {
        let mut copy = Block::new(self.bytes().len(), meter)?;
        copy.bytes_mut().copy_from_slice(self.bytes());
        Ok(copy)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.memory.bytes()
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        self.memory.bytes_mut()
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.meter.blocks.fetch_sub(1, Ordering::Relaxed);
        self.meter.bytes.fetch_sub(self.bytes().len(), Ordering::Relaxed);
    }
}
