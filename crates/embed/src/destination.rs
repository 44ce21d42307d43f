//! What a program wants to reach, and how.

use trunkline::Interaction;
use trunkline::config::Request;
use trunkline_control::client::Starter;
use trunkline_control::protocol::OnBehalf;

/// A destination of ssh_config, and who is asked about it.
#[derive(Debug, Clone)]
pub struct Destination {
    /// What the program has named, in its world.
    pub request: Request,
    /// Which way it prefers.
    pub preference: Preference,
    /// Who answers questions.
    pub interaction: Interaction,
    /// Whether there is somebody to ask.
    pub answers: bool,
    /// Whom the program works for, where that is not its own user: for the daemon's audit trail.
    pub on_behalf: Option<OnBehalf>,
}

/// Which way a destination takes.
#[derive(Debug, Clone)]
pub enum Preference {
    /// The engine.
    Engine,
    /// The daemon, where one runs.
    RunningDaemon,
    /// The daemon, which is started where none runs.
    Daemon(Starter),
}
