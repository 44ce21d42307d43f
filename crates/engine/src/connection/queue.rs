//! A queue between two tasks that takes almost no memory while empty. tokio's starts with a block of 32 values: 1.5 KB
//! per stream of a channel and 3.7 KB for the operations of a connection, most of which are idle most of the time.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker, ready};

use bytes::{Bytes, BytesMut};
use tokio::task::coop::poll_proceed;

/// The bytes of capacity that an empty queue keeps.
const KEPT: usize = 1024;

/// Creates both ends of an unbounded queue.
pub fn queue<T>() -> (Sender<T>, Receiver<T>) {
    let state = Arc::new(Mutex::new(State {
        values: VecDeque::new(),
        reader: None,
        over: false,
    }));
    (Sender(Arc::new(Inlet(state.clone()))), Receiver(state))
}

struct State<T> {
    values: VecDeque<T>,
    /// The waiting receiver.
    reader: Option<Waker>,
    /// One end is gone.
    over: bool,
}

/// Locks the values, while one is pushed or some are popped.
fn lock<T>(state: &Mutex<State<T>>) -> MutexGuard<'_, State<T>> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The sending end. Dropping the last clone ends the queue after its values.
pub struct Sender<T>(Arc<Inlet<T>>);

/// A sender that does not keep the queue from ending.
pub(crate) struct WeakSender<T>(Weak<Inlet<T>>);

struct Inlet<T>(Arc<Mutex<State<T>>>);

impl<T> Sender<T> {
    /// Appends a value.
    ///
    /// # Errors
    /// Returns the value if the receiver is gone.
    pub fn send(&self, value: T) -> Result<(), T> {
        let mut state = lock(&self.0.0);
        if state.over {
            return Err(value);
        }
        state.values.push_back(value);
        let reader = state.reader.take();
        drop(state);
        reader.into_iter().for_each(Waker::wake);
        Ok(())
    }

    /// Returns whether the receiver is gone.
    pub fn is_closed(&self) -> bool {
        lock(&self.0.0).over
    }

    pub(crate) fn downgrade(&self) -> WeakSender<T> {
        WeakSender(Arc::downgrade(&self.0))
    }
}

/// Pieces of data smaller than this are joined.
const CRUMB: usize = 1024;

impl Sender<Bytes> {
    /// Appends data, to the last piece if both are small: as separate pieces, a window of single bytes would take fifty
    /// times as much memory.
    ///
    /// # Errors
    /// Returns the data if the receiver is gone.
    pub(crate) fn send_gathered(&self, data: Bytes) -> Result<(), Bytes> {
        if data.len() < CRUMB {
            let mut state = lock(&self.0.0);
            if !state.over
                && let Some(last) = state.values.back_mut().filter(|last| last.len() < CRUMB)
            {
                let mut joined = match std::mem::take(last).try_into_mut() {
                    Ok(last) => last,
                    Err(last) => BytesMut::from(&last[..]),
                };
                joined.extend_from_slice(&data);
                *last = joined.freeze();
                // The receiver was woken for the earlier piece.
                return Ok(());
            }
        }
        self.send(data)
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> WeakSender<T> {
    /// Returns a sender; `None` once every sender is gone.
    pub(crate) fn upgrade(&self) -> Option<Sender<T>> {
        self.0.upgrade().map(Sender)
    }
}

impl<T> Drop for Inlet<T> {
    fn drop(&mut self) {
        let mut state = lock(&self.0);
        state.over = true;
        let reader = state.reader.take();
        drop(state);
        reader.into_iter().for_each(Waker::wake);
    }
}

/// The receiving end.
pub struct Receiver<T>(Arc<Mutex<State<T>>>);

impl<T> Receiver<T> {
    /// Returns the next value; `None` at the end.
    pub(crate) fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Option<T>> {
        self.poll_with(cx, VecDeque::pop_front)
    }

    /// Waits for the next value; `None` at the end.
    pub async fn recv(&mut self) -> Option<T> {
        std::future::poll_fn(|cx| self.poll_recv(cx)).await
    }

    /// Moves up to `limit` values to `values`, waiting until there is one. Adds nothing at the end.
    pub(crate) async fn recv_many(&mut self, values: &mut Vec<T>, limit: usize) {
        std::future::poll_fn(|cx| {
            self.poll_with(cx, |queued| {
                values.extend(queued.drain(..queued.len().min(limit)));
                Some(())
            })
        })
        .await;
    }

    /// Returns the next value, if there is one.
    pub(crate) fn try_recv(&mut self) -> Option<T> {
        lock(&self.0).values.pop_front()
    }

    /// Returns whether the next value exists and satisfies `such`.
    pub(crate) fn is_first(&self, such: impl Fn(&T) -> bool) -> bool {
        lock(&self.0).values.front().is_some_and(such)
    }

    /// Ends the queue after the values in it.
    pub fn close(&mut self) {
        lock(&self.0).over = true;
    }

    /// Takes values if there are any; returns `None` at the end.
    fn poll_with<R>(
        &mut self,
        cx: &mut Context<'_>,
        take: impl FnOnce(&mut VecDeque<T>) -> Option<R>,
    ) -> Poll<Option<R>> {
        // As in tokio's own: a busy receiver lets other tasks run in between.
        let turn = ready!(poll_proceed(cx));
        let mut state = lock(&self.0);
        if state.values.is_empty() {
            if state.over {
                return Poll::Ready(None);
            }
            state.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let taken = take(&mut state.values);
        if state.values.is_empty() && state.values.capacity() * size_of::<T>() > KEPT {
            state.values = VecDeque::new();
        }
        turn.made_progress();
        Poll::Ready(taken)
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let mut state = lock(&self.0);
        state.over = true;
        let values = std::mem::take(&mut state.values);
        drop(state);
        drop(values);
    }
}

impl<T> std::fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sender").finish_non_exhaustive()
    }
}

impl<T> std::fmt::Debug for WeakSender<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WeakSender").finish_non_exhaustive()
    }
}

impl<T> std::fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Receiver").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    #[tokio::test]
    async fn values_come_in_order_and_the_end_behind_them() {
        let (sender, mut receiver) = queue();
        let sending = tokio::spawn(async move {
            for value in 0..1000 {
                sender.send(value).unwrap();
                tokio::task::yield_now().await;
            }
        });
        let mut taken = Vec::new();
        loop {
            let before = taken.len();
            receiver.recv_many(&mut taken, 7).await;
            if taken.len() == before {
                break;
            }
            assert!(taken.len() - before <= 7);
        }
        assert!(taken.into_iter().eq(0..1000));
        assert_eq!(poll_fn(|cx| receiver.poll_recv(cx)).await, None);
        sending.await.unwrap();
    }

    #[test]
    fn small_pieces_in_a_row_are_joined() {
        let (sender, mut receiver) = queue();
        let sent: Vec<u8> = (0..100_000u32).map(|n| n as u8).collect();
        for byte in sent.chunks(1) {
            sender.send_gathered(Bytes::copy_from_slice(byte)).unwrap();
        }
        sender.send_gathered(Bytes::from(vec![1; CRUMB])).unwrap();
        let pieces: Vec<Bytes> = std::iter::from_fn(|| receiver.try_recv()).collect();
        assert!(pieces.len() <= 100_000 / CRUMB + 2, "{} pieces", pieces.len());
        assert!(pieces.concat() == [sent, vec![1; CRUMB]].concat());
        drop(receiver);
        assert!(sender.send_gathered(Bytes::from_static(b"x")).is_err());
    }

    #[tokio::test]
    async fn a_piece_that_is_joined_reaches_one_who_waits_in_time() {
        let (sender, mut receiver) = queue();
        for text in ["a", "b"] {
            let waiting = tokio::spawn(async move {
                let piece = poll_fn(|cx| receiver.poll_recv(cx)).await;
                (piece, receiver)
            });
            tokio::task::yield_now().await;
            sender.send_gathered(text.into()).unwrap();
            let (piece, back) = waiting.await.unwrap();
            assert_eq!(piece.unwrap(), text);
            receiver = back;
        }
    }

    #[tokio::test]
    async fn one_who_waits_hears_of_the_end() {
        let (sender, mut receiver) = queue::<u8>();
        let waiting = tokio::spawn(async move { poll_fn(|cx| receiver.poll_recv(cx)).await });
        tokio::task::yield_now().await;
        drop(sender);
        assert_eq!(waiting.await.unwrap(), None);
    }

    #[test]
    fn what_nobody_takes_is_given_back_and_let_go() {
        let value = Arc::new(());
        let (sender, receiver) = queue();
        sender.send(value.clone()).unwrap();
        drop(receiver);
        assert_eq!(Arc::strong_count(&value), 1);
        assert!(sender.send(value).is_err());
    }

    #[test]
    fn the_queue_lasts_as_long_as_any_sender() {
        let (sender, mut receiver) = queue();
        let weak = sender.downgrade();
        let other = weak.upgrade().unwrap();
        drop(sender);
        other.send(1).unwrap();
        let mut cx = Context::from_waker(Waker::noop());
        assert_eq!(receiver.poll_recv(&mut cx), Poll::Ready(Some(1)));
        assert_eq!(receiver.poll_recv(&mut cx), Poll::Pending);
        drop(other);
        assert!(weak.upgrade().is_none());
        assert_eq!(receiver.poll_recv(&mut cx), Poll::Ready(None));
    }

    #[test]
    fn one_that_is_closed_gives_what_is_there_and_takes_no_more() {
        let (sender, mut receiver) = queue();
        sender.send(1).unwrap();
        assert!(!sender.is_closed());
        receiver.close();
        assert!(sender.is_closed());
        assert_eq!(sender.send(2), Err(2));
        assert_eq!(receiver.try_recv(), Some(1));
        assert_eq!(receiver.try_recv(), None);
    }

    #[tokio::test]
    async fn one_who_always_finds_something_lets_others_run() {
        let (sender, mut receiver) = queue();
        let endless = async {
            loop {
                assert_eq!(sender.send(()), Ok(()));
                poll_fn(|cx| receiver.poll_recv(cx)).await;
            }
        };
        tokio::select! {
            biased;
            () = endless => {}
            () = tokio::task::yield_now() => {}
        }
    }

    #[test]
    fn an_empty_queue_keeps_little() {
        let (sender, mut receiver) = queue();
        for value in 0..10_000 {
            sender.send(value).unwrap();
        }
        let mut cx = Context::from_waker(Waker::noop());
        for value in 0..10_000 {
            assert_eq!(receiver.poll_recv(&mut cx), Poll::Ready(Some(value)));
        }
        assert_eq!(lock(&receiver.0).values.capacity(), 0);
    }
}
