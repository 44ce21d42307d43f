//! One direction of a connection through a relay, with its delay and bandwidth.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::Notify;

use super::line::CHUNK;
use super::settings::Ending;

/// The maximum data in flight in one direction of one connection. Beyond it the relay stops reading, like a path with a
/// bandwidth × delay of that size: 1.3 GB/s over 100 ms.
const IN_FLIGHT_LIMIT: usize = 128 * 1024 * 1024;

/// The data in flight in one direction of one connection.
#[derive(Default)]
pub(super) struct Pipe {
    queue: Mutex<Queue>,
    pushed: Notify,
    delivered: Notify,
}

#[derive(Default)]
struct Queue {
    items: VecDeque<(Instant, Item)>,
    bytes: usize,
    spare: Vec<Vec<u8>>,
}

pub(super) enum Item {
    Data(Vec<u8>),
    End(Ending),
}

impl Pipe {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn push(&self, due: Instant, item: Item) {
        let mut queue = self.lock();
        let item = match item {
            Item::Data(mut chunk) => {
                queue.bytes += chunk.len();
                // A keystroke must not occupy the memory of a bulk chunk while it is in flight.
                if chunk.len() < CHUNK / 4 {
                    let small = chunk.as_slice().into();
                    chunk.clear();
                    queue.spare.push(chunk);
                    Item::Data(small)
                } else {
                    Item::Data(chunk)
                }
            }
            end @ Item::End(_) => end,
        };
        queue.items.push_back((due, item));
        drop(queue);
        self.pushed.notify_one();
    }

    pub(super) async fn pop(&self) -> (Instant, Item) {
        loop {
            if let Some(item) = self.lock().items.pop_front() {
                return item;
            }
            self.pushed.notified().await;
        }
    }

    pub(super) async fn wait_for_room(&self) {
        while self.lock().bytes >= IN_FLIGHT_LIMIT {
            self.delivered.notified().await;
        }
    }

    pub(super) fn deliver(&self, chunk: Vec<u8>) {
        self.lock().bytes -= chunk.len();
        self.give_back(chunk);
        self.delivered.notify_one();
    }

    pub(super) fn spare_buffer(&self) -> Vec<u8> {
        self.lock()
            .spare
            .pop()
            .unwrap_or_else(|| Vec::with_capacity(CHUNK))
    }

    pub(super) fn give_back(&self, mut chunk: Vec<u8>) {
        const SPARES: usize = 4;
        chunk.clear();
        let mut queue = self.lock();
        if chunk.capacity() >= CHUNK && queue.spare.len() < SPARES {
            queue.spare.push(chunk);
        }
    }
}
