//! The state of the view, and the effects of keys.

use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::subject::{Sort, Subject};

/// The state of the view.
#[derive(Debug)]
pub(super) struct App<S: Subject> {
    pub(super) view: S::View,
    pub(super) filter: String,
    pub(super) mode: Mode,
    /// The result of the last command.
    pub(super) note: Option<String>,
    /// The number of rows that fit, as last drawn.
    pub(super) room: usize,
    /// The first visible row.
    pub(super) first: usize,
    /// The sort order of each table.
    pub(super) sorts: Vec<Sort>,
    pub(super) selected: Vec<Option<S::Row>>,
}

impl<S: Subject> Default for App<S> {
    fn default() -> Self {
        Self {
            view: S::View::default(),
            filter: String::new(),
            mode: Mode::Table,
            note: None,
            room: 0,
            first: 0,
            sorts: vec![Sort::default(); S::VIEWS.len()],
            selected: vec![None; S::VIEWS.len()],
        }
    }
}

/// The mode, which decides the meaning of keys.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) enum Mode {
    /// Keys are commands.
    #[default]
    Table,
    /// Keys are typed into the filter.
    Filter,
    Help,
    /// Shows details of the selected row, from this line.
    Details(u16),
    /// Asks whether to close the connections of a host.
    Close {
        sharing: String,
    },
}

/// The work to do.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Action {
    None,
    Quit,
    Redraw,
    Suspend,
    Close { sharing: String, at_once: bool },
}

impl<S: Subject> App<S> {
    /// Returns the index of the current table.
    fn place(&self) -> usize {
        let mut views = S::VIEWS.iter();
        views.position(|view| *view == self.view).unwrap_or_default()
    }

    /// Returns the rows of the current table.
    pub(super) fn rows(&self, model: &S) -> Vec<S::Row> {
        model.rows(self.view, &self.filter, self.sort())
    }

    pub(super) fn sort(&self) -> Sort {
        self.sorts[self.place()]
    }

    /// Returns the selected row, if any: the first one if the selected row is gone.
    pub(super) fn selection<'a>(&self, rows: &'a [S::Row]) -> Option<(usize, &'a S::Row)> {
        let wanted = self.selected[self.place()].as_ref();
        let at = wanted.and_then(|wanted| rows.iter().position(|row| row == wanted));
        let at = at.unwrap_or(0);
        rows.get(at).map(|row| (at, row))
    }

    /// Handles keys: letters, `\n`, Esc, `↓` and `⇟`.
    pub(super) fn press(&mut self, keys: &str, model: &S) -> Action {
        let mut last = Action::None;
        for key in keys.chars() {
            let code = match key {
                '\n' => KeyCode::Enter,
                '\x1b' => KeyCode::Esc,
                '↓' => KeyCode::Down,
                '⇟' => KeyCode::PageDown,
                letter => KeyCode::Char(letter),
            };
            last = self.key(KeyEvent::new(code, KeyModifiers::NONE), model);
        }
        last
    }

    /// Handles a key.
    pub(super) fn key(&mut self, key: KeyEvent, model: &S) -> Action {
        if key.kind == KeyEventKind::Release {
            return Action::None;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            match key.code {
                KeyCode::Char('c') => return Action::Quit,
                KeyCode::Char('l') => return Action::Redraw,
                KeyCode::Char('z') => return Action::Suspend,
                _ => {}
            }
        }
        self.note = None;
        match &mut self.mode {
            Mode::Table => return self.command(key.code, model),
            Mode::Filter => match key.code {
                KeyCode::Enter => self.mode = Mode::Table,
                KeyCode::Esc => {
                    self.filter.clear();
                    self.mode = Mode::Table;
                }
                KeyCode::Backspace => drop(self.filter.pop()),
                KeyCode::Char('u') if key.modifiers.contains(KeyModifiers::CONTROL) => self.filter.clear(),
                KeyCode::Char(letter) if !letter.is_control() => self.filter.push(letter),
                _ => {}
            },
            Mode::Help => self.mode = Mode::Table,
            Mode::Details(line) => match key.code {
                KeyCode::Down | KeyCode::Char('j') => *line = line.saturating_add(1),
                KeyCode::Up | KeyCode::Char('k') => *line = line.saturating_sub(1),
                KeyCode::PageDown | KeyCode::Char(' ') => *line = line.saturating_add(10),
                KeyCode::PageUp => *line = line.saturating_sub(10),
                KeyCode::Char('c') if S::CLOSES => self.ask_to_close(model),
                _ => self.mode = Mode::Table,
            },
            Mode::Close { sharing } => {
                let sharing = std::mem::take(sharing);
                self.mode = Mode::Table;
                match key.code {
                    KeyCode::Char('y' | 'Y') => {
                        return Action::Close {
                            sharing,
                            at_once: false,
                        };
                    }
                    KeyCode::Char('!') => {
                        return Action::Close {
                            sharing,
                            at_once: true,
                        };
                    }
                    _ => self.note = Some("nothing was closed".into()),
                }
            }
        }
        Action::None
    }

    fn command(&mut self, key: KeyCode, model: &S) -> Action {
        match key {
            KeyCode::Char('q') => return Action::Quit,
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => self.mode = Mode::Help,
            KeyCode::Char('/') => self.mode = Mode::Filter,
            KeyCode::Char('c') if S::CLOSES => self.ask_to_close(model),
            KeyCode::Enter if !self.rows(model).is_empty() => self.mode = Mode::Details(0),
            KeyCode::Tab | KeyCode::Right => self.look_at(self.place() + 1),
            KeyCode::BackTab | KeyCode::Left => self.look_at(self.place() + S::VIEWS.len() - 1),
            KeyCode::Char(number @ '1'..='9') if (number as usize - '1' as usize) < S::VIEWS.len() => {
                self.look_at(number as usize - '1' as usize);
            }
            KeyCode::Char('s') => {
                let (columns, place) = (S::columns(self.view).len(), self.place());
                let sort = &mut self.sorts[place];
                *sort = Sort {
                    by: (sort.by + 1) % columns,
                    reversed: false,
                };
            }
            KeyCode::Char('S') => {
                let (columns, place) = (S::columns(self.view).len(), self.place());
                let sort = &mut self.sorts[place];
                *sort = Sort {
                    by: (sort.by + columns - 1) % columns,
                    reversed: false,
                };
            }
            KeyCode::Char('r') => {
                let place = self.place();
                let sort = &mut self.sorts[place];
                sort.reversed = !sort.reversed;
            }
            KeyCode::Down | KeyCode::Char('j') => self.go(model, 1),
            KeyCode::Up | KeyCode::Char('k') => self.go(model, -1),
            KeyCode::PageDown | KeyCode::Char(' ') => self.go(model, self.room.cast_signed()),
            KeyCode::PageUp => self.go(model, -self.room.cast_signed()),
            KeyCode::Home | KeyCode::Char('g') => self.go(model, isize::MIN / 2),
            KeyCode::End | KeyCode::Char('G') => self.go(model, isize::MAX / 2),
            _ => {}
        }
        Action::None
    }

    fn look_at(&mut self, view: usize) {
        self.view = S::VIEWS[view % S::VIEWS.len()];
        self.first = 0;
    }

    /// Moves the selection by this many rows.
    fn go(&mut self, model: &S, by: isize) {
        let rows = self.rows(model);
        let (at, _) = self.selection(&rows).unzip();
        let last = rows.len().saturating_sub(1);
        let at = at.unwrap_or(0).saturating_add_signed(by).min(last);
        let place = self.place();
        self.selected[place] = rows.into_iter().nth(at);
    }

    /// Asks whether to close the connections of the selected host, or of the selected session's host.
    fn ask_to_close(&mut self, model: &S) {
        let rows = self.rows(model);
        let sharing = self.selection(&rows).and_then(|(_, row)| model.sharing(row));
        match sharing {
            Some(sharing) => self.mode = Mode::Close { sharing },
            None => self.note = Some("this host has no connections".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::feed::News;
    use crate::model::Model;
    use crate::model::tests::{activity, host, moment};
    use crate::top::tables::{Row, View};
    use trunkline_control::protocol::ActivityKind;

    fn model() -> Model {
        let mut model = Model::default();
        let mut update = moment(1, (1..=30).map(|n| host(&format!("web{n}"), n)).collect());
        update.activities = vec![activity(1, ActivityKind::Command, "web7", "uptime")];
        model.learn(News::Update(Box::new(update)));
        model
    }

    fn selected_name(app: &App<Model>, model: &Model) -> String {
        let rows = app.rows(model);
        match app.selection(&rows) {
            Some((_, Row::Host(sharing))) => sharing.clone(),
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn the_selection_stays_with_its_host_and_within_the_table() {
        let (model, mut app) = (
            model(),
            App {
                room: 10,
                ..App::default()
            },
        );
        app.press("↓↓", &model);
        assert_eq!(selected_name(&app, &model), "web3");
        app.press("r", &model);
        assert_eq!(selected_name(&app, &model), "web3");
        app.press("r⇟⇟⇟⇟", &model);
        assert_eq!(selected_name(&app, &model), "web30");
        app.press("g", &model);
        assert_eq!(selected_name(&app, &model), "web1");
    }

    #[test]
    fn a_filter_is_typed_and_taken_away_again() {
        let (model, mut app) = (model(), App::default());
        app.press("/WEB2\n", &model);
        assert_eq!(app.rows(&model).len(), 11);
        app.press("/0\n", &model);
        assert_eq!(app.rows(&model).len(), 1);
        app.press("\x1b", &model);
        assert_eq!(app.rows(&model).len(), 30);
        assert_eq!(app.press("/q", &model), Action::None, "it is a letter here");
    }

    #[test]
    fn connections_are_closed_only_after_a_yes() {
        let (model, mut app) = (model(), App::default());
        for no in ["cn", "c\n", "cq", "c\x1b"] {
            assert_eq!(app.press(no, &model), Action::None, "{no}");
        }
        let close = |sharing: &str, at_once| Action::Close {
            sharing: sharing.into(),
            at_once,
        };
        assert_eq!(app.press("↓cy", &model), close("web2", false));
        assert_eq!(
            app.press("2c!", &model),
            close("web7", true),
            "that of the session's host"
        );
    }

    #[test]
    fn columns_are_sorted_one_after_the_other() {
        let (model, mut app) = (model(), App::default());
        let sent = View::Hosts
            .columns()
            .iter()
            .position(|column| column.name == "SENT")
            .unwrap();
        app.press(&"s".repeat(sent), &model);
        assert_eq!(app.rows(&model)[0], Row::Host("web30".into()), "most comes first");
        app.press("r", &model);
        assert_eq!(app.rows(&model)[0], Row::Host("web1".into()));
    }
}
