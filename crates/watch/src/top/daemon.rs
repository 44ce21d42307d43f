//! The daemon as a subject.

use ratatui::style::Color;
use ratatui::text::{Line, Span};
use trunkline_control::protocol::Update;
use trunkline_text::count_of;

use super::details;
use super::palette::{BOLD, Palette};
use super::subject::{Column, Lines, Subject};
use super::tables::{self, Row, View};
use crate::feed::News;
use crate::model::Model;
use crate::quantity::{bytes, rate};

impl Subject for Model {
    type View = View;
    type Row = Row;
    type Update = Update;

    const VIEWS: &'static [View] = &View::ALL;
    const CLOSES: bool = true;

    fn learn(&mut self, news: News<Update>) {
        Self::learn(self, news);
    }

    fn name(view: View) -> &'static str {
        view.name()
    }

    fn columns(view: View) -> &'static [Column] {
        view.columns()
    }

    fn nothing(view: View) -> &'static str {
        match view {
            View::Hosts => "No host has a connection.",
            View::Sessions => "Nothing runs.",
            View::Copies => "Nothing is being copied by trunkline cp.",
            View::Failures => "Nothing has failed since the daemon began.",
        }
    }

    fn count(&self, view: View) -> usize {
        let copies = self.totals().copies;
        match view {
            View::Hosts => self.hosts.len(),
            View::Sessions => self.activities.len() - copies,
            View::Copies => copies,
            View::Failures => self.failures.len(),
        }
    }

    fn select(&self, view: View, column: &str, has: impl Fn(&[&str]) -> bool) -> Vec<Row> {
        tables::select(self, view, column, has)
    }

    fn cell(&self, row: &Row, column: &Column, now: u64) -> String {
        tables::cell(self, row, column, now)
    }

    fn details(&self, row: &Row) -> Option<Lines> {
        details::details_for(self, row)
    }

    fn summary(&self, palette: Palette) -> [Line<'static>; 2] {
        summary(self, palette)
    }

    /// Returns the sharing key of a row's host.
    fn sharing(&self, row: &Row) -> Option<String> {
        let name = match row {
            Row::Host(sharing) => return Some(sharing.clone()),
            Row::Activity(id) => &self.activities.get(id)?.host,
            Row::Failure(at) => &self.failures.get(*at)?.host,
        };
        let mut hosts = self.hosts.values();
        let host = hosts.find(|host| host.report.name == *name)?;
        Some(host.report.sharing.clone())
    }

    fn question(&self, sharing: &str) -> Vec<Line<'static>> {
        question(self, sharing)
    }
}

fn summary(model: &Model, palette: Palette) -> [Line<'static>; 2] {
    let mut first = vec![Span::styled("trunkline", BOLD)];
    if let Some(pulse) = &model.pulse {
        let limit = pulse
            .descriptor_limit
            .map_or_else(|| "any".into(), |limit| limit.to_string());
        let memory = pulse
            .memory
            .map_or_else(String::new, |memory| format!(", {} of memory", bytes(memory)));
        first.push(Span::raw(format!(
            "  daemon {}{memory}, {} of {limit} descriptors",
            pulse.pid, pulse.descriptors
        )));
    }
    let second = match &model.lost {
        Some(why) => Line::styled(format!("Waiting: {why}"), palette.style(Color::Red).patch(BOLD)),
        None => totals(model),
    };
    [Line::from(first), second]
}

fn totals(model: &Model) -> Line<'static> {
    let totals = model.totals();
    let counts = [
        count_of(totals.hosts, "host"),
        count_of(totals.connections, "connection"),
        count_of(totals.sessions, "session"),
        count_of(totals.tunnels, "tunnel"),
    ];
    let shown = |value: f64| match rate(value) {
        none if none.is_empty() => "0".to_owned(),
        some => some,
    };
    Line::raw(format!(
        "{}  ↑ {}/s  ↓ {}/s",
        counts.join(", "),
        shown(totals.sent_rate),
        shown(totals.received_rate)
    ))
}

fn question(model: &Model, sharing: &str) -> Vec<Line<'static>> {
    let Some(host) = model.hosts.get(sharing) else {
        return vec![Line::raw("This host has no connections any more.")];
    };
    let (connections, sessions) = (host.report.connections.len(), host.sessions());
    let what = format!(
        "Close {} to {}, with {}?",
        count_of(connections, "connection"),
        host.report.name,
        count_of(sessions, "session")
    );
    vec![
        Line::styled(what, BOLD),
        Line::raw(""),
        Line::raw("y  yes, once the sessions have ended"),
        Line::raw("!  at once: what runs in them is cut off"),
        Line::raw("n  no"),
    ]
}
