//! One key after the other, on simulated time.

use super::*;

const SIZE: Size = Size {
    rows: 24,
    columns: 80,
};

/// A session whose program echoes, at a distance.
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

    /// Types a key and waits for its echo; what was shown before that.
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
    // It is taken back, said by the server, and gone.
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
