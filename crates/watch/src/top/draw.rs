//! What is shown, for a terminal of any size.

use std::time::{SystemTime, UNIX_EPOCH};

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Cell, Clear, Paragraph, Row as TableRow, Table, Wrap};

use super::app::{App, Mode};
use super::details;
use super::tables::{self, Column, Row, View};
use crate::model::Model;
use crate::quantity::{bytes, rate};

/// Whether there are colours.
#[derive(Debug, Clone, Copy)]
pub(super) struct Palette {
    pub(super) colours: bool,
}

impl Palette {
    /// As NO_COLOR and TERM say.
    pub(super) fn of_environment() -> Self {
        let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Self {
            colours: !is_set("NO_COLOR") && !is_dumb,
        }
    }

    fn of(self, colour: Color) -> Style {
        match self.colours {
            true => Style::new().fg(colour),
            false => Style::new(),
        }
    }

    fn faint(self) -> Style {
        self.of(Color::DarkGray)
    }

    /// Of the word for a state.
    fn state(self, word: &str) -> Style {
        match word {
            "used" | "alive" => self.of(Color::Green),
            "busy" | "connecting" | "starting" => self.of(Color::Yellow),
            "stale" | "silent" => self.of(Color::Red),
            _ => Style::new(),
        }
    }
}

const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const REVERSED: Style = Style::new().add_modifier(Modifier::REVERSED);

/// Draws all of it.
pub(super) fn draw(frame: &mut Frame<'_>, app: &mut App, model: &Model, palette: Palette) {
    let [head, tabs, body, foot] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Length(1),
        Constraint::Min(1),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(summary(model, palette), head);
    frame.render_widget(views(app, model), tabs);
    table(frame, app, model, palette, body);
    frame.render_widget(footer(app, palette), foot);
    match &app.mode {
        Mode::Table | Mode::Filter => {}
        Mode::Help => popup(frame, " Help ", &help(), 0),
        Mode::Details(line) => {
            let rows = app.rows(model);
            let known = app.selected(&rows).and_then(|(_, row)| details::of(model, row));
            let lines = known.unwrap_or_else(|| vec![("gone".into(), "It has ended.".into())]);
            popup(frame, " Details ", &aligned(&lines), *line);
        }
        Mode::Close { sharing } => popup(frame, " Close ", &question(model, sharing), 0),
    }
}

fn summary(model: &Model, palette: Palette) -> Paragraph<'static> {
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
        Some(why) => Line::styled(format!("Waiting: {why}"), palette.of(Color::Red).patch(BOLD)),
        None => totals(model),
    };
    Paragraph::new(vec![Line::from(first), second])
}

fn totals(model: &Model) -> Line<'static> {
    let totals = model.totals();
    let count = |number: usize, name: &str| format!("{number} {name}{}", if number == 1 { "" } else { "s" });
    let counts = [
        count(totals.hosts, "host"),
        count(totals.connections, "connection"),
        count(totals.sessions as usize, "session"),
        count(totals.tunnels as usize, "tunnel"),
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

fn views(app: &App, model: &Model) -> Line<'static> {
    let copies = model.totals().copies;
    let mut spans = Vec::new();
    for (number, view) in View::ALL.into_iter().enumerate() {
        let count = match view {
            View::Hosts => model.hosts.len(),
            View::Sessions => model.activities.len() - copies,
            View::Copies => copies,
            View::Failures => model.failures.len(),
        };
        let style = if view == app.view { REVERSED } else { Style::new() };
        spans.push(Span::styled(
            format!(" {} {} {count} ", number + 1, view.name()),
            style,
        ));
        spans.push(Span::raw(" "));
    }
    if !app.filter.is_empty() && app.mode != Mode::Filter {
        spans.push(Span::styled(format!("with \"{}\"", app.filter), BOLD));
    }
    Line::from(spans)
}

fn table(frame: &mut Frame<'_>, app: &mut App, model: &Model, palette: Palette, area: Rect) {
    let columns: Vec<(usize, &Column)> = app
        .view
        .columns()
        .iter()
        .enumerate()
        .filter(|(_, column)| column.from <= area.width)
        .collect();
    let rows = app.rows(model);
    app.room = usize::from(area.height.saturating_sub(1)).max(1);
    let selected = app.selected(&rows).map(|(at, _)| at);
    if let Some(at) = selected {
        let least = (at + 1).saturating_sub(app.room);
        app.first = app
            .first
            .clamp(least, at.max(least))
            .min(rows.len().saturating_sub(app.room));
    }
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs();
    let shown = rows
        .iter()
        .enumerate()
        .skip(app.first)
        .take(app.room)
        .map(|(at, row)| {
            let cells = columns
                .iter()
                .map(|(_, column)| filled(model, row, column, now, palette));
            let style = if Some(at) == selected {
                REVERSED
            } else {
                Style::new()
            };
            TableRow::new(cells).style(style)
        });
    let sort = app.sort();
    let header = columns.iter().map(|(number, column)| {
        let mut name = column.name.to_owned();
        // The sorted column says so, and in which direction.
        if *number == sort.by {
            name.push(if sort.reversed == column.number {
                '▲'
            } else {
                '▼'
            });
        }
        Cell::from(Line::raw(name).alignment(alignment(column)))
    });
    let widths = columns.iter().map(|(_, column)| match column.width {
        0 => Constraint::Fill(1),
        width => Constraint::Length(width),
    });
    let header = TableRow::new(header).style(BOLD);
    frame.render_widget(Table::new(shown, widths).header(header), area);
    if rows.is_empty() && area.height > 2 {
        let below = Rect {
            y: area.y + 2,
            height: 1,
            ..area
        };
        let words = Line::styled(nothing(app), palette.faint()).alignment(Alignment::Center);
        frame.render_widget(words, below);
    }
}

fn alignment(column: &Column) -> Alignment {
    if column.number {
        Alignment::Right
    } else {
        Alignment::Left
    }
}

fn filled(model: &Model, row: &Row, column: &Column, now: u64, palette: Palette) -> Cell<'static> {
    let text = tables::cell(model, row, column, now);
    let style = match column.name {
        "STATE" | "STARTED IN" => palette.state(&text),
        "RTT, LAST" | "" => palette.of(Color::Cyan),
        "BLAME" => palette.of(Color::Red),
        _ => Style::new(),
    };
    Cell::from(Line::styled(text, style).alignment(alignment(column)))
}

fn nothing(app: &App) -> &'static str {
    match app.view {
        _ if !app.filter.is_empty() => "Nothing has that in it. Esc shows everything again.",
        View::Hosts => "No host has a connection.",
        View::Sessions => "Nothing runs.",
        View::Copies => "Nothing is being copied by trunkline cp.",
        View::Failures => "Nothing has failed since the daemon began.",
    }
}

fn footer(app: &App, palette: Palette) -> Line<'static> {
    if app.mode == Mode::Filter {
        return Line::from(vec![
            Span::styled("Show only what has: ", BOLD),
            Span::raw(app.filter.clone()),
            Span::styled(" ", REVERSED),
        ]);
    }
    if let Some(note) = &app.note {
        return Line::styled(note.clone(), BOLD);
    }
    let keys = "? help  / filter  s sort  r reverse  Enter details  c close  Tab next  q quit";
    Line::styled(keys, palette.faint())
}

fn help() -> Vec<Line<'static>> {
    let keys = [
        ("1 2 3 4, Tab, ← →", "hosts, sessions, copies, failures"),
        ("↑ ↓, k j", "select a row"),
        ("PgUp, PgDn, Home, End", "a page on, the first row, the last"),
        ("Enter", "all about the selected row"),
        ("/", "show only rows with these letters; Esc ends it"),
        ("s S", "sort by the next column, the one before"),
        ("r", "sort the other way round"),
        ("c", "close the host's connections, after a question"),
        ("Ctrl-L, Ctrl-Z", "draw anew; suspend"),
        ("q, Ctrl-C", "quit: connections and sessions stay"),
    ];
    let lines: Vec<(String, String)> = keys
        .iter()
        .map(|(key, what)| ((*key).into(), (*what).into()))
        .collect();
    aligned(&lines)
}

fn question(model: &Model, sharing: &str) -> Vec<Line<'static>> {
    let Some(host) = model.hosts.get(sharing) else {
        return vec![Line::raw("This host has no connections any more.")];
    };
    let (connections, sessions) = (host.report.connections.len(), host.sessions());
    let plural = |count: usize| if count == 1 { "" } else { "s" };
    let what = format!(
        "Close {connections} connection{} to {}, with {sessions} session{}?",
        plural(connections),
        host.report.name,
        plural(sessions as usize)
    );
    vec![
        Line::styled(what, BOLD),
        Line::raw(""),
        Line::raw("y  yes, once the sessions have ended"),
        Line::raw("!  at once: what runs in them is cut off"),
        Line::raw("n  no"),
    ]
}

/// Names in a column of their own.
fn aligned(lines: &[(String, String)]) -> Vec<Line<'static>> {
    let width = lines
        .iter()
        .map(|(name, _)| name.chars().count())
        .max()
        .unwrap_or(0);
    let line = |(name, value): &(String, String)| {
        let name = Span::styled(format!("{name:width$}  "), BOLD);
        Line::from(vec![name, Span::raw(value.clone())])
    };
    lines.iter().map(line).collect()
}

fn popup(frame: &mut Frame<'_>, title: &'static str, lines: &[Line<'static>], first: u16) {
    let area = frame.area();
    let longest = lines.iter().map(Line::width).max().unwrap_or(0);
    let width = u16::try_from(longest + 4)
        .unwrap_or(u16::MAX)
        .clamp(30, 110)
        .min(area.width);
    let inner = usize::from(width.saturating_sub(4)).max(1);
    let wrapped: usize = lines.iter().map(|line| line.width().div_ceil(inner).max(1)).sum();
    let height = u16::try_from(wrapped + 2).unwrap_or(u16::MAX).min(area.height);
    let place = Rect {
        x: area.x + (area.width - width) / 2,
        y: area.y + (area.height - height) / 2,
        width,
        height,
    };
    let rest = u16::try_from(wrapped + 2)
        .unwrap_or(u16::MAX)
        .saturating_sub(height);
    let text = Paragraph::new(lines.to_vec())
        .wrap(Wrap { trim: false })
        .scroll((first.min(rest), 0))
        .block(
            Block::bordered()
                .title(title)
                .padding(ratatui::widgets::Padding::horizontal(1)),
        );
    frame.render_widget(Clear, place);
    frame.render_widget(text, place);
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use trunkline_control::protocol::ActivityKind;

    use super::*;
    use crate::feed::News;
    use crate::model::tests::{activity, failure, host, moment};

    fn model() -> Model {
        let mut model = Model::default();
        for second in 1..=6 {
            let mut hosts: Vec<_> = (1..=40)
                .map(|n| host(&format!("web{n}"), 1_000 * n * second))
                .collect();
            hosts[1].connections[0].busy = true;
            hosts[2].connections[0].handshake = None;
            hosts[3].connections[0].rtt = Some(std::time::Duration::from_micros(300 * second));
            hosts[4].name = "a-host-whose-name-is-longer-than-any-table-has-room-for".into();
            let mut update = moment(second, hosts);
            if second == 6 {
                update.activities = vec![
                    activity(
                        1,
                        ActivityKind::Command,
                        "web2",
                        "apt-get update && apt-get --yes upgrade",
                    ),
                    activity(2, ActivityKind::Copy, "web1", "/data → web1:/srv/data"),
                    activity(3, ActivityKind::Shell, "web1", ""),
                ];
                update.failures = vec![failure(
                    "db9",
                    "db9: connecting to 192.0.2.7 port 22: Connection refused",
                )];
            }
            model.learn(News::Update(Box::new(update)));
        }
        model
    }

    fn drawn(app: &mut App, model: &Model, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        let palette = Palette { colours: true };
        terminal.draw(|frame| draw(frame, app, model, palette)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn each_view_fits_terminals_of_80_and_200_columns() {
        let model = model();
        for view in View::ALL {
            for (width, height) in [(80, 24), (200, 20)] {
                let mut app = App {
                    view,
                    ..App::default()
                };
                let text = drawn(&mut app, &model, width, height);
                // How long ago that was depends on when this runs.
                let text = if view == View::Failures {
                    without_ages(&text)
                } else {
                    text
                };
                insta::assert_snapshot!(format!("{}_{width}", view.name().to_lowercase()), text);
            }
        }
    }

    /// The first column's number of days as one word.
    fn without_ages(text: &str) -> String {
        text.lines()
            .map(|line| match line.find(" d ") {
                Some(at) => format!("\"  AGO{}\n", &line[at + 2..]),
                None => format!("{line}\n"),
            })
            .collect()
    }

    #[test]
    fn what_lies_over_the_table_fits_too() {
        let model = model();
        for (name, mode) in [
            ("help", Mode::Help),
            ("details", Mode::Details(0)),
            (
                "close",
                Mode::Close {
                    sharing: "web1".into(),
                },
            ),
            ("filter", Mode::Filter),
        ] {
            let mut app = App {
                mode,
                ..App::default()
            };
            if name == "filter" {
                app.filter = "web3".into();
            }
            insta::assert_snapshot!(format!("over_{name}"), drawn(&mut app, &model, 80, 24));
        }
    }

    #[test]
    fn a_daemon_that_has_ended_is_said_to_have_and_what_was_known_stays() {
        let mut model = model();
        model.learn(News::Lost("the daemon has ended".into()));
        insta::assert_snapshot!(drawn(&mut App::default(), &model, 80, 10));
    }

    #[test]
    fn no_size_is_too_small() {
        let model = model();
        for (width, height) in [(1, 1), (10, 3), (20, 5), (500, 2)] {
            for mode in [
                Mode::Table,
                Mode::Help,
                Mode::Details(9),
                Mode::Close {
                    sharing: "web1".into(),
                },
            ] {
                drawn(
                    &mut App {
                        mode,
                        ..App::default()
                    },
                    &model,
                    width,
                    height,
                );
            }
        }
    }

    #[test]
    fn without_colours_there_are_none() {
        let model = model();
        let mut terminal = Terminal::new(TestBackend::new(120, 24)).unwrap();
        let mut app = App::default();
        terminal
            .draw(|frame| draw(frame, &mut app, &model, Palette { colours: false }))
            .unwrap();
        let cells = terminal.backend().buffer().content();
        assert!(
            cells
                .iter()
                .all(|cell| (cell.fg, cell.bg) == (Color::Reset, Color::Reset))
        );
    }
}
