//! Work with files, off the runtime's own threads.

use std::sync::{Arc, Weak};

/// Runs slow work with files off the runtime's own threads.
pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    blocking_steps(|_| work()).await
}

/// Runs work in many steps, which can stop once the copy was ended: its user believes that nothing is written any more.
pub(super) async fn blocking_steps<T: Send + 'static>(
    work: impl FnOnce(&Awaited) -> T + Send + 'static,
) -> T {
    let waiting = Arc::new(());
    let awaited = Awaited(Arc::downgrade(&waiting));
    let ended = tokio::task::spawn_blocking(move || work(&awaited)).await;
    drop(waiting);
    match ended {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime is shutting down, and this task with it.
            Err(_) => std::future::pending().await,
        },
    }
}

/// Tells the work whether its result is still awaited.
pub(super) struct Awaited(Weak<()>);

impl Awaited {
    pub(super) fn is_awaited(&self) -> bool {
        self.0.strong_count() > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn work_is_told_when_nobody_waits_for_it_any_more() {
        let (begun, has_begun) = tokio::sync::oneshot::channel();
        let (ended, has_ended) = tokio::sync::oneshot::channel();
        let work = tokio::spawn(blocking_steps(move |awaited| {
            begun.send(awaited.is_awaited()).unwrap();
            while awaited.is_awaited() {
                std::thread::yield_now();
            }
            ended.send(()).unwrap();
        }));
        assert!(has_begun.await.unwrap());
        work.abort();
        has_ended.await.unwrap();
    }
}
