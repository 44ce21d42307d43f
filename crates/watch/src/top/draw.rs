//! Drawing of the screen, for a terminal of any size.

use std::time::{SystemTime, UNIX_EPOCH};

use ratatui::backend::TestBackend;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Cell, Clear, Paragraph, Row as TableRow, Table, Wrap};
use ratatui::{Frame, Terminal};

use super::app::{App, Mode};
use super::palette::{BOLD, Palette, REVERSED};
use super::subject::{Column, Subject};

/// Draws the screen.
pub(super) fn draw<S: Subject>(frame: &mut Frame<'_>, app: &mut App<S>, model: &S, palette: Palette) {
    let [head, tabs, body, foot] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Length(1),
        Constraint::Min(1),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(Paragraph::new(model.summary(palette).to_vec()), head);
    frame.render_widget(views(app, model), tabs);
    table(frame, app, model, palette, body);
    frame.render_widget(footer(app, palette), foot);
    match &app.mode {
        Mode::Table | Mode::Filter => {}
        Mode::Help => popup(frame, " Help ", &help::<S>(), 0),
        Mode::Details(line) => {
            let rows = app.rows(model);
            let known = app.selection(&rows).and_then(|(_, row)| model.details(row));
            let lines = known.unwrap_or_else(|| vec![("gone".into(), "It has ended.".into())]);
            popup(frame, " Details ", &align(&lines), *line);
        }
        Mode::Close { sharing } => popup(frame, " Close ", &model.question(sharing), 0),
    }
}

/// Draws the screen in colour, and returns the text, a line for each row.
pub(super) fn to_text<S: Subject>(app: &mut App<S>, model: &S, width: u16, height: u16) -> String {
    let palette = Palette { colours: true };
    match Terminal::new(TestBackend::new(width, height)) {
        Ok(mut terminal) => {
            let Ok(_) = terminal.draw(|frame| draw(frame, app, model, palette));
            terminal.backend().to_string()
        }
        Err(never) => match never {},
    }
}

fn views<S: Subject>(app: &App<S>, model: &S) -> Line<'static> {
    let mut spans = Vec::new();
    for (number, view) in S::VIEWS.iter().copied().enumerate() {
        let count = model.count(view);
        let style = if view == app.view { REVERSED } else { Style::new() };
        spans.push(Span::styled(
            format!(" {} {} {count} ", number + 1, S::name(view)),
            style,
        ));
        spans.push(Span::raw(" "));
    }
    if !app.filter.is_empty() && app.mode != Mode::Filter {
        spans.push(Span::styled(format!("with \"{}\"", app.filter), BOLD));
    }
    Line::from(spans)
}

fn table<S: Subject>(frame: &mut Frame<'_>, app: &mut App<S>, model: &S, palette: Palette, area: Rect) {
    let columns: Vec<(usize, &Column)> = S::columns(app.view)
        .iter()
        .enumerate()
        .filter(|(_, column)| column.from <= area.width)
        .collect();
    let rows = app.rows(model);
    app.room = usize::from(area.height.saturating_sub(1)).max(1);
    let selected = app.selection(&rows).map(|(at, _)| at);
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
                .map(|(_, column)| fill_cell(model, row, column, now, palette));
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
        // The sorted column shows the direction.
        if *number == sort.by {
            name.push(if sort.reversed == column.number {
                '▲'
            } else {
                '▼'
            });
        }
        Cell::from(Line::raw(name).alignment(alignment(column)))
    });
    let widths = widths(model, &rows, &columns, now, area.width);
    let header = TableRow::new(header).style(BOLD);
    frame.render_widget(Table::new(shown, widths).header(header), area);
    if rows.is_empty() && area.height > 2 {
        let below = Rect {
            y: area.y + 2,
            height: 1,
            ..area
        };
        let nothing = match app.filter.is_empty() {
            true => S::nothing(app.view),
            false => "Nothing has that in it. Esc shows everything again.",
        };
        let words = Line::styled(nothing, palette.faint()).alignment(Alignment::Center);
        frame.render_widget(words, below);
    }
}

/// Returns the widths of a table's columns. Columns without a fixed width share the remaining space, up to the needs of
/// all their rows, visible or not. Needs are rounded up in steps, so that later columns do not move with every change
/// of rows.
fn widths<S: Subject>(
    model: &S,
    rows: &[S::Row],
    columns: &[(usize, &Column)],
    now: u64,
    width: u16,
) -> Vec<Constraint> {
    const STEP: usize = 16;
    let mut widths: Vec<usize> = columns.iter().map(|(_, column)| column.width.into()).collect();
    let needs = |column: &Column| {
        let cells = rows
            .iter()
            .map(|row| Line::raw(model.cell(row, column, now)).width());
        let longest = cells.max().unwrap_or(0).max(column.name.len() + 1);
        longest.next_multiple_of(STEP)
    };
    let open = columns
        .iter()
        .enumerate()
        .filter(|(_, (_, column))| column.width == 0);
    let mut open: Vec<(usize, usize)> = open.map(|(at, (_, column))| (needs(column), at)).collect();
    let gaps = columns.len().saturating_sub(1);
    let mut left = usize::from(width).saturating_sub(widths.iter().sum::<usize>() + gaps);
    // Space that a column does not need is left to the others.
    open.sort_unstable();
    for (nth, (needed, at)) in open.iter().enumerate() {
        widths[*at] = (*needed).min(left / (open.len() - nth));
        left -= widths[*at];
    }
    let length = |width: usize| Constraint::Length(u16::try_from(width).unwrap_or(u16::MAX));
    widths.into_iter().map(length).collect()
}

fn alignment(column: &Column) -> Alignment {
    if column.number {
        Alignment::Right
    } else {
        Alignment::Left
    }
}

fn fill_cell<S: Subject>(
    model: &S,
    row: &S::Row,
    column: &Column,
    now: u64,
    palette: Palette,
) -> Cell<'static> {
    let text = model.cell(row, column, now);
    let style = match column.name {
        "STATE" | "STARTED IN" | "WHY MOVED" => palette.state(&text),
        "RTT, LAST" | "" => palette.style(Color::Cyan),
        "BLAME" => palette.style(Color::Red),
        _ => Style::new(),
    };
    Cell::from(Line::styled(text, style).alignment(alignment(column)))
}

fn footer<S: Subject>(app: &App<S>, palette: Palette) -> Line<'static> {
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
    let keys = match S::CLOSES {
        true => "? help  / filter  s sort  r reverse  Enter details  c close  Tab next  q quit",
        false => "? help  / filter  s sort  r reverse  Enter details  Tab next  q quit",
    };
    Line::styled(keys, palette.faint())
}

const CLOSE: &str = "close the host's connections, after a question";

const QUIT: [&str; 2] = ["quit", "quit: connections and sessions stay"];

fn help<S: Subject>() -> Vec<Line<'static>> {
    let numbers: Vec<String> = (1..=S::VIEWS.len()).map(|number| number.to_string()).collect();
    let tables: Vec<String> = S::VIEWS
        .iter()
        .map(|view| S::name(*view).to_lowercase())
        .collect();
    let first = (format!("{}, Tab, ← →", numbers.join(" ")), tables.join(", "));
    let keys = [
        ("↑ ↓, k j", "select a row"),
        ("PgUp, PgDn, Home, End", "a page on, the first row, the last"),
        ("Enter", "all about the selected row"),
        ("/", "show only rows with these letters; Esc ends it"),
        ("s S", "sort by the next column, the one before"),
        ("r", "sort the other way round"),
        ("c", CLOSE),
        ("Ctrl-L, Ctrl-Z", "redraw; suspend"),
        ("q, Ctrl-C", QUIT[usize::from(S::CLOSES)]),
    ];
    let keys = keys.iter().filter(|(_, what)| S::CLOSES || *what != CLOSE);
    let lines = keys.map(|(key, what)| ((*key).into(), (*what).into()));
    let lines: Vec<(String, String)> = std::iter::once(first).chain(lines).collect();
    align(&lines)
}

/// Aligns names in their own column.
fn align(lines: &[(String, String)]) -> Vec<Line<'static>> {
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
    use trunkline_control::protocol::ActivityKind;

    use super::*;
    use crate::feed::News;
    use crate::model::Model;
    use crate::model::tests::{activity, failure, host, moment};
    use crate::top::tables::View;

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

    #[test]
    fn each_view_fits_terminals_of_80_and_200_columns() {
        let model = model();
        for view in View::ALL {
            for (width, height) in [(80, 24), (200, 20)] {
                let mut app = App {
                    view,
                    ..App::default()
                };
                let text = to_text(&mut app, &model, width, height);
                // The age depends on when this runs.
                let text = if view == View::Failures {
                    without_ages(&text)
                } else {
                    text
                };
                insta::assert_snapshot!(format!("{}_{width}", Model::name(view).to_lowercase()), text);
            }
        }
    }

    /// Replaces the first column's number of days by a word.
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
            insta::assert_snapshot!(format!("over_{name}"), to_text(&mut app, &model, 80, 24));
        }
    }

    #[test]
    fn a_daemon_that_has_ended_is_said_to_have_and_what_was_known_stays() {
        let mut model = model();
        model.learn(News::Lost("the daemon has ended".into()));
        insta::assert_snapshot!(to_text(&mut App::default(), &model, 80, 10));
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
                to_text(
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
