//! Input for a session with a terminal of stock ssh. The client sleeps meanwhile, so escape sequences are handled here
//! (mux.c registers `client_simple_escape_filter` on the session's channel).

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use tokio::sync::Notify;
use trunkline::{ChannelWriter, Host, SessionControl};

use crate::stdio::{Input, Output};
use crate::terminal::escape::{Action, Available, EscapeFilter, Step};

/// The length of `~B`'s break (clientloop.c).
const BREAK_MILLISECONDS: u32 = 1000;

/// A terminal as a session's input.
pub(crate) struct TerminalInput {
    input: Input,
    /// The output for answers to escape sequences.
    screen: Output,
    escapes: EscapeFilter,
    /// The list that `~#` shows.
    list_forwards: ListForwards,
    typing: Arc<Typing>,
}

/// The state that a terminal's input shares with its session.
#[derive(Default)]
pub(crate) struct Typing {
    begun: Notify,
    is_disconnected: AtomicBool,
}

impl Typing {
    /// Allows reading the terminal: the session has started.
    pub(crate) fn begin(&self) {
        self.begun.notify_one();
    }

    /// Returns true if `~.` has ended the session.
    pub(crate) fn is_disconnected(&self) -> bool {
        self.is_disconnected.load(Ordering::Acquire)
    }
}

/// Lists a session's forwardings for display.
pub(crate) type ListForwards = Box<dyn Fn() -> BoxFuture<'static, String> + Send + Sync>;

impl TerminalInput {
    /// Reads `terminal` once the session has started. Before that, the client's own questions may be answered on it.
    ///
    /// # Errors
    /// The descriptors cannot be used.
    pub(crate) fn new(
        terminal: &OwnedFd,
        screen: &OwnedFd,
        escape: Option<u8>,
        list_forwards: ListForwards,
        typing: Arc<Typing>,
    ) -> std::io::Result<Self> {
        Ok(Self {
            input: Input::new(terminal.try_clone()?)?,
            screen: Output::new(screen.try_clone()?)?,
            escapes: EscapeFilter::new(escape, Available::Shared),
            list_forwards,
            typing,
        })
    }

    /// Feeds the session until the terminal or the session has ended.
    pub(crate) async fn feed(mut self, stdin: &mut ChannelWriter, control: &SessionControl, host: &Host) {
        self.typing.begun.notified().await;
        while let Ok(typed) = self.input.read().await {
            if typed.is_empty() {
                return;
            }
            for step in self.escapes.feed(&typed) {
                let action = match step {
                    Step::Forward(bytes) => {
                        if stdin.send(bytes.into()).await.is_err() {
                            return;
                        }
                        continue;
                    }
                    Step::Act(action) => action,
                };
                let shown = match action {
                    Action::Help => self.escapes.help(),
                    Action::ListForwards => {
                        let list = (self.list_forwards)().await.replace('\n', "\r\n");
                        format!("{}{list}\r\n", self.escapes.echo(action))
                    }
                    _ => self.escapes.echo(action),
                };
                // A failing screen does not keep the action from the user.
                let _ = self.screen.write_all(vec![Bytes::from(shown)]).await;
                match action {
                    Action::Disconnect => {
                        self.typing.is_disconnected.store(true, Ordering::Release);
                        control.close();
                        return;
                    }
                    Action::Break => {
                        control.send_break(BREAK_MILLISECONDS).await;
                    }
                    Action::Rekey => host.connection().rekey(),
                    _ => {}
                }
            }
        }
    }
}
