//! Requests with a single answer.

use anyhow::anyhow;
use trunkline_control::client::Client;
use trunkline_control::protocol::{Reply, Request};
use trunkline_text::Printable;

use crate::backend::Backend;
use crate::hints::Refused;
use crate::questions::Conversation;

/// Sends a request and returns its answer. Meanwhile shows notices and asks the user questions.
pub(crate) async fn ask(client: &mut Client, request: Request, backend: &Backend) -> anyhow::Result<Reply> {
    answer(Conversation::new(client, backend.questions()), request).await
}

pub(crate) async fn answer(
    mut talk: Conversation<'_, &mut Client>,
    request: Request,
) -> anyhow::Result<Reply> {
    talk.send(&request).await?;
    loop {
        match talk.next().await? {
            Reply::Welcome { .. } => {}
            Reply::Notice(text) => {
                let _quiet = talk.quiet().await?;
                eprintln!("{}", Printable::text(text.trim_end()));
            }
            Reply::Failed(failure) => return Err(Refused(failure).into()),
            reply => return Ok(reply),
        }
    }
}

pub(crate) fn unexpected_reply(reply: &Reply) -> anyhow::Error {
    anyhow!("unexpected reply from the daemon: {reply:?}")
}
