//! `trunkline top`: hosts, sessions, copies and failures in a terminal, as they are now.

mod app;
mod details;
mod draw;
mod screen;
mod tables;

use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use crossterm::event::{Event, EventStream};
use futures_util::StreamExt as _;
use tokio::signal::unix::{Signal, SignalKind, signal};
use trunkline_control::place::Place;

use crate::feed;
use crate::model::Model;
use app::{Action, App};
use screen::Screen;

/// Shows what the daemon does until the user or a signal ends it. The terminal is then as it was.
pub(crate) async fn run(place: Place, every: Duration) -> anyhow::Result<ExitCode> {
    anyhow::ensure!(
        std::io::stdin().is_terminal() && std::io::stdout().is_terminal(),
        "top needs a terminal; `trunkline ls` and `trunkline status --json` print the same for programs"
    );
    // Before the terminal is changed, so that none of them finds it so.
    let mut signals = Signals::new().context("signals")?;
    let mut news = feed::follow(place.clone(), every);
    let mut screen = Screen::enter().context("the terminal")?;
    let mut events = EventStream::new();
    let mut model = Model::of_nobody_yet();
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
                let closed = feed::close(&place, sharing, at_once).await;
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
