//! The user's permission to use a connection that is there already, where each use is to be confirmed: what ssh_config's
//! `ControlMaster ask` and `autoask` mean (mux.c, `ask_permission`).

use crate::config::World;
use crate::error::Error;
use crate::prompt::{Prompt, PromptKind, Prompter as _, Standard, allows};

/// Asks through the SSH_ASKPASS of whoever wants to use the connection.
///
/// # Errors
/// It is not allowed, or there is nothing to ask through. Nothing has begun.
pub(crate) async fn ask(host: &str, world: &World, question: &str) -> Result<(), Error> {
    let prompt = Prompt::new(PromptKind::Confirm, question, true);
    match Standard::from_env(world.env.clone()).ask(&prompt).await {
        Some(answer) if allows(Some(&answer)) => Ok(()),
        Some(_) => Err(Error::Denied {
            host: host.to_owned(),
            why: "was not allowed",
        }),
        None => Err(Error::Denied {
            host: host.to_owned(),
            why: "was not confirmed; that is asked through SSH_ASKPASS, on a DISPLAY or with SSH_ASKPASS_REQUIRE=force",
        }),
    }
}
