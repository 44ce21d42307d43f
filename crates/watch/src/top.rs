//! `trunkline top`: the daemon, or a fleet, in a terminal, as it is now.

mod app;
mod daemon;
mod details;
mod draw;
mod fleet;
mod palette;
mod screen;
mod subject;
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

use crate::feed;
use crate::fleet::feed as fleet_feed;
use crate::fleet::model::FleetModel;
use crate::model::Model;
use app::{Action, App};
use screen::Screen;
use subject::Subject;

/// Shows what the daemon does until the user or a signal ends it. The terminal is then as it was.
pub(crate) async fn run(place: Place, every: Duration) -> anyhow::Result<ExitCode> {
    needs_terminal("`trunkline ls` and `trunkline status --json` print")?;
    let news = feed::follow(place.clone(), every);
    show(&place, Model::of_nobody_yet(), news).await
}

/// Shows the fleet in the same way.
pub(crate) async fn run_fleet(place: Place, every: Duration) -> anyhow::Result<ExitCode> {
    needs_terminal("`trunkline fleet status --json` prints")?;
    let news = fleet_feed::follow(every);
    show(&place, FleetModel::of_nobody_yet(), news).await
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
    mut news: mpsc::Receiver<S::News>,
) -> anyhow::Result<ExitCode> {
    // Before the terminal is changed, so that none of them finds it so.
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
                // The terminal has gone.
                Some(Err(_)) | None => return Ok(ExitCode::SUCCESS),
            },
            told = news.recv() => {
                let Some(told) = told else { return Ok(ExitCode::SUCCESS) };
                model.learn(told);
                // A moment of many hosts is drawn once.
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
                    Ok(1) => "closed 1 connection".into(),
                    Ok(count) => format!("closed {count} connections"),
                    Err(error) => format!("nothing was closed: {error:#}"),
                });
            }
        }
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

    /// The number of the next one.
    async fn next(&mut self) -> u8 {
        let [interrupt, terminate, hang_up] = &mut self.0;
        tokio::select! {
            _ = interrupt.recv() => 2,
            _ = terminate.recv() => 15,
            _ = hang_up.recv() => 1,
        }
    }
}
