//! Real sessions, recorded with their times, at a distance that they did not have.

use std::time::Duration;

use proptest::prelude::*;
use trunkline_predict::Size;

use crate::world::{Seen, World};

const SIZE: Size = Size {
    rows: 24,
    columns: 80,
};

#[derive(Debug, Clone)]
struct Event {
    at: Duration,
    is_typed: bool,
    bytes: Vec<u8>,
}

/// Reads a recording; `recordings/README.md` has its format.
fn recording(text: &str) -> Vec<Event> {
    let lines = text
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty());
    lines
        .map(|line| {
            let mut parts = line.splitn(3, ' ');
            let at: f64 = parts.next().unwrap().parse().unwrap();
            let direction = parts.next().unwrap();
            Event {
                at: Duration::from_secs_f64(at / 1000.0),
                is_typed: direction != "<",
                bytes: unescape(parts.next().unwrap()),
            }
        })
        .collect()
}

fn unescape(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&first, behind)) = rest.split_first() {
        rest = behind;
        if first != b'\\' {
            bytes.push(first);
            continue;
        }
        let (&kind, behind) = rest.split_first().unwrap();
        rest = behind;
        match kind {
            b'e' => bytes.push(0x1b),
            b'r' => bytes.push(b'\r'),
            b'n' => bytes.push(b'\n'),
            b'\\' => bytes.push(b'\\'),
            b'x' => {
                let digits = std::str::from_utf8(&rest[..2]).unwrap();
                bytes.push(u8::from_str_radix(digits, 16).unwrap());
                rest = &rest[2..];
            }
            other => panic!("no escape: {other}"),
        }
    }
    bytes
}

macro_rules! recordings {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../recordings/", $name, ".txt")))),*]
    };
}

const RECORDINGS: &[(&str, &str)] = recordings![
    "bash-5.2-edit",
    "bash-5.3-edit",
    "bash-5.3-paste-and-background",
    "bash-5.3-wide",
    "bash-5.3-wrap",
    "dash-kernel-echo",
    "fish-4.9-edit",
    "fish-4.9-wrap-and-wide",
    "less-search",
    "nano-9.3",
    "node-24",
    "passwords",
    "python-3.14-pyrepl",
    "python-3.14-readline",
    "tmux-3.8-bash",
    "vim-9.2-insert",
    "zsh-5.9-edit",
    "zsh-5.9-wrap-and-wide",
    "zsh-highlighting",
];

/// The places at which output is cut, and the extra delay of each part.
#[derive(Debug, Clone)]
struct Path {
    round_trip: Duration,
    row: usize,
    cuts: Vec<(usize, u64)>,
}

fn replay(text: &str, path: &Path, mut look: impl FnMut(&World)) -> Seen {
    let mut events: Vec<Event> = Vec::new();
    let mut cuts = path.cuts.iter().cycle();
    let mut arrived = Duration::ZERO;
    for event in recording(text) {
        if event.is_typed {
            events.push(event);
            continue;
        }
        let mut rest = &event.bytes[..];
        arrived = arrived.max(event.at + path.round_trip);
        while !rest.is_empty() {
            let (length, delay) = *cuts.next().unwrap();
            let (part, behind) = rest.split_at(length.min(rest.len()));
            arrived += Duration::from_millis(if behind.is_empty() { 0 } else { delay });
            events.push(Event {
                at: arrived,
                is_typed: false,
                bytes: part.to_vec(),
            });
            rest = behind;
        }
    }
    events.sort_by_key(|event| event.at);
    let mut world = World::new(SIZE, path.row, path.round_trip);
    let start = world.now;
    for event in events {
        world.advance_to(start + event.at);
        match event.is_typed {
            true => world.type_bytes(&event.bytes),
            false => world.output(&event.bytes),
        }
        look(&world);
    }
    world.end();
    world.seen
}

fn whole(round_trip: u64) -> Path {
    Path {
        round_trip: Duration::from_millis(round_trip),
        row: 5,
        cuts: vec![(usize::MAX, 0)],
    }
}

/// Of all recorded keys, control keys and answers to queries among them.
#[test]
fn most_keys_of_real_sessions_are_shown_at_once_and_few_wrongly() {
    let mut all = Seen::default();
    for (name, text) in RECORDINGS {
        let seen = replay(text, &whole(200), |_| {});
        let of_them = format!("{name}: {seen:?}");
        println!("{of_them}");
        assert!(seen.wrong.len() <= 1, "{of_them}");
        assert!(
            seen.wrong
                .iter()
                .all(|(_, stood)| *stood <= Duration::from_millis(250)),
            "{of_them}"
        );
        all.keys += seen.keys;
        all.shown_at_once += seen.shown_at_once;
        all.right += seen.right;
        all.wrong.extend(seen.wrong);
    }
    assert!(3 * all.shown_at_once >= 2 * all.keys, "{all:?}");
    assert!(100 * all.wrong.len() <= all.right, "{all:?}");
}

/// `read -s`, getpass with and without stars.
#[test]
fn nothing_of_a_password_is_ever_shown() {
    let (_, text) = RECORDINGS.iter().find(|(name, _)| *name == "passwords").unwrap();
    let seen = replay(text, &whole(200), |world| {
        assert!(!world.guesses_are_shown(), "{}", world.user.text());
    });
    assert_eq!((seen.right, seen.wrong.len(), seen.shown_at_once), (0, 0, 0));
}

fn paths() -> impl Strategy<Value = Path> {
    let cuts = prop::collection::vec((prop_oneof![1..8_usize, Just(usize::MAX)], 0..40_u64), 1..40);
    (20..600_u64, 0..24_usize, cuts).prop_map(|(round_trip, row, cuts)| Path {
        round_trip: Duration::from_millis(round_trip),
        row,
        cuts,
    })
}

proptest! {
    #[test]
    fn in_the_end_the_screen_is_what_it_is_without_prediction(path in paths(), which in 0..RECORDINGS.len()) {
        replay(RECORDINGS[which].1, &path, |_| {});
    }
}
