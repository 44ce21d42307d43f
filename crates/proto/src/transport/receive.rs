//! The receive buffer: large blocks that the socket fills, packets are opened in, and channels take slices of.

use bytes::BytesMut;

/// The blocks kept for reuse. A block is free once its last slice has been consumed; with a consumer that keeps up, two
/// blocks rotate. The kernel provides new blocks page by page: clearing and mapping them took a third of all
/// instructions of a bulk download.
const KEPT: usize = 8;
/// The step of block sizes, so that the unread rest before the new room does not give each block another size.
const STEP: usize = 64 * 1024;

#[derive(Default)]
pub(crate) struct ReceiveBuffer {
    pub(crate) unread: BytesMut,
    /// Full blocks, the last used last. The handles are empty: channels own the parts in use.
    full: Vec<BytesMut>,
}

impl ReceiveBuffer {
    /// Makes room for `room` bytes after the unread ones.
    pub(crate) fn reserve(&mut self, room: usize) {
        if self.unread.capacity() - self.unread.len() >= room || self.unread.try_reclaim(room) {
            return;
        }
        let (needed, bulk) = (self.unread.len() + room, room >= STEP);
        let size = if bulk {
            needed.next_multiple_of(STEP)
        } else {
            needed
        };
        let free = self.full.iter_mut().rposition(|block| block.try_reclaim(size));
        let mut block = free.map_or_else(|| BytesMut::with_capacity(size), |at| self.full.remove(at));
        block.extend_from_slice(&self.unread);
        let mut full = std::mem::replace(&mut self.unread, block);
        if bulk {
            full.clear();
            if self.full.len() == KEPT {
                self.full.remove(0);
            }
            self.full.push(full);
        }
    }

    /// Releases all memory without unread data.
    pub(crate) fn release(&mut self) {
        self.full = Vec::new();
        if self.unread.is_empty() {
            self.unread = BytesMut::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_that_were_consumed_are_filled_again() {
        let mut buffer = ReceiveBuffer::default();
        let mut blocks = std::collections::HashSet::new();
        for round in 0..100u8 {
            buffer.reserve(4 * STEP);
            blocks.insert(buffer.unread.as_ptr());
            buffer.unread.resize(4 * STEP - 1, round);
            let taken = buffer.unread.split_to(3 * STEP).freeze();
            assert!(taken.iter().all(|byte| *byte == round));
            buffer.unread.clear();
        }
        assert!(blocks.len() <= 2, "{} blocks were used", blocks.len());
    }

    #[test]
    fn what_a_consumer_keeps_is_not_written_over() {
        let mut buffer = ReceiveBuffer::default();
        let mut kept = Vec::new();
        for round in 0..50u8 {
            buffer.reserve(2 * STEP);
            buffer.unread.extend_from_slice(&[round; STEP]);
            kept.push(buffer.unread.split_to(STEP - 10).freeze());
            assert_eq!(buffer.unread[..], [round; 10]);
            buffer.reserve(2 * STEP);
            assert_eq!(buffer.unread[..], [round; 10]);
            buffer.unread.clear();
        }
        assert!(buffer.full.len() <= KEPT);
        for (round, slice) in kept.iter().enumerate() {
            assert!(slice.iter().all(|byte| usize::from(*byte) == round));
        }
    }

    #[test]
    fn nothing_is_kept_after_a_release() {
        let mut buffer = ReceiveBuffer::default();
        buffer.reserve(STEP);
        buffer.unread.extend_from_slice(b"rest");
        buffer.release();
        assert_eq!(&buffer.unread[..], b"rest");
        buffer.unread.clear();
        buffer.release();
        assert_eq!((buffer.unread.capacity(), buffer.full.capacity()), (0, 0));
    }
}
