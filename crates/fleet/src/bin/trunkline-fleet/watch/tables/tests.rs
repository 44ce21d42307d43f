use trunkline_fleet::report::{FleetReport, MoveReason, StreamNode};
use trunkline_watch::Screenshots;
use trunkline_watch::table::Sort;

use super::*;
use crate::watch::model::tests::{from_update, job, moved_bytes, node, stream, zone};

fn model() -> FleetModel {
    let mut nodes = vec![
        node("node1", NodeState::Up, 86),
        node("node2", NodeState::Up, 341),
        node("node10", NodeState::Lost, 0),
        node("control-eu-1", NodeState::Draining, 0),
        node(
            "a-node-whose-name-is-longer-than-any-table-has-room-for",
            NodeState::InTrouble,
            0,
        ),
    ];
    nodes[0].running = 32;
    nodes[2].heard = 9_900;
    nodes[2].running = 7;
    nodes[3].site = Some("eu".into());
    nodes[4].trouble = Some("the log of intents cannot be written: disk full".into());
    let common = (0..256).map(|shard| Some(u16::from(shard % 3 != 0)));
    let eu = (0..256).map(|shard| (shard > 5).then_some(0));
    let mut jobs: Vec<_> = (1..=30)
        .map(|number| job(number, 400, [0, 400 - number, number, 0, 0]))
        .collect();
    jobs[0] = job(0, 20_000, [100, 7_000, 12, 0, 3]);
    jobs[0].failures = vec![
        ("web17.eu".into(), "exit status 3".into()),
        ("web18.eu".into(), "may have started: node10 was lost".into()),
    ];
    jobs[1].cancelled = true;
    jobs[1].succeeded = 5;
    let mut streams = vec![
        stream(0, 20_000, [19_411, 12, 577]),
        stream(3, 400, [400, 0, 0]),
        stream(20, 8, [0, 8, 0]),
        stream(21, 3, [0, 0, 3]),
    ];
    let refusal = "the allow list of node node2 does not let UDV7TPE5B6AP7YIHF5ELPFY6KGRO6N2VT33U6NQJGZNPOSOSAXIF6WDB reach db1";
    let part = |name: &str, running, refused| StreamNode {
        name: name.into(),
        running,
        refused,
        why: (refused > 0).then(|| refusal.into()),
    };
    streams[0].restarts = 1_204;
    streams[0].failed = 4;
    streams[0].nodes = vec![part("node2", 14_000, 577), part("node1", 5_411, 0)];
    streams[1].nodes = vec![part("node1", 400, 0)];
    streams[1].subject = Some("logs.{host}".into());
    streams[1].cancelled = true;
    streams[3].nodes = vec![part("node2", 0, 3)];
    from_update(FleetUpdate {
        nodes,
        streams,
        zones: vec![
            zone(None, &["node1", "node2"], common),
            zone(Some("eu"), &["node2"], eu),
        ],
        moves: vec![
            moved_bytes(1, None, "node1", MoveReason::New, 128),
            moved_bytes(2, Some("node10"), "node2", MoveReason::Lost, 85),
            moved_bytes(3, Some("control-eu-1"), "node2", MoveReason::Left, 250),
            moved_bytes(4, Some("node2"), "node1", MoveReason::Divided, 1),
        ],
        jobs,
        fleet: Some(FleetReport {
            name: "trunkline".into(),
            servers: "tls://nats1.example.com:4222".into(),
            now: 10_000,
            ..FleetReport::default()
        }),
        ..FleetUpdate::default()
    })
}

#[test]
fn each_view_fits_terminals_of_80_and_200_columns() {
    let model = model();
    for (number, view) in (1..).zip(FleetModel::VIEWS) {
        for width in [80, 200] {
            let mut screen = Screenshots::default();
            screen.press(&model, &format!("{number}"));
            let name = format!("{}_{width}", FleetModel::name(*view).to_lowercase());
            insta::assert_snapshot!(name, screen.take(&model, width, 14));
        }
    }
}

#[test]
fn what_lies_over_the_table_fits_too() {
    let model = model();
    for (number, view) in (1..).zip(FleetModel::VIEWS) {
        let mut screen = Screenshots::default();
        screen.press(&model, &format!("{number}\n"));
        let name = format!("details_{}", FleetModel::name(*view).to_lowercase());
        insta::assert_snapshot!(name, screen.take(&model, 80, 20));
    }
    let mut screen = Screenshots::default();
    screen.press(&model, "?");
    insta::assert_snapshot!("help", screen.take(&model, 80, 20));
}

#[test]
fn what_is_wrong_with_all_of_it_is_said_above_and_what_was_known_stays() {
    let mut model = model();
    let mut screen = Screenshots::default();
    let mut second_line = |model: &FleetModel| {
        let text = screen.take(model, 110, 12);
        assert!(text.contains("node10"));
        text.lines()
            .nth(1)
            .unwrap()
            .trim_matches('"')
            .trim_end()
            .to_owned()
    };
    model.fleet.cut_off = Some(12);
    let cut_off = "NATS has not answered for 12 s: this is the fleet as it was then";
    assert_eq!(second_line(&model), cut_off);
    model.fleet.cut_off = None;
    model.fleet.frozen = Some("NATS has gone back".into());
    assert_eq!(second_line(&model), "Frozen: NATS has gone back");
    model.take(News::Lost("trunkline-fleet has ended".into()));
    assert_eq!(second_line(&model), "Waiting: trunkline-fleet has ended");
}

#[test]
fn rows_are_sorted_and_filtered_by_what_they_show() {
    let model = model();
    let first = |view, column: &str, filter: &str| {
        let by = FleetModel::columns(view)
            .iter()
            .position(|one| one.name == column)
            .unwrap();
        model
            .rows(view, filter, Sort { by, reversed: false })
            .into_iter()
            .next()
    };
    assert_eq!(first(View::Nodes, "SHARDS", ""), Some(Row::Node("node2".into())));
    assert_eq!(
        first(View::Nodes, "STATE", ""),
        Some(Row::Node("node10".into())),
        "what is wrong comes first"
    );
    assert_eq!(
        first(View::Nodes, "NODE", "EU-1"),
        Some(Row::Node("control-eu-1".into()))
    );
    assert_eq!(
        first(View::Moves, "AGO", ""),
        Some(Row::Move(4)),
        "the latest comes first"
    );
    assert_eq!(first(View::Moves, "AGO", "lost"), Some(Row::Move(2)));
    assert_eq!(
        first(View::Jobs, "AGE", ""),
        Some(Row::Job(format!("{:012x}", 0)))
    );
    assert_eq!(
        first(View::Jobs, "AGE", "web17"),
        Some(Row::Job(format!("{:012x}", 0)))
    );
    assert_eq!(
        first(View::Jobs, "FAILED", ""),
        Some(Row::Job(format!("{:012x}", 30)))
    );
    let of = |number: u32| Some(Row::Stream(format!("{number:012x}")));
    assert_eq!(first(View::Streams, "AGE", ""), of(0), "the newest comes first");
    assert_eq!(first(View::Streams, "ENDED", ""), of(0));
    assert_eq!(first(View::Streams, "AGE", "LOGS."), of(3));
    assert_eq!(first(View::Streams, "AGE", "reach db1"), of(0));
    assert_eq!(first(View::Streams, "STATE", "refused"), of(21));
    let free = Row::Shards(Some("eu".into()), None);
    assert_eq!(first(View::Shards, "SITE", "nobody"), Some(free));
    assert_eq!(first(View::Jobs, "AGE", "nothing has this"), None);
}

#[test]
fn shards_that_follow_each_other_are_a_range() {
    assert_eq!(ranges(&[0, 1, 2, 5, 7, 8]), "0-2 5 7-8");
    assert_eq!(ranges(&[]), "");
}
