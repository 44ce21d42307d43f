//! A program's destination, and the way to it.

use trunkline::Interaction;
use trunkline::config::Request;
use trunkline_control::client::Starter;
use trunkline_control::protocol::OnBehalf;

/// A destination of ssh_config, and who is asked about it.
#[derive(Debug, Clone)]
pub struct Destination {
    /// The program's request, in its world.
    pub request: Request,
    /// The preferred way.
    pub preference: Preference,
    /// The answerer of questions.
    pub interaction: Interaction,
    /// Whether there is somebody to ask.
    pub answers: bool,
    /// Whom the program works for, where that is not its own user: for the daemon's audit trail.
    pub on_behalf: Option<OnBehalf>,
}

/// A preference for the way to a destination.
#[derive(Debug, Clone)]
pub enum Preference {
    Engine,
    /// The daemon, where one runs.
    RunningDaemon,
    /// The daemon, which is started where none runs.
    Daemon(Starter),
}
