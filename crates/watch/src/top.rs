//! `trunkline top`: the daemon, or another subject, live in a terminal.

mod app;
mod daemon;
pub(crate) mod details;
mod draw;
pub(crate) mod palette;
mod screen;
pub(crate) mod subject;
mod tables;

use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use crossterm::event::{Event, EventStream};
use futures_util::StreamExt as _;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use trunkline_control::place::Place;

use crate::feed::{self, News};
use crate::model::Model;
use app::{Action, App};
use screen::Screen;
use subject::Subject;

/// Shows what the daemon does.
pub(crate) async fn of_daemon(place: Place, every: Duration) -> anyhow::Result<ExitCode> {
    let instead = "`trunkline ls` and `trunkline status --json` print";
    let follow = || feed::follow_daemon(place.clone(), every);
    top(&place, Model::of_nobody_yet(), follow, instead).await
}

/// Shows a subject until the user or a signal ends it, and then restores the terminal. `instead` names the commands
/// that print the same for programs.
///
/// # Errors
/// There is no terminal, or it does not work.
pub async fn top<S: Subject>(
    place: &Place,
    model: S,
    follow: impl FnOnce() -> mpsc::Receiver<News<S::Update>>,
    instead: &str,
) -> anyhow::Result<ExitCode> {
    needs_terminal(instead)?;
    show(place, model, follow()).await
}

fn needs_terminal(instead: &str) -> anyhow::Result<()> {
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    anyhow::ensure!(
        std::io::stdin().is_terminal() && std::io::stdout().is_terminal() && !is_dumb,
        "top needs a terminal that can be drawn on; {instead} the same for programs"
    );
    Ok(())
}

async fn show<S: Subject>(
    place: &Place,
    mut model: S,
    mut news: mpsc::Receiver<News<S::Update>>,
) -> anyhow::Result<ExitCode> {
    // Registered before the terminal is changed, so that no signal leaves it changed.
    let mut signals = Signals::new().context("signals")?;
    let mut screen = Screen::enter().context("the terminal")?;
    let mut events = EventStream::new();
    let mut app = App::default();
    loop {
        screen.draw(&mut app, &model).context("the terminal")?;
        let action = tokio::select! {
            biased;
            number = signals.next() => return Ok(ExitCode::from(128 + number)),
            event = events.next() => match event {
                Some(Ok(Event::Key(key))) => app.key(key, &model),
                Some(Ok(Event::Resize(..))) => Action::None,
                Some(Ok(_)) => continue,
                // The terminal is gone.
                Some(Err(_)) | None => return Ok(ExitCode::SUCCESS),
            },
            told = news.recv() => {
                let Some(told) = told else { return Ok(ExitCode::SUCCESS) };
                model.learn(told);
                // A moment with many hosts is drawn once.
                while let Ok(told) = news.try_recv() {
                    model.learn(told);
                }
                Action::None
            }
        };
        match action {
            Action::None => {}
            Action::Quit => return Ok(ExitCode::SUCCESS),
            Action::Redraw => screen.clear().context("the terminal")?,
            Action::Suspend => screen.suspend().context("the terminal")?,
            Action::Close { sharing, at_once } => {
                let closed = feed::close(place, sharing, at_once).await;
                app.note = Some(match closed {
                    Ok(closed) => closed.to_string(),
                    Err(error) => format!("nothing was closed: {error:#}"),
                });
            }
        }
    }
}

/// Screenshots of a subject in a terminal of some size, after some keys: for tests.
#[derive(Debug)]
pub struct Screenshots<S: Subject> {
    app: App<S>,
}

impl<S: Subject> Default for Screenshots<S> {
    fn default() -> Self {
        Self { app: App::default() }
    }
}

impl<S: Subject> Screenshots<S> {
    /// Presses keys: letters, `\n`, Esc (`\x1b`), `↓` and `⇟`.
    pub fn press(&mut self, model: &S, keys: &str) {
        self.app.press(keys, model);
    }

    /// Returns the screen, a line for each row.
    ///
    /// # Panics
    /// Never: nothing is drawn on a terminal.
    pub fn take(&mut self, model: &S, width: u16, height: u16) -> String {
        draw::to_text(&mut self.app, model, width, height)
    }
}

/// The signals that end a program.
struct Signals([Signal; 3]);

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self([
            signal(SignalKind::interrupt())?,
            signal(SignalKind::terminate())?,
            signal(SignalKind::hangup())?,
        ]))
    }

    /// Waits for a signal, and returns its number.
    async fn next(&mut self) -> u8 {
        let [interrupt, terminate, hang_up] = &mut self.0;
        tokio::select! {
            _ = interrupt.recv() => 2,
            _ = terminate.recv() => 15,
            _ = hang_up.recv() => 1,
        }
    }
}
