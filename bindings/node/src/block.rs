//! Memory for what goes to JavaScript.
//!
//! V8 gives chunks back when it has collected garbage: after some 32 MiB of them. If they were freed then, each megabyte would
//! need fresh pages, whose faults cost 0.3 to 0.45 ms of CPU time (measured in a virtual machine): as much as all else that
//! is done for it. So whole blocks are filled again.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use napi::bindgen_prelude::{BufferSlice, Env};

use crate::runtime;

/// Blocks that nobody has needed for so long are freed.
const IDLE_RELEASE: Duration = Duration::from_secs(1);

/// Blocks kept for another round: what one collection of garbage gives back, of chunks that fill theirs by half or more.
const KEPT: usize = 256;

/// Less than this is copied into memory of V8's own. Lending it out takes a finalizer and an event of the loop, about 3 µs.
const LENT: usize = 16 * 1024;

static FREE: Mutex<Free> = Mutex::new(Free {
    blocks: Vec::new(),
    used: false,
    watched: false,
});

/// Blocks to be filled again, of the whole process.
struct Free {
    blocks: Vec<Vec<u8>>,
    /// One was taken since somebody last looked.
    used: bool,
    /// Somebody looks.
    watched: bool,
}

impl Free {
    /// Guards the list, for as long as pushing or popping takes.
    fn lock() -> MutexGuard<'static, Self> {
        FREE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Frees what is not used any more.
    async fn watch() {
        loop {
            tokio::time::sleep(IDLE_RELEASE).await;
            let mut free = Self::lock();
            if !std::mem::replace(&mut free.used, false) {
                free.watched = false;
                let blocks = std::mem::take(&mut free.blocks);
                drop(free);
                return drop(blocks);
            }
        }
    }
}

/// A piece of what goes to JavaScript.
#[derive(Default)]
pub(crate) struct Block(Vec<u8>);

impl Block {
    /// A whole one: enough that a megabyte is four chunks, little enough that a stream of some MB/s fills most of it between
    /// two wake-ups. Smaller ones have the size of what they hold.
    pub(crate) const SIZE: usize = 256 * 1024;

    /// Room for so many bytes, or for as many as a block takes.
    fn with_room(bytes: usize) -> Self {
        if bytes <= Self::SIZE / 2 {
            return Self(Vec::with_capacity(bytes));
        }
        let mut free = Free::lock();
        free.used = true;
        let block = free.blocks.pop();
        drop(free);
        Self(block.unwrap_or_else(|| Vec::with_capacity(Self::SIZE)))
    }

    fn has_room(&self) -> bool {
        self.0.capacity() < Self::SIZE || self.0.len() < self.0.capacity()
    }

    /// Takes what fits, and returns the rest. Smaller ones grow.
    fn fill<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let wanted = self.0.len() + bytes.len();
        if wanted > self.0.capacity() && self.0.capacity() < Self::SIZE {
            let mut larger = Self::with_room(wanted.max(2 * self.0.len()));
            larger.0.extend_from_slice(&self.0);
            *self = larger;
        }
        let room = self.0.capacity() - self.0.len();
        let (fitting, rest) = bytes.split_at(bytes.len().min(room));
        self.0.extend_from_slice(fitting);
        rest
    }

    /// Gives it to JavaScript.
    ///
    /// # Errors
    /// The environment is ending.
    pub(crate) fn into_buffer(mut self, env: &Env) -> napi::Result<BufferSlice<'_>> {
        if self.0.len() < LENT {
            return BufferSlice::copy_from(env, &self.0);
        }
        let (data, len) = (self.0.as_mut_ptr(), self.0.len());
        let lent = Arc::new(Mutex::new(Some(Lent::new(self))));
        let finalize = |_: Env, lent: Arc<Mutex<Option<Lent>>>| Lent::give_back(&lent);
        // SAFETY: `data` is the start of `len` initialized bytes, which the block owns until it is dropped, and moving a Vec
        // does not move them. It is dropped by the finalizer, when JavaScript cannot reach them any more, or below, when
        // JavaScript was not given them; nothing touches them before.
        let buffer = unsafe { BufferSlice::from_external(env, data, len, lent.clone(), finalize) };
        // An environment that is being terminated takes nothing, and napi then forgets what it was to finalize.
        buffer.inspect_err(|_| Lent::give_back(&lent))
    }
}

/// A block that JavaScript has.
struct Lent {
    _block: Block,
}

/// The number of lent blocks, in all environments.
static LENT_BLOCKS: AtomicU32 = AtomicU32::new(0);

impl Lent {
    fn new(block: Block) -> Self {
        LENT_BLOCKS.fetch_add(1, Ordering::Relaxed);
        Self { _block: block }
    }

    fn give_back(lent: &Mutex<Option<Self>>) {
        let block = lent.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(block);
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        LENT_BLOCKS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Returns the number of blocks that JavaScript has, in all environments.
pub(crate) fn lent_blocks() -> u32 {
    LENT_BLOCKS.load(Ordering::Relaxed)
}

impl From<Vec<u8>> for Block {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if self.0.capacity() != Self::SIZE {
            return;
        }
        let mut free = Free::lock();
        if free.blocks.len() == KEPT {
            return;
        }
        let mut bytes = std::mem::take(&mut self.0);
        bytes.clear();
        free.blocks.push(bytes);
        if !free.watched
            && let Ok(runtime) = runtime::runtime()
        {
            free.watched = true;
            runtime.spawn(Free::watch());
        }
    }
}

/// Bytes in a row of blocks.
#[derive(Default)]
pub(crate) struct Blocks {
    blocks: Vec<Block>,
    len: usize,
}

impl Blocks {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Appends `pieces`; `expected`: how much is likely to come together.
    pub(crate) fn append<'a>(&mut self, pieces: impl Iterator<Item = &'a [u8]>, expected: usize) {
        for mut piece in pieces {
            self.len += piece.len();
            while !piece.is_empty() {
                match self.blocks.last_mut() {
                    Some(block) if block.has_room() => piece = block.fill(piece),
                    _ => self.blocks.push(Block::with_room(expected.max(piece.len()))),
                }
            }
        }
    }

    /// Takes the last block away, if there is room in it.
    pub(crate) fn split_off_open(&mut self) -> Self {
        let mut tail = Self::default();
        if self.blocks.last().is_some_and(Block::has_room) {
            tail.blocks.extend(self.blocks.pop());
            tail.len = tail.blocks[0].0.len();
            self.len -= tail.len;
        }
        tail
    }

    /// Appends blocks behind the last.
    pub(crate) fn extend(&mut self, more: Self) {
        self.len += more.len;
        self.blocks.extend(more.blocks);
    }

    /// Takes all there is.
    pub(crate) fn take(&mut self) -> Vec<Block> {
        self.len = 0;
        std::mem::take(&mut self.blocks)
    }
}
