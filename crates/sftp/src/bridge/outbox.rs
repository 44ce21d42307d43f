//! Outgoing packets.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

use crate::data::Data;

/// The size below which data is copied after its head, because a separate piece would cost more.
const COPIED: usize = 1024;

/// Packets in pieces: heads that are written here, and data in the slices in which it came.
#[derive(Default)]
pub(super) struct Outbox {
    pieces: VecDeque<Bytes>,
    /// The heads after `pieces`.
    heads: BytesMut,
    len: usize,
}

impl Outbox {
    /// Returns the buffer for heads.
    pub(super) fn buffer(&mut self) -> &mut BytesMut {
        &mut self.heads
    }

    pub(super) fn push(&mut self, data: Data) {
        for chunk in data.into_chunks() {
            if chunk.len() < COPIED {
                self.heads.extend_from_slice(&chunk);
            } else {
                self.flush();
                self.len += chunk.len();
                self.pieces.push_back(chunk);
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len + self.heads.len()
    }

    pub(super) fn take(&mut self, pieces: &mut Vec<Bytes>) {
        self.flush();
        self.len = 0;
        pieces.extend(self.pieces.drain(..));
    }

    fn flush(&mut self) {
        if !self.heads.is_empty() {
            self.len += self.heads.len();
            self.pieces.push_back(self.heads.split().freeze());
        }
    }
}
