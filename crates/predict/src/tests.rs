//! One key after the other, on simulated time.

use super::*;

const SIZE: Size = Size {
    rows: 24,
    columns: 80,
};

/// A session at a distance, whose program echoes.
struct Session {
    predictor: Predictor,
    now: Instant,
    trip: Duration,
}

impl Session {
    fn new(mode: Mode, known: u64, trip: u64) -> Self {
        Self {
            predictor: Predictor::new(mode, SIZE, Some(Duration::from_millis(known))),
            now: Instant::now(),
            trip: Duration::from_millis(trip),
        }
    }

    fn output(&mut self, bytes: &str) -> (String, String) {
        let (before, after) = self.predictor.output(bytes.as_bytes(), self.now);
        (
            String::from_utf8(before).unwrap(),
            String::from_utf8(after).unwrap(),
        )
    }

    fn type_keys(&mut self, keys: &str) -> String {
        String::from_utf8(self.predictor.handle_input(keys.as_bytes(), self.now)).unwrap()
    }

    /// Types a key and waits for its echo; returns the bytes shown before the echo.
    fn type_and_echo(&mut self, key: &str) -> String {
        let shown = self.type_keys(key);
        self.now += self.trip;
        self.output(key);
        shown
    }

    fn passes(&mut self, milliseconds: u64) -> String {
        let end = self.now + Duration::from_millis(milliseconds);
        let mut shown = Vec::new();
        while let Some(deadline) = self.predictor.deadline().filter(|deadline| *deadline <= end) {
            self.now = self.now.max(deadline);
            shown.extend(self.predictor.timed_out(self.now));
        }
        self.now = end;
        String::from_utf8(shown).unwrap()
    }
}

#[test]
fn the_first_key_is_waited_for_and_the_next_one_is_not() {
    let mut session = Session::new(Mode::Adaptive, 200, 200);
    session.output("$ ");
    assert_eq!(session.type_and_echo("l"), "");
    assert_eq!(session.type_keys("s"), "s");
    session.now += session.trip;
    // The guess is taken back, the server's byte is written, and nothing is left.
    assert_eq!(session.output("s"), ("\x08\x1b[K".into(), String::new()));
    assert_eq!(session.predictor.deadline(), None);
}

#[test]
fn a_round_trip_that_was_taken_for_longer_costs_one_key_and_one_slow_echo_none() {
    let mut session = Session::new(Mode::Always, 300, 100);
    session.output("$ ");
    assert_eq!(session.type_and_echo("a"), "");
    assert_eq!(session.type_and_echo("b"), "");
    session.trip = Duration::from_millis(400);
    assert_eq!(session.type_and_echo("c"), "c");
    session.type_keys("\r");
    session.now += session.trip;
    session.output("\r\n$ ");
    session.trip = Duration::from_millis(100);
    assert_eq!(session.type_and_echo("d"), "");
    assert_eq!(session.type_keys("e"), "e");
}

#[test]
fn after_enter_nothing_is_shown_until_an_echo() {
    let mut session = Session::new(Mode::Adaptive, 200, 200);
    session.output("$ ");
    assert_eq!(session.type_and_echo("a"), "");
    assert_eq!(session.type_and_echo("b"), "b");
    session.type_keys("\r");
    session.now += session.trip;
    session.output("\r\nPassword: ");
    for key in ["s", "e", "c", "\x7f", "r", "e", "t"] {
        assert_eq!(session.type_keys(key), "");
        assert_eq!(session.passes(150), "");
    }
    session.passes(5000);
    assert_eq!(session.predictor.deadline(), None);
}

#[test]
fn what_is_late_is_underlined_and_then_taken_back() {
    let mut session = Session::new(Mode::Adaptive, 300, 300);
    session.output("$ ");
    session.type_and_echo("a");
    assert_eq!(session.type_keys("b"), "b");
    assert_eq!(session.passes(599), "");
    assert_eq!(session.passes(2), "\x08\x1b[0;4mb\x1b[0m");
    assert_eq!(session.passes(598), "");
    assert_eq!(session.passes(2), "\x08\x1b[K");
    assert_eq!(session.predictor.deadline(), None);
}

#[test]
fn a_wrong_guess_stands_until_output_has_paused() {
    let mut session = Session::new(Mode::Adaptive, 200, 200);
    session.output("$ ");
    session.type_and_echo("a");
    assert_eq!(session.type_keys("b"), "b");
    session.now += session.trip;
    assert_eq!(session.output("X"), ("\x08\x1b[K".into(), "\x08b".into()));
    assert_eq!(session.passes(60), "\x08X");
    assert_eq!(session.type_and_echo("c"), "");
}

/// Returns the row of a terminal that gets the predictor's bytes.
fn row_after(parts: &[&str]) -> String {
    let mut truth = Truth::new(SIZE);
    for part in parts {
        truth.feed(part.as_bytes());
    }
    let (row, _) = truth.cursor();
    let shown: String = (0..SIZE.columns)
        .map(|column| truth.character(row, column))
        .collect();
    shown.trim_end().to_owned()
}

#[test]
fn what_was_taken_away_again_does_not_come_back_with_its_echo() {
    let mut session = Session::new(Mode::Adaptive, 200, 200);
    session.output("$ ");
    session.type_and_echo("a");
    let mut shown = vec!["$ a".to_owned()];
    for key in ["b", "c", "\x7f"] {
        shown.push(session.type_keys(key));
        session.passes(60);
    }
    session.passes(20);
    for echo in ["b", "c", "\x08\x1b[K"] {
        let (before, after) = session.output(echo);
        shown.extend([before, echo.into(), after]);
        let parts: Vec<_> = shown.iter().map(String::as_str).collect();
        assert_eq!(row_after(&parts), "$ ab", "after the echo {echo:?}");
        shown.push(session.passes(20));
    }
}

#[test]
fn letters_inserted_before_text_move_it_once_an_echo_has_shown_that_they_do() {
    let mut session = Session::new(Mode::Adaptive, 200, 200);
    session.output("$ the end\x1b[7D");
    let mut shown = vec!["$ the end\x1b[7D".to_owned()];
    session.type_keys("a");
    session.now += session.trip;
    session.output("\x1b[1@a");
    shown.push("\x1b[1@a".into());
    let mut rows = Vec::new();
    for key in ["t", " ", "x", "\x7f"] {
        shown.push(session.type_keys(key));
        let parts: Vec<_> = shown.iter().map(String::as_str).collect();
        rows.push(row_after(&parts));
        session.passes(20);
    }
    assert_eq!(
        rows,
        ["$ atthe end", "$ at the end", "$ at xthe end", "$ at the end"]
    );
}

#[test]
fn letters_typed_over_a_suggestion_leave_it_in_its_place() {
    let mut session = Session::new(Mode::Adaptive, 200, 200);
    let suggests = "$ l\x1b[90ms -la src\x1b[39m\x1b[9D";
    session.output("$ ");
    session.type_keys("l");
    session.now += session.trip;
    session.output("l\x1b[90ms -la src\x1b[39m\x1b[9D");
    session.type_keys("s");
    session.now += session.trip;
    session.output("s\x1b[90m -la src\x1b[39m\x1b[8D");
    let shown = session.type_keys(" -");
    assert_eq!(row_after(&[suggests, "s", &shown]), "$ ls -la src");
}

/// The cells are those of a right prompt, and text that a program shows beside the line.
#[test]
fn what_stands_beside_the_text_is_not_moved_nor_covered() {
    let mut session = Session::new(Mode::Adaptive, 200, 200);
    let start = "$ end   ~\x1b[7D";
    session.output(start);
    session.type_keys("a");
    session.now += session.trip;
    session.output("\x1b[Kaend\x1b[3D\x1b[s\x1b[3C  ~\x1b[6D");
    let all = ["$ aend  ~\x1b[6D".to_owned(), session.type_keys("bcd")];
    let parts: Vec<_> = all.iter().map(String::as_str).collect();
    assert_eq!(row_after(&parts), "$ abcden~");
}

/// A line that the kernel echoes begins at the row's edge: no prompt tells it from another row.
#[test]
fn a_line_without_a_prompt_is_not_taken_for_the_row_that_comes_in_its_place() {
    let mut session = Session::new(Mode::Adaptive, 200, 200);
    session.output("working\r\n");
    for key in ["e", "c", "h", "o"] {
        session.type_and_echo(key);
    }
    assert_eq!(session.type_keys("x"), "x");
    session.passes(100);
    let (_, after) = session.output(" failed\r\nme@far:~$ echo");
    assert_eq!(after, "");
}

#[test]
fn a_near_host_is_left_alone_until_it_is_far() {
    let mut session = Session::new(Mode::Adaptive, 1, 1);
    session.output("$ ");
    for _ in 0..20 {
        assert_eq!(session.type_and_echo("a"), "");
    }
    assert!(
        session.predictor.truth.is_none(),
        "its output is not even followed"
    );
    session.trip = Duration::from_millis(100);
    for _ in 0..8 {
        assert_eq!(session.type_and_echo("a"), "");
    }
    session.output("\r\n$ ");
    assert_eq!(session.type_and_echo("a"), "");
    assert_eq!(session.type_and_echo("a"), "a");
}

#[test]
fn a_host_behind_a_proxy_is_known_by_its_echoes() {
    let mut session = Session::new(Mode::Adaptive, 1, 200);
    session.output("$ ");
    assert_eq!(session.type_and_echo("a"), "");
    assert_eq!(session.type_and_echo("a"), "a");
}

#[test]
fn always_is_always() {
    let mut session = Session::new(Mode::Always, 1, 1);
    session.output("$ ");
    for _ in 0..20 {
        session.type_and_echo("a");
    }
    assert_eq!(session.type_and_echo("a"), "a");
}

#[test]
fn much_plain_output_leaves_the_screen_that_all_of_it_makes() {
    let mut lines = String::new();
    for number in 0..4000 {
        lines += &"x".repeat(number % 170);
        lines += "\r\n";
    }
    let text = format!("{lines}$ ");
    let (mut at_once, mut in_pieces) = (Truth::new(SIZE), Truth::new(SIZE));
    at_once.feed(text.as_bytes());
    for piece in text.as_bytes().chunks(1000) {
        in_pieces.feed(piece);
    }
    assert_eq!(at_once.cursor(), in_pieces.cursor());
    for row in 0..SIZE.rows {
        for column in 0..SIZE.columns {
            assert_eq!(at_once.character(row, column), in_pieces.character(row, column));
        }
    }
}

#[test]
fn nothing_is_drawn_where_it_would_be_misread() {
    for open in [
        "\x1b[",
        "\x1b]0;title",
        "\x1b[?2026h",
        "\x1b[4h",
        "\x1b(0",
        "\x1b]8;;http://x\x1b\\",
        "\x1b[5m",
    ] {
        let mut session = Session::new(Mode::Always, 200, 200);
        session.output("$ ");
        session.type_and_echo("a");
        session.type_keys("b");
        session.now += session.trip;
        let (before, after) = session.output(open);
        assert_eq!((before.as_str(), after.as_str()), ("\x08\x1b[K", ""), "{open:?}");
        assert_eq!(session.type_keys("c"), "", "{open:?}");
    }
}
