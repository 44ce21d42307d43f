//! The user's permission to use a connection that is there already, where each use is to be confirmed: what ssh_config's
//! `ControlMaster ask` and `autoask` mean (mux.c, `ask_permission`).

use trunkline::config::{HostConfig, World};
use trunkline::prompt::{Prompt, PromptKind, Prompter as _, Standard, allows};
use trunkline::{Engine, Error};

/// Asks through the SSH_ASKPASS of whoever wants to use the connection, if anybody has to be asked.
///
/// # Errors
/// It is not allowed, or there is nothing to ask through. Nothing has begun.
pub(crate) async fn ask(
    engine: &Engine,
    host: &HostConfig,
    world: &World,
    question: &str,
) -> Result<(), Error> {
    if !engine.confirms_use(host) {
        return Ok(());
    }
    let prompt = Prompt::new(PromptKind::Confirm, question, true);
    match Standard::from_env(world.env.clone()).ask(&prompt).await {
        Some(answer) if allows(Some(&answer)) => Ok(()),
        Some(_) => Err(Error::Usage(format!(
            "{}: the use of its connection was not allowed",
            host.original_host
        ))),
        None => Err(Error::Usage(format!(
            "{}: the use of its connection was not confirmed; that is asked through SSH_ASKPASS, on a DISPLAY or with \
             SSH_ASKPASS_REQUIRE=force",
            host.original_host
        ))),
    }
}
