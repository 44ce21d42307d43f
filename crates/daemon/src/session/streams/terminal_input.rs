//! What is typed on a terminal that stock ssh has passed, or given to a session with a terminal: the client sleeps, so that
//! escape sequences are this side's business (mux.c registers `client_simple_escape_filter` on the session's channel).

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use tokio::sync::oneshot;
use trunkline::{ChannelWriter, Host, SessionControl};

use crate::stdio::{Input, Output};
use crate::terminal::escape::{Action, Available, EscapeFilter, Step};

/// How long `~B`'s break is (clientloop.c).
const BREAK_MILLISECONDS: u32 = 1000;

/// A terminal as a session's input.
pub(crate) struct TerminalInput {
    input: Input,
    /// Where answers to escape sequences are shown.
    screen: Output,
    escapes: EscapeFilter,
    /// What `~#` shows.
    list_forwards: ListForwards,
    /// Done when the session has begun.
    begun: oneshot::Receiver<()>,
    disconnected: Arc<AtomicBool>,
}

/// Lists a session's forwardings, for people.
pub(crate) type ListForwards = Box<dyn Fn() -> BoxFuture<'static, String> + Send + Sync>;

impl TerminalInput {
    /// Reads `terminal` once `begun`: before that the client's own questions may be answered on it.
    ///
    /// # Errors
    /// The descriptors cannot be used.
    pub(crate) fn new(
        terminal: &OwnedFd,
        screen: &OwnedFd,
        escape: Option<u8>,
        list_forwards: ListForwards,
        begun: oneshot::Receiver<()>,
    ) -> std::io::Result<Self> {
        Ok(Self {
            input: Input::new(terminal.try_clone()?)?,
            screen: Output::new(screen.try_clone()?)?,
            escapes: EscapeFilter::new(escape, Available::Shared),
            list_forwards,
            begun,
            disconnected: Arc::default(),
        })
    }

    /// Whether `~.` has ended the session.
    pub(crate) fn disconnected(&self) -> Arc<AtomicBool> {
        self.disconnected.clone()
    }

    /// Gives the session what is typed, until the terminal or the session has ended.
    pub(crate) async fn feed(
        mut self,
        stdin: &mut ChannelWriter,
        control: Option<&SessionControl>,
        host: &Host,
    ) {
        if self.begun.await.is_err() {
            return;
        }
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
                // A screen that takes nothing is not a reason to leave the user without the action.
                let _ = self.screen.write_all(vec![Bytes::from(shown)]).await;
                match (action, control) {
                    (Action::Disconnect, Some(control)) => {
                        self.disconnected.store(true, Ordering::Release);
                        control.close();
                        return;
                    }
                    (Action::Break, Some(control)) => {
                        control.send_break(BREAK_MILLISECONDS).await;
                    }
                    (Action::Rekey, _) => host.connection().rekey(),
                    _ => {}
                }
            }
        }
    }
}
