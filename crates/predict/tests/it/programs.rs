//! Generated sessions with programs that are modelled after what real ones send, cut and delayed at random.

use std::collections::VecDeque;
use std::time::Duration;

use proptest::prelude::*;
use trunkline_predict::Size;

use crate::world::World;

/// A program behind the server's pseudo-terminal: what it writes for each key.
trait Program {
    fn begins(&mut self) -> String {
        String::new()
    }
    /// A key, as the terminal sends it. `None` when the program has ended.
    fn key(&mut self, key: &str) -> Option<String>;
    /// Something that happens without a key.
    fn tick(&mut self) -> String {
        String::new()
    }
    fn resize(&mut self, _size: Size) -> String {
        String::new()
    }
    /// Returns whether a character that is typed now is never shown.
    fn hides(&self) -> bool {
        false
    }
}

/// A line editor as bash has it: readline 8.2 writes the rest again, 8.3 inserts and deletes; zsh writes a space.
struct Shell {
    kind: Kind,
    line: Vec<char>,
    cursor: usize,
    prompt: &'static str,
    columns: usize,
    job_runs: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Readline82,
    Readline83,
    Zsh,
    /// Node's: the whole line anew.
    Repl,
    /// fish's: a grey suggestion behind the line.
    Suggests,
}

impl Shell {
    fn new(kind: Kind, prompt: &'static str, columns: usize) -> Self {
        Self {
            kind,
            line: Vec::new(),
            cursor: 0,
            prompt,
            columns,
            job_runs: false,
        }
    }

    fn width(&self) -> usize {
        self.prompt.chars().count() - self.prompt.matches("\x1b[32m").count() * 8
    }

    fn rest(&self) -> String {
        self.line[self.cursor..].iter().collect()
    }

    fn back(count: usize) -> String {
        "\x08".repeat(count)
    }

    fn whole(&self) -> String {
        let line: String = self.line.iter().collect();
        let column = self.width() + self.cursor + 1;
        format!("\x1b[1G\x1b[0J{}{line}\x1b[{column}G", self.prompt)
    }

    fn suggestion(&self) -> String {
        let line: String = self.line.iter().collect();
        let full = "echo hello world";
        match full
            .strip_prefix(&line)
            .filter(|_| self.cursor == self.line.len() && !line.is_empty())
        {
            Some(rest) => format!(
                "\x1b[90m{rest}\x1b[39m\x1b[K\r\x1b[{}C",
                self.width() + self.cursor
            ),
            None => String::new(),
        }
    }
}

impl Program for Shell {
    fn begins(&mut self) -> String {
        format!("\x1b[?2004h{}", self.prompt)
    }

    fn key(&mut self, key: &str) -> Option<String> {
        let is_full = self.width() + self.line.len() + 2 >= self.columns;
        Some(match key {
            "\r" => {
                let line: String = self.line.drain(..).collect();
                self.cursor = 0;
                if line.trim() == "exit" {
                    return None;
                }
                self.job_runs = line.starts_with('s');
                let printed = format!("{line}: not found\r\n").repeat(line.len() % 4);
                format!("\r\n\x1b[?2004l\r{printed}\x1b[?2004h{}", self.prompt)
            }
            "\x7f" if self.cursor > 0 => {
                self.cursor -= 1;
                self.line.remove(self.cursor);
                let rest = self.rest();
                match self.kind {
                    Kind::Repl => self.whole(),
                    Kind::Suggests => format!(
                        "\x08{rest}\x1b[K{}{}",
                        Self::back(rest.chars().count()),
                        self.suggestion()
                    ),
                    _ if rest.is_empty() && self.kind == Kind::Zsh => "\x08 \x08".into(),
                    _ if rest.is_empty() => "\x08\x1b[K".into(),
                    Kind::Readline83 => "\x08\x1b[1P".into(),
                    Kind::Readline82 => format!("\x08\x1b[1P{rest}{}", Self::back(rest.chars().count())),
                    Kind::Zsh => format!("\x08{rest} {}", Self::back(rest.chars().count() + 1)),
                }
            }
            "\x1b[D" if self.cursor > 0 => {
                self.cursor -= 1;
                match self.kind {
                    Kind::Repl => "\x1b[1D".into(),
                    _ => "\x08".into(),
                }
            }
            "\x1b[C" if self.cursor < self.line.len() => {
                self.cursor += 1;
                "\x1b[C".into()
            }
            "\x01" => Self::back(std::mem::take(&mut self.cursor)),
            "\x15" => {
                self.line.clear();
                let back = std::mem::take(&mut self.cursor);
                format!("{}\x1b[K", Self::back(back))
            }
            one if !is_full && one.chars().all(|one| !one.is_control()) => {
                let character = one.chars().next()?;
                self.line.insert(self.cursor, character);
                self.cursor += 1;
                let rest = self.rest();
                let back = Self::back(rest.chars().count());
                match self.kind {
                    Kind::Suggests => format!("{one}{rest}{back}{}", self.suggestion()),
                    Kind::Repl if !rest.is_empty() => self.whole(),
                    Kind::Readline83 if !rest.is_empty() => format!("\x1b[1@{one}"),
                    _ => format!("{one}{rest}{back}"),
                }
            }
            _ => "\x07".into(),
        })
    }

    /// A job in the background writes into the line.
    fn tick(&mut self) -> String {
        match std::mem::take(&mut self.job_runs) {
            true => "[1]+  Done\r\n".into(),
            false => String::new(),
        }
    }

    fn resize(&mut self, size: Size) -> String {
        self.columns = size.columns;
        self.line.truncate(self.cursor);
        let line: String = self.line.iter().collect();
        format!("\r\x1b[K{}{line}", self.prompt)
    }
}

/// Asks for a secret, which it does not show, or shows as stars.
struct Password {
    stars: bool,
    typed: usize,
}

impl Program for Password {
    fn begins(&mut self) -> String {
        "[sudo] password for root: ".into()
    }

    fn key(&mut self, key: &str) -> Option<String> {
        match key {
            "\r" => return None,
            "\x7f" if self.typed > 0 => self.typed -= 1,
            _ => self.typed += 1,
        }
        Some(match (self.stars, key) {
            (true, "\x7f") => "\x08 \x08".into(),
            (true, _) => "*".into(),
            (false, _) => String::new(),
        })
    }

    fn hides(&self) -> bool {
        true
    }
}

/// An editor: nothing is echoed until `i`, and a ruler follows the cursor.
struct Editor {
    inserts: bool,
    line: Vec<char>,
    rows: usize,
    columns: usize,
}

impl Editor {
    fn ruler(&self) -> String {
        let column = self.line.len() + 1;
        format!(
            "\x1b[{};{}H1,{column}   \x1b[1;{column}H\x1b[?25h",
            self.rows,
            self.columns / 2
        )
    }

    fn screen(&self) -> String {
        let line: String = self.line.iter().collect();
        let tildes = "\r\n\x1b[94m~\x1b[m".repeat(self.rows - 2);
        format!("\x1b[1;{}r\x1b[H\x1b[2J{line}{tildes}{}", self.rows, self.ruler())
    }
}

impl Program for Editor {
    fn begins(&mut self) -> String {
        format!("\x1b[?1049h\x1b[22;0;0t\x1b[?1h\x1b=\x1b[?25l{}", self.screen())
    }

    fn key(&mut self, key: &str) -> Option<String> {
        Some(match key {
            "\x1b" => {
                self.inserts = false;
                format!("\x1b[?25l\x1b[{};1H\x1b[K{}", self.rows, self.ruler())
            }
            _ if !self.inserts => match key {
                "i" => {
                    self.inserts = true;
                    format!("\x1b[?25l\x1b[{};1H-- INSERT --{}", self.rows, self.ruler())
                }
                "x" if !self.line.is_empty() => {
                    self.line.pop();
                    format!("\x1b[?25l\x1b[1;{}H\x1b[K{}", self.line.len() + 1, self.ruler())
                }
                "q" => return None,
                _ => String::new(),
            },
            "\x7f" if !self.line.is_empty() => {
                self.line.pop();
                format!("\x1b[?25l\x1b[1;{}H\x1b[K{}", self.line.len() + 1, self.ruler())
            }
            one if self.line.len() + 10 < self.columns && one.chars().all(|one| !one.is_control()) => {
                self.line.extend(one.chars());
                format!("\x1b[?25l{one}{}", self.ruler())
            }
            _ => String::new(),
        })
    }

    fn resize(&mut self, size: Size) -> String {
        (self.rows, self.columns) = (size.rows, size.columns);
        self.line.truncate(size.columns - 10);
        self.screen()
    }
}

/// Shows pages; a `/` asks for what to search.
struct Pager {
    rows: usize,
    page: usize,
    search: Option<usize>,
}

impl Pager {
    fn page(&self) -> String {
        let lines: String = (1..self.rows)
            .map(|row| format!("{} of page {}\r\n", row, self.page))
            .collect();
        format!("\x1b[H\x1b[2J{lines}:\x1b[K")
    }
}

impl Program for Pager {
    fn begins(&mut self) -> String {
        format!("\x1b[?1049h\x1b[?1h\x1b={}", self.page())
    }

    fn key(&mut self, key: &str) -> Option<String> {
        Some(match (&mut self.search, key) {
            (Some(_), "\r") => {
                self.search = None;
                self.page += 1;
                self.page()
            }
            (Some(typed), "\x7f") => match typed.checked_sub(1) {
                Some(left) => {
                    *typed = left;
                    "\x08\x1b[K".into()
                }
                None => {
                    self.search = None;
                    "\r\x1b[K:\x1b[K".into()
                }
            },
            (Some(typed), one) if one.chars().all(|one| !one.is_control()) && *typed < 30 => {
                *typed += 1;
                format!("\x1b[K{one}\x08{one}")
            }
            (Some(_), _) => "\x07".into(),
            (None, "/") => {
                self.search = Some(0);
                "\r\x1b[K/".into()
            }
            (None, "q") => return None,
            (None, _) => {
                self.page += 1;
                self.page()
            }
        })
    }

    fn resize(&mut self, size: Size) -> String {
        self.rows = size.rows;
        self.page()
    }
}

/// Shows how far it is, and echoes what the kernel echoes.
struct Progress {
    done: usize,
}

impl Program for Progress {
    fn key(&mut self, key: &str) -> Option<String> {
        Some(match key {
            "\r" => "\r\n".into(),
            "\x7f" => "\x08 \x08".into(),
            "\x1b" | "\x1b[C" | "\x1b[D" => key.replace('\x1b', "^["),
            "\x01" | "\x15" => String::new(),
            other => other.into(),
        })
    }

    fn tick(&mut self) -> String {
        self.done += 7;
        format!("\r\x1b[K[{}>] {}%", "=".repeat(self.done % 20), self.done % 100)
    }
}

/// Text that is wider than its letters, and longer than a row.
struct Wide;

impl Program for Wide {
    fn begins(&mut self) -> String {
        "漢字かな ❤\u{fe0f} e\u{301}👩\u{200d}👩\u{200d}👧 ".repeat(6) + "\r\n> "
    }

    fn key(&mut self, key: &str) -> Option<String> {
        Some(match key {
            "\r" => "\r\n漢> ".into(),
            "\x7f" => "\x08 \x08".into(),
            "\x1b[C" | "\x1b[D" | "\x1b" | "\x01" | "\x15" => String::new(),
            other => other.into(),
        })
    }
}

/// The next event on the user's side.
#[derive(Debug, Clone)]
enum Step {
    Key(&'static str),
    /// The kernel, or the program, writes by itself.
    Tick,
    Resize(Size),
}

#[derive(Debug, Clone)]
struct Session {
    programs: Vec<usize>,
    steps: Vec<(u64, Step)>,
    round_trip: u64,
    row: usize,
    cuts: Vec<(usize, u64)>,
}

fn key() -> impl Strategy<Value = &'static str> {
    prop_oneof![
        20 => prop::sample::select(vec!["e", "c", "h", "o", "l", "s", "x", "q", "i", "a", " ", "é"]),
        4 => Just("\x7f"),
        3 => prop::sample::select(vec!["\x1b[D", "\x1b[C"]),
        2 => Just("\r"),
        1 => prop::sample::select(vec!["\x1b", "\x01", "\x15", "/", "漢", "e\u{301}"]),
    ]
}

fn sizes() -> impl Strategy<Value = Size> {
    (5..30_usize, 40..100_usize).prop_map(|(rows, columns)| Size { rows, columns })
}

fn sessions(resizes: u32) -> impl Strategy<Value = Session> {
    let step = prop_oneof![
        40 => key().prop_map(Step::Key),
        2 => Just(Step::Tick),
        resizes => sizes().prop_map(Step::Resize),
    ];
    (
        prop::collection::vec(0..11_usize, 1..5),
        prop::collection::vec((prop_oneof![0..5_u64, 0..200_u64, Just(1000)], step), 1..120),
        20..500_u64,
        0..24_usize,
        prop::collection::vec((prop_oneof![1..8_usize, Just(usize::MAX)], 0..40_u64), 1..20),
    )
        .prop_map(|(programs, steps, round_trip, row, cuts)| Session {
            programs,
            steps,
            round_trip,
            row,
            cuts,
        })
}

fn program(which: usize, size: Size) -> Box<dyn Program> {
    match which {
        0 => Box::new(Shell::new(Kind::Readline82, "$ ", size.columns)),
        1 => Box::new(Shell::new(
            Kind::Readline83,
            "\x1b[32mme@far\x1b[m:~$ ",
            size.columns,
        )),
        2 => Box::new(Shell::new(Kind::Zsh, "far% ", size.columns)),
        3 => Box::new(Shell::new(Kind::Repl, "> ", size.columns)),
        4 => Box::new(Shell::new(Kind::Suggests, "~> ", size.columns)),
        5 => Box::new(Password {
            stars: false,
            typed: 0,
        }),
        6 => Box::new(Password {
            stars: true,
            typed: 0,
        }),
        7 => Box::new(Editor {
            inserts: false,
            line: Vec::new(),
            rows: size.rows,
            columns: size.columns,
        }),
        8 => Box::new(Pager {
            rows: size.rows,
            page: 1,
            search: None,
        }),
        9 => Box::new(Progress { done: 0 }),
        _ => Box::new(Wide),
    }
}

/// Bytes on their way to the terminal, and whether the program that is before the user then hides what is typed.
struct Arrival {
    at: Duration,
    bytes: Vec<u8>,
    hides: bool,
}

fn run(session: &Session) -> World {
    let mut size = Size {
        rows: 24,
        columns: 80,
    };
    let trip = Duration::from_millis(session.round_trip);
    let mut world = World::new(size, session.row, trip);
    let start = world.now;
    let mut cuts = session.cuts.iter().cycle();
    let mut arrivals: VecDeque<Arrival> = VecDeque::new();
    let mut programs = session.programs.iter().cycle();
    let mut running = program(*programs.next().unwrap(), size);
    let mut last = Duration::ZERO;
    let mut send = |arrivals: &mut VecDeque<Arrival>, written: String, after: Duration, hides: bool| {
        let mut rest = written.as_bytes();
        last = last.max(after);
        while !rest.is_empty() {
            let &(length, delay) = cuts.next().unwrap();
            let (part, behind) = rest.split_at(length.min(rest.len()));
            last += Duration::from_millis(if behind.is_empty() { 0 } else { delay });
            arrivals.push_back(Arrival {
                at: last,
                bytes: part.to_vec(),
                hides,
            });
            rest = behind;
        }
    };
    send(&mut arrivals, running.begins(), trip, running.hides());
    let mut now = Duration::ZERO;
    // What the user types is meant for the program that has it, and that the user may not see yet.
    let mut hidden_from: Option<Duration> = None;
    for (pause, step) in &session.steps {
        now += Duration::from_millis(*pause);
        while let Some(arrival) = arrivals.pop_front_if(|arrival| arrival.at <= now) {
            world.advance_to(start + arrival.at);
            world.output(&arrival.bytes);
            if arrival.hides && hidden_from.is_none() {
                hidden_from = Some(arrival.at);
            }
            if !arrival.hides {
                hidden_from = None;
            }
        }
        world.advance_to(start + now);
        let after = now + trip;
        match step {
            Step::Key(key) => {
                let was_shown = world.guesses_are_shown();
                world.type_bytes(key.as_bytes());
                if running.hides() && !was_shown {
                    assert!(!world.guesses_are_shown(), "a key of a secret is shown");
                }
                let written = running.key(key);
                let has_ended = written.is_none();
                send(&mut arrivals, written.unwrap_or_default(), after, running.hides());
                if has_ended {
                    running = program(*programs.next().unwrap(), size);
                    let begins = format!("\r\n\x1b[?1049l\x1b[?1l{}", running.begins());
                    send(&mut arrivals, begins, after, running.hides());
                }
            }
            Step::Tick => send(&mut arrivals, running.tick(), now + trip / 2, running.hides()),
            Step::Resize(new) => {
                // A narrower window cuts or folds what is shown, each terminal in its own way: nothing can be taken back there.
                if world.guesses_are_shown() && new.columns < size.columns {
                    continue;
                }
                size = *new;
                world.resize(size);
                send(&mut arrivals, running.resize(size), after, running.hides());
            }
        }
    }
    for arrival in arrivals {
        world.advance_to(start + arrival.at);
        world.output(&arrival.bytes);
    }
    world.end();
    world
}

proptest! {
    #[test]
    fn in_the_end_the_screen_is_what_it_is_without_prediction(session in sessions(0)) {
        run(&session);
    }

    #[test]
    fn a_window_that_changes_its_size_ends_in_the_same_screen(session in sessions(2)) {
        run(&session);
    }
}
