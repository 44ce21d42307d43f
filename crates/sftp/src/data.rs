//! [`Data`]: a piece of a file, in slices of receive buffers.

use bytes::{Bytes, BytesMut};

/// Bytes of a file, as a row of reference-counted slices. A reply of 255 KiB comes in eight or more channel packets;
/// joining them would cost a copy, which writev(2) saves.
#[derive(Debug, Clone, Default)]
pub struct Data {
    chunks: Vec<Bytes>,
    len: usize,
}

impl Data {
    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the slices, in order, none empty.
    pub fn chunks(&self) -> &[Bytes] {
        &self.chunks
    }

    /// Returns the slices, in order, none empty.
    pub fn into_chunks(self) -> Vec<Bytes> {
        self.chunks
    }

    /// Returns all bytes in one piece. Copies them unless they are one slice.
    pub fn into_bytes(mut self) -> Bytes {
        if self.chunks.len() == 1 {
            return self.chunks.remove(0);
        }
        let mut whole = BytesMut::with_capacity(self.len);
        for chunk in &self.chunks {
            whole.extend_from_slice(chunk);
        }
        whole.freeze()
    }

    /// Appends a slice.
    pub fn push(&mut self, chunk: Bytes) {
        if !chunk.is_empty() {
            self.len += chunk.len();
            self.chunks.push(chunk);
        }
    }

    /// Returns up to `len` bytes from `start` on, as slices of the same memory.
    pub(crate) fn part(&self, start: usize, len: usize) -> Self {
        let mut part = Self::default();
        let mut skip = start;
        for chunk in &self.chunks {
            let from = skip.min(chunk.len());
            skip -= from;
            let n = (chunk.len() - from).min(len - part.len);
            part.push(chunk.slice(from..from + n));
        }
        part
    }

    /// Cuts to the first `len` bytes.
    pub fn truncate(&mut self, len: usize) {
        let mut excess = self.len.saturating_sub(len);
        self.len -= excess;
        while let Some(last) = self.chunks.last_mut().filter(|_| excess > 0) {
            if last.len() > excess {
                last.truncate(last.len() - excess);
                return;
            }
            excess -= last.len();
            self.chunks.pop();
        }
    }
}

impl From<Bytes> for Data {
    fn from(bytes: Bytes) -> Self {
        let mut data = Self::default();
        data.push(bytes);
        data
    }
}

/// Compares the bytes, however they are sliced.
impl PartialEq for Data {
    fn eq(&self, other: &Self) -> bool {
        let bytes = |data: &Self| data.chunks.clone().into_iter().flatten();
        self.len == other.len && bytes(self).eq(bytes(other))
    }
}

impl Eq for Data {}

/// Received bytes that do not make a whole packet yet. Small slices are copied together.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    chunks: std::collections::VecDeque<Bytes>,
    small: BytesMut,
    len: usize,
}

/// The size below which a slice is copied: a server that sends single bytes must not make each pin a receive buffer.
const SMALL: usize = 1024;

impl Inbox {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn push(&mut self, bytes: Bytes) {
        self.len += bytes.len();
        if bytes.len() < SMALL && self.len > bytes.len() {
            self.small.extend_from_slice(&bytes);
        } else if !bytes.is_empty() {
            self.flush();
            self.chunks.push_back(bytes);
        }
    }

    /// Takes the first `n` bytes as slices; the caller has checked that they are there.
    pub(crate) fn take(&mut self, n: usize) -> Data {
        debug_assert!(n <= self.len);
        self.flush();
        let mut data = Data::default();
        while let Some(chunk) = self.chunks.front_mut().filter(|_| data.len() < n) {
            let part = chunk.split_to(chunk.len().min(n - data.len()));
            self.len -= part.len();
            data.push(part);
            if chunk.is_empty() {
                self.chunks.pop_front();
            }
        }
        data
    }

    /// Takes the first `N` bytes; the caller has checked that they are there.
    pub(crate) fn take_array<const N: usize>(&mut self) -> [u8; N] {
        debug_assert!(N <= self.len);
        self.flush();
        let mut array = [0; N];
        let mut filled = 0;
        while let Some(chunk) = self.chunks.front_mut().filter(|_| filled < N) {
            let n = chunk.len().min(N - filled);
            array[filled..filled + n].copy_from_slice(&chunk.split_to(n));
            filled += n;
            self.len -= n;
            if chunk.is_empty() {
                self.chunks.pop_front();
            }
        }
        array
    }

    fn flush(&mut self) {
        if !self.small.is_empty() {
            self.chunks.push_back(self.small.split().freeze());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bytes_leave_as_they_came(
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..3000), 0..20),
            take in 1..5000usize,
        ) {
            let mut inbox = Inbox::default();
            let mut out = Vec::new();
            for piece in &pieces {
                inbox.push(Bytes::copy_from_slice(piece));
                while inbox.len() >= take + 4 {
                    out.extend_from_slice(&inbox.take_array::<4>());
                    let data = inbox.take(take);
                    prop_assert_eq!(data.len(), take);
                    out.extend_from_slice(&data.into_bytes());
                }
            }
            out.extend_from_slice(&inbox.take(inbox.len()).into_bytes());
            prop_assert_eq!(out, pieces.concat());
        }

        #[test]
        fn truncation_keeps_the_front(
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..9), 0..9),
            len in 0..80usize,
        ) {
            let mut data = Data::default();
            for piece in &pieces {
                data.push(Bytes::copy_from_slice(piece));
            }
            data.truncate(len);
            let whole = pieces.concat();
            let front = &whole[..len.min(whole.len())];
            prop_assert_eq!(data.len(), front.len());
            prop_assert_eq!(&data.into_bytes()[..], front);
        }
    }

    #[test]
    fn single_bytes_do_not_pin_the_buffers_they_came_in() {
        let mut inbox = Inbox::default();
        inbox.push(Bytes::from(vec![0; 2000]));
        for _ in 0..1000 {
            inbox.push(Bytes::from_static(b"x"));
        }
        inbox.flush();
        assert_eq!(inbox.chunks.len(), 2);
    }
}
