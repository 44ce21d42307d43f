//! The thread and runtime for a fixture's tasks.

use std::future::Future;
use std::thread::{self, JoinHandle};

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

use crate::Error;

/// A fixture's tasks, on their own thread and runtime: neither a blocking test nor a busy runtime of the test disturbs
/// them, and tests that are not async can use them too. Dropping it ends them all.
#[derive(Debug)]
pub(crate) struct Background {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Background {
    /// Calls `begin` inside the new runtime, on the caller's thread, so that the caller gets its errors. Then runs the
    /// future that it returns.
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
                    // This is reached if it was told to stop, and if its owner is gone.
                    _ = stopped => {}
                }
            });
        })?;
        Ok(Background {
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Calls `serve` with each connection, inside the new runtime.
    pub(crate) fn accept(
        name: &str,
        listener: std::net::TcpListener,
        mut serve: impl FnMut(TcpStream) + Send + 'static,
    ) -> Result<Background, Error> {
        Self::start(name, || {
            let listener = TcpListener::from_std(listener)?;
            Ok(async move {
                loop {
                    let Ok((stream, _)) = listener.accept().await else {
                        tokio::task::yield_now().await;
                        continue;
                    };
                    // Without this a server is slow, but not wrong.
                    let _ = stream.set_nodelay(true);
                    serve(stream);
                }
            })
        })
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic in the thread has already printed its own message.
            let _ = thread.join();
        }
    }
}
