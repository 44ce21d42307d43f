//! The user's permission to use an existing connection, if each use has to be confirmed, as with ssh_config's
//! `ControlMaster ask` and `autoask` (mux.c, `ask_permission`).
//!
//! A client must not choose who answers for it. Therefore the program is that of the environment in which the
//! connection was made, as with ssh's ControlMaster, or one that `config.toml` names.

use crate::config::World;
use crate::error::Error;
use crate::prompt::{Prompt, PromptKind, Prompter as _, Standard, allows};

/// Asks through `program`, if one is named, or else the SSH_ASKPASS of `owner`, in whose environment it runs.
///
/// # Errors
/// The user refused, or there is nothing to ask through. Nothing was started.
pub(crate) async fn ask(host: &str, owner: &World, program: &str, question: &str) -> Result<(), Error> {
    let prompt = Prompt::new(PromptKind::Confirm, question, true);
    let mut env = owner.env.clone();
    if !program.is_empty() {
        env.insert("SSH_ASKPASS".into(), program.into());
        env.insert("SSH_ASKPASS_REQUIRE".into(), "force".into());
    }
    match Standard::from_env(env).ask(&prompt).await {
        Some(answer) if allows(Some(&answer)) => Ok(()),
        Some(_) => Err(Error::Denied {
            host: host.to_owned(),
            why: "was not allowed",
        }),
        None => Err(Error::Denied {
            host: host.to_owned(),
            why: "was not confirmed; that is asked through SSH_ASKPASS of whoever made the connection, on a DISPLAY or with \
                  SSH_ASKPASS_REQUIRE=force, or through confirm_askpass of config.toml",
        }),
    }
}
