//! A program's destination, and the way to it.

use trunkline::Interaction;
use trunkline::config::Request;
use trunkline_control::client::Starter;
use trunkline_control::protocol::OnBehalf;

/// A destination in ssh_config, and its settings.
#[derive(Debug, Clone)]
pub struct Destination {
    /// The program's request, with its environment.
    pub request: Request,
    /// The preferred way.
    pub preference: Preference,
    /// Answers questions.
    pub interaction: Interaction,
    /// True if there is a user to ask.
    pub answers: bool,
    /// The user for whom the program works, if not its own: for the daemon's audit trail.
    pub on_behalf: Option<OnBehalf>,
}

/// A preference for the way to a destination.
#[derive(Debug, Clone)]
pub enum Preference {
    Engine,
    /// The daemon, if it runs.
    RunningDaemon,
    /// The daemon, started if needed.
    Daemon(Starter),
}
