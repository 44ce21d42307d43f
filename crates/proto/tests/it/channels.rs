//! [`Channels`] against a model of a server: no keys, no bytes on a wire, every order of events.

mod model;

use std::time::{Duration, Instant};

use bytes::Bytes;
use model::{Model, Step};
use proptest::prelude::*;
use trunkline_proto::channels::{Channels, Outgoing};
use trunkline_proto::wire::Writer;
use trunkline_proto::{ChannelEvent, ChannelId, ChannelKind, ChannelRequest, OpenFailure, Stream};

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(384) })]

    /// Windows are never overrun, data arrives complete and in order, answers match requests, EOF and CLOSE come last,
    /// channels that were given up say nothing more, credit is conserved: see [`Model`].
    #[test]
    fn whatever_the_order_of_events_nothing_is_lost_and_no_rule_is_broken(
        steps in proptest::collection::vec(any::<(u8, u8, u16)>(), 1..400),
        sshd: bool,
    ) {
        let mut model = Model::new(sshd);
        for step in steps {
            model.apply(Step::from_numbers(step));
        }
        model.finish();
    }

    #[test]
    fn hostile_messages_never_panic(
        messages in proptest::collection::vec(
            (80u8..=110, 0u32..4, proptest::collection::vec(any::<u8>(), 0..64)),
            1..60,
        ),
    ) {
        let (mut channels, id) = session(1000);
        let now = Instant::now();
        for (number, channel, rest) in messages {
            let message = Writer::message(number).u32(channel).raw(&rest).finish();
            if channels.handle(&message).is_err() {
                break;
            }
            channels.write(id, Bytes::from_static(b"some data"));
            channels.consume(id, rest.len(), now);
            while let Some(event) = channels.next_event() {
                if let ChannelEvent::Incoming { id, .. } = event {
                    channels.accept(id);
                }
            }
            while channels.next_message().is_some() {}
        }
    }
}

/// A connection with one session open in it, whose number is 0 on both sides, and with nothing to say.
fn session(window: u32) -> (Channels, ChannelId) {
    let mut channels = Channels::default();
    let id = open(&mut channels, 0, window);
    (channels, id)
}

fn open(channels: &mut Channels, server_number: u32, window: u32) -> ChannelId {
    let id = channels.open(&ChannelKind::Session);
    let confirmation = Writer::message(model::OPEN_CONFIRMATION)
        .u32(id.number())
        .u32(server_number)
        .u32(window)
        .u32(32 * 1024);
    channels.handle(&confirmation.finish()).unwrap();
    drain(channels);
    id
}

fn drain(channels: &mut Channels) {
    while channels.next_message().is_some() {}
    while channels.next_event().is_some() {}
}

fn data(id: ChannelId, len: usize) -> Bytes {
    Writer::message(model::DATA)
        .u32(id.number())
        .string(vec![b'x'; len])
        .finish()
}

fn adjust(id: ChannelId, add: u32) -> Bytes {
    Writer::message(model::WINDOW_ADJUST)
        .u32(id.number())
        .u32(add)
        .finish()
}

fn message_about(number: u8, id: ChannelId) -> Bytes {
    Writer::message(number).u32(id.number()).finish()
}

fn events(channels: &mut Channels) -> Vec<ChannelEvent> {
    std::iter::from_fn(|| channels.next_event()).collect()
}

/// The server's numbers and lengths of the data messages that wait.
fn sent_data(channels: &mut Channels) -> Vec<(u32, usize)> {
    std::iter::from_fn(|| channels.next_message())
        .filter_map(|message| match message {
            Outgoing::Data { head, data } => {
                Some((u32::from_be_bytes(head[1..5].try_into().unwrap()), data.len()))
            }
            Outgoing::Control(_) => None,
        })
        .collect()
}

#[test]
fn a_stalled_reader_blocks_nobody_else() {
    let (mut channels, stalled) = session(0);
    let other = open(&mut channels, 1, 0);
    let now = Instant::now();
    // The server fills the window of a channel that nobody reads.
    for _ in 0..64 {
        channels.handle(&data(stalled, 32 * 1024)).unwrap();
    }
    drain(&mut channels);
    let mut returned = 0;
    for _ in 0..1000 {
        channels.handle(&data(other, 32 * 1024)).unwrap();
        channels.consume(other, 32 * 1024, now);
        while let Some(Outgoing::Control(message)) = channels.next_message() {
            assert_eq!(message[..5], [model::WINDOW_ADJUST, 0, 0, 0, 1]);
            returned += u32::from_be_bytes(message[5..9].try_into().unwrap());
        }
    }
    assert!(returned >= 1000 * 32 * 1024 - (512 << 10));
    assert!(
        channels.handle(&data(stalled, 1)).is_err(),
        "the stalled channel's window is used up"
    );
}

#[test]
fn a_server_that_reads_one_channel_slowly_gets_the_others_data() {
    let (mut channels, slow) = session(100);
    let other = open(&mut channels, 1, 1 << 20);
    channels.write(slow, Bytes::from(vec![0; 1 << 20]));
    channels.write(other, Bytes::from(vec![0; 100_000]));
    let sent = sent_data(&mut channels);
    let bytes = |number| {
        sent.iter()
            .filter(|(n, _)| *n == number)
            .map(|(_, len)| len)
            .sum::<usize>()
    };
    assert_eq!((bytes(0), bytes(1)), (100, 100_000));
}

#[test]
fn small_writers_are_served_before_bulk_and_bulk_takes_turns() {
    let (mut channels, first) = session(1 << 20);
    let second = open(&mut channels, 1, 1 << 20);
    let keys = open(&mut channels, 2, 1 << 20);
    channels.write(first, Bytes::from(vec![0; 100_000]));
    channels.write(second, Bytes::from(vec![0; 100_000]));
    channels.write(keys, Bytes::from_static(b"k"));
    let order: Vec<u32> = sent_data(&mut channels)
        .into_iter()
        .map(|(number, _)| number)
        .collect();
    assert_eq!(order[..5], [2, 0, 1, 0, 1]);
}

#[test]
fn a_rejected_channel_leaves_the_table() {
    let mut channels = Channels::default();
    let id = channels.open(&ChannelKind::Session);
    channels.request(id, &ChannelRequest::Exec(b"true".to_vec()));
    let refusal = Writer::message(model::OPEN_FAILURE)
        .u32(id.number())
        .u32(1)
        .string("no\x1b[2J")
        .string("");
    channels.handle(&refusal.finish()).unwrap();
    assert!(channels.is_empty());
    let failed = ChannelEvent::OpenFailed {
        id,
        reason: OpenFailure::ADMINISTRATIVELY_PROHIBITED,
        description: "no\\033[2J".into(),
    };
    assert_eq!(events(&mut channels), [failed]);
    // What is asked of it afterwards goes nowhere.
    drain(&mut channels);
    channels.write(id, Bytes::from_static(b"late"));
    channels.eof(id);
    channels.close(id);
    assert_eq!(channels.next_message(), None);
}

#[test]
fn an_offer_that_the_application_refuses_leaves_the_table() {
    let mut channels = Channels::default();
    channels.handle(&offer(7)).unwrap();
    let [ChannelEvent::Incoming { id, .. }] = events(&mut channels)[..] else {
        panic!("one offer")
    };
    channels.reject(id, OpenFailure::CONNECT_FAILED, "nobody listens");
    assert!(channels.is_empty());
    let Some(Outgoing::Control(refusal)) = channels.next_message() else {
        panic!("the server hears of it")
    };
    assert_eq!(refusal[..9], [model::OPEN_FAILURE, 0, 0, 0, 7, 0, 0, 0, 2]);
}

fn offer(server_number: u32) -> Bytes {
    Writer::message(model::OPEN)
        .string("forwarded-tcpip")
        .u32(server_number)
        .u32(1000)
        .u32(1000)
        .string("localhost")
        .u32(8080)
        .string("10.0.0.1")
        .u32(1024)
        .finish()
}

#[test]
fn messages_about_a_channel_that_is_not_open_end_the_connection() {
    let open = Writer::message(model::OPEN_CONFIRMATION)
        .u32(9)
        .u32(0)
        .u32(0)
        .u32(0)
        .finish();
    let nowhere = ChannelId::from_number(9);
    for message in [
        data(nowhere, 1),
        adjust(nowhere, 1),
        message_about(model::EOF, nowhere),
        message_about(model::CLOSE, nowhere),
        message_about(model::SUCCESS, nowhere),
        open,
        Writer::message(model::OPEN_FAILURE)
            .u32(9)
            .u32(1)
            .string("")
            .string("")
            .finish(),
    ] {
        assert!(session(0).0.handle(&message).is_err(), "message {}", message[0]);
        // Numbers that we have given out, but that the server has not answered for, are as bad.
        let mut channels = Channels::default();
        let id = channels.open(&ChannelKind::Session);
        let early = [&message[..1], &id.number().to_be_bytes(), &message[5..]].concat();
        let is_answer = matches!(message[0], model::OPEN_CONFIRMATION | model::OPEN_FAILURE);
        assert_eq!(
            channels.handle(&early.into()).is_ok(),
            is_answer,
            "message {}",
            message[0]
        );
    }
}

#[test]
fn a_server_that_breaks_the_rules_of_a_channel_is_refused() {
    let eof_then_data = |channels: &mut Channels, id| {
        channels.handle(&message_about(model::EOF, id))?;
        channels.handle(&data(id, 1))
    };
    let overflow = |channels: &mut Channels, id| {
        channels.handle(&adjust(id, u32::MAX))?;
        channels.handle(&adjust(id, u32::MAX))
    };
    let (mut channels, id) = session(1);
    assert!(eof_then_data(&mut channels, id).is_err());
    let (mut channels, id) = session(1);
    assert!(overflow(&mut channels, id).is_err());
    let (mut channels, id) = session(1);
    assert!(
        channels.handle(&data(id, 32 * 1024 + 1)).is_err(),
        "more than a packet may hold"
    );
    let (mut channels, id) = session(1);
    assert!(
        channels.handle(&message_about(model::SUCCESS, id)).is_err(),
        "an answer to nothing"
    );
    let (mut channels, _) = session(1);
    assert!(
        channels
            .handle(&Bytes::from_static(&[model::REQUEST_SUCCESS]))
            .is_err(),
        "an answer to nothing"
    );
}

#[test]
fn standard_error_shares_the_window_of_standard_output() {
    let (mut channels, id) = session(0);
    let stderr = Writer::message(model::EXTENDED_DATA)
        .u32(id.number())
        .u32(1)
        .string(vec![0; 32 * 1024])
        .finish();
    for _ in 0..63 {
        channels.handle(&stderr).unwrap();
    }
    channels.handle(&data(id, 32 * 1024)).unwrap();
    let streams: Vec<Stream> = events(&mut channels)
        .into_iter()
        .map(|event| match event {
            ChannelEvent::Data { stream, .. } => stream,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(
        (streams.len(), streams[0], streams[63]),
        (64, Stream::Stderr, Stream::Data)
    );
    assert!(channels.handle(&stderr).is_err());
}

#[test]
fn an_unknown_stream_is_thrown_away_and_costs_no_credit() {
    let (mut channels, id) = session(0);
    let strange = Writer::message(model::EXTENDED_DATA)
        .u32(id.number())
        .u32(77)
        .string(vec![0; 30_000])
        .finish();
    for _ in 0..1000 {
        channels.handle(&strange).unwrap();
        assert_eq!(
            channels.next_message(),
            Some(Outgoing::Control(adjust(id, 30_000)))
        );
    }
    assert_eq!(channels.next_event(), None);
}

#[test]
fn a_server_that_waits_for_credit_on_a_long_path_gets_a_larger_window() {
    let rtt = Duration::from_millis(100);
    let (mut channels, id) = session(0);
    let mut now = Instant::now();
    channels.answered_after(rtt, now);
    let mut credit = 2u32 << 20;
    for _ in 0..8 {
        // Everything that the server may send comes at once, and is read at once.
        for _ in 0..credit / (32 * 1024) {
            now += Duration::from_micros(100);
            channels.receiving(now);
            channels.handle(&data(id, 32 * 1024)).unwrap();
            channels.consume(id, 32 * 1024, now);
            channels.next_event();
        }
        channels.mark_drained();
        credit %= 32 * 1024;
        while let Some(Outgoing::Control(message)) = channels.next_message() {
            credit += u32::from_be_bytes(message[5..9].try_into().unwrap());
        }
        now += rtt;
    }
    assert!(
        (11 << 20..=15 << 20).contains(&credit),
        "{credit} bytes of credit"
    );
    assert_eq!(channels.rtt(), Some(rtt));
    assert!(channels.take_starved());
    assert!(!channels.take_starved());
}

#[test]
fn a_round_trip_that_was_assumed_is_not_told_as_measured() {
    let (mut channels, _) = session(0);
    // A relay or a proxy next door answers TCP at once, however far the server is.
    channels.assume_rtt(Duration::from_micros(100));
    assert_eq!(channels.rtt(), None);
    channels.answered_after(Duration::from_millis(100), Instant::now());
    assert_eq!(channels.rtt(), Some(Duration::from_millis(100)));
}

#[test]
fn a_server_that_asks_and_does_not_read_is_refused_in_bounded_memory() {
    let requests = |id: ChannelId| {
        [
            Writer::message(model::GLOBAL_REQUEST)
                .string("keepalive@openssh.com")
                .bool(true)
                .finish(),
            Writer::message(model::REQUEST)
                .u32(id.number())
                .string("keepalive@openssh.com")
                .bool(true)
                .finish(),
            Writer::message(model::EXTENDED_DATA)
                .u32(id.number())
                .u32(9)
                .string("x")
                .finish(),
            Writer::message(model::OPEN)
                .string("session")
                .u32(1)
                .u32(1)
                .u32(1)
                .finish(),
            offer(1),
        ]
    };
    for n in 0..5 {
        let (mut channels, id) = session(0);
        let request = &requests(id)[n];
        assert!(
            (0..100_000).any(|_| channels.handle(request).is_err()),
            "request {n} is answered for ever"
        );
        // One who takes the answers may ask as often as it likes.
        let (mut channels, _) = session(0);
        for _ in 0..100_000 {
            channels.handle(request).unwrap();
            drain(&mut channels);
        }
    }
}

/// An application's possible answer to an offer, each of which makes this side send something.
type Answer = fn(&mut Channels, ChannelId);

#[test]
fn offers_that_are_answered_while_the_server_does_not_read_fill_no_memory() {
    let answers: [Answer; 3] = [
        |channels, id| channels.reject(id, OpenFailure::CONNECT_FAILED, "nobody listens"),
        |channels, id| {
            channels.accept(id);
            // That it is refused is seen at the next offer.
            let _ = channels.handle(&message_about(model::CLOSE, id));
        },
        |channels, id| {
            channels.accept(id);
            channels.eof(id);
            channels.close(id);
            // That it is refused is seen at the next offer.
            let _ = channels.handle(&message_about(model::CLOSE, id));
        },
    ];
    for (n, answer) in answers.into_iter().enumerate() {
        for reads in [false, true] {
            let mut channels = Channels::default();
            let refused = (0..60_000).any(|number| {
                if channels.handle(&offer(number)).is_err() {
                    return true;
                }
                for event in events(&mut channels) {
                    if let ChannelEvent::Incoming { id, .. } = event {
                        answer(&mut channels, id);
                    }
                }
                if reads {
                    drain(&mut channels);
                }
                false
            });
            assert_eq!(refused, !reads, "answer {n} to a server that reads: {reads}");
        }
    }
}

#[test]
fn credit_that_the_server_does_not_take_fills_no_memory() {
    let (mut channels, id) = session(0);
    let now = Instant::now();
    let piece = data(id, 32 * 1024);
    let a_quarter_of_the_window = 512 / 32;
    let refused = (0..100_000).any(|_| {
        let refused = (0..a_quarter_of_the_window).any(|_| channels.handle(&piece).is_err());
        while channels.next_event().is_some() {}
        channels.consume(id, usize::MAX, now);
        refused
    });
    assert!(refused);
}

#[test]
fn a_server_has_no_more_channels_of_its_own_than_openssh_allows() {
    let mut channels = Channels::default();
    let open = |channels: &mut Channels, number| {
        channels.handle(&offer(number)).unwrap();
        let offered = events(channels).into_iter().find_map(|event| match event {
            ChannelEvent::Incoming { id, .. } => Some(id),
            _ => None,
        });
        if let Some(id) = offered {
            channels.accept(id);
        }
        drain(channels);
        offered
    };
    let first = open(&mut channels, 0).unwrap();
    for number in 1..10_000 {
        assert!(open(&mut channels, number).is_some());
    }
    assert_eq!(open(&mut channels, 10_000), None);
    channels.handle(&message_about(model::CLOSE, first)).unwrap();
    drain(&mut channels);
    assert!(open(&mut channels, 10_001).is_some(), "one has gone");
}

#[test]
fn an_offer_with_an_endless_name_is_not_kept() {
    let offer = |name: usize| {
        Writer::message(model::OPEN)
            .string("forwarded-streamlocal@openssh.com")
            .u32(1)
            .u32(1000)
            .u32(1000)
            .string(vec![b'x'; name])
            .string("")
            .finish()
    };
    assert!(Channels::default().handle(&offer(1024)).is_ok());
    assert!(Channels::default().handle(&offer(1025)).is_err());
}

#[test]
fn host_keys_are_told_once() {
    let mut channels = Channels::default();
    let told = Writer::message(model::GLOBAL_REQUEST)
        .string("hostkeys-00@openssh.com")
        .bool(false)
        .string("key")
        .finish();
    for _ in 0..10 {
        channels.handle(&told).unwrap();
    }
    assert_eq!(events(&mut channels).len(), 1);
}

/// OpenSSH's client ignores credit, requests and answers for a channel that it has closed, and ssh2's server sends such.
#[test]
fn late_messages_about_a_closed_channel_are_ignored() {
    for ours_first in [false, true] {
        let (mut channels, id) = session(1000);
        let other = open(&mut channels, 1, 1000);
        if ours_first {
            channels.close(id);
            drain(&mut channels);
        }
        channels.handle(&message_about(model::CLOSE, id)).unwrap();
        drain(&mut channels);
        let stderr = Writer::message(model::EXTENDED_DATA)
            .u32(id.number())
            .u32(1)
            .string("late")
            .finish();
        let request = Writer::message(model::REQUEST)
            .u32(id.number())
            .string("exit-status")
            .bool(true)
            .u32(0)
            .finish();
        for late in [
            adjust(id, 1),
            data(id, 1),
            stderr,
            request,
            message_about(model::EOF, id),
            message_about(model::CLOSE, id),
            message_about(model::SUCCESS, id),
            message_about(model::FAILURE, id),
        ] {
            channels.handle(&late).unwrap();
            assert_eq!(
                (channels.next_event(), channels.next_message()),
                (None, None),
                "message {}",
                late[0]
            );
        }
        // It is opened no second time, and the other channel continues.
        let again = Writer::message(model::OPEN_CONFIRMATION)
            .u32(id.number())
            .u32(0)
            .u32(0)
            .u32(0)
            .finish();
        channels.handle(&data(other, 1)).unwrap();
        assert_eq!(events(&mut channels).len(), 1);
        assert!(channels.handle(&again).is_err());
    }
}

#[test]
fn an_offer_that_is_closed_is_refused() {
    let mut channels = Channels::default();
    channels.handle(&offer(7)).unwrap();
    let [ChannelEvent::Incoming { id, .. }] = events(&mut channels)[..] else {
        panic!("one offer")
    };
    channels.close(id);
    assert!(channels.is_empty());
    assert_eq!(events(&mut channels), [ChannelEvent::Closed(id)]);
    assert!(
        matches!(channels.next_message(), Some(Outgoing::Control(message)) if message[0] == model::OPEN_FAILURE)
    );
}
