//! The thread and runtime that a fixture's tasks run on.

use std::future::Future;
use std::thread::{self, JoinHandle};

use tokio::sync::oneshot;

use crate::Error;

/// A fixture's tasks, on a thread and a runtime of their own: neither a blocking test nor a busy runtime of the test's
/// disturbs them, and tests that are not async can have them too. Dropping it ends them all.
#[derive(Debug)]
pub(crate) struct Background {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Background {
    /// Calls `begin` inside of the new runtime, on the caller's thread, so that its errors are the caller's;
    /// then runs the future that it returns.
    pub(crate) fn start<F>(name: &str, begin: impl FnOnce() -> Result<F, Error>) -> Result<Background, Error>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let work = {
            let _entered = runtime.enter();
            begin()?
        };
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = work => {}
                    // Whether it was told so or its owner is gone.
                    _ = stopped => {}
                }
            });
        })?;
        Ok(Background {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic over there has been reported by its own message.
            let _ = thread.join();
        }
    }
}
