//! Whole fleets on simulated time: messages are lost, late and duplicated, nodes are killed, stopped and cut off. Each
//! seed is one course of events. Servers keep a ledger of executions, by which fates are judged.

mod world;

use std::time::Duration;

use super::entry::{Entry, Exit, Fate, Gate, Holder, JobId, Key, Value};
use super::job::{Limits, Plan, PlannedHost};
use super::node::{Action, Intended, Node, NodeSettings, Token, Written};
use super::{Terms, Zones};
use world::{Faults, World, jobs_of};

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Runs a fleet through faults and a long enough time of peace, and returns it for judgement.
fn live_through(seed: u64, faults: Faults) -> World {
    let mut world = World::new(seed, 3, faults);
    world.run_until(seconds(3));
    let limits = Limits {
        at_once: [3, 8, u32::MAX][world.pick(3)],
        batch: [5, u32::MAX][world.pick(2)],
        failures: None,
    };
    world.submit("one", 30, limits);
    world.run_until(seconds(10));
    world.submit("two", 20, Limits::default());
    if world.pick(3) == 0 {
        let at = seconds(12) + Duration::from_millis(u64::try_from(world.pick(8_000)).unwrap());
        world.run_until(at);
        world.cancel("two");
    }
    world.run_until(seconds(70));
    world.heal();
    world.run_until(seconds(330));
    world
}

/// Checks the invariants.
fn judge(world: &World, seed: u64) {
    for ((job, host), executions) in &world.ledger {
        assert!(
            executions.len() <= 1,
            "seed {seed}: host {host} of job {job} was executed {} times",
            executions.len()
        );
    }
    for (job, hosts) in &world.jobs {
        for host in 0..*hosts {
            let key = Key::Fate(job.clone(), host);
            let executed = world.ledger.get(&(job.clone(), host)).and_then(|all| all.first());
            let Some((_, Value::Fate(fate))) = world.store.get(&key) else {
                panic!("seed {seed}: nothing is known of host {host} of job {job}");
            };
            match (fate, executed) {
                (Fate::Ended { returned, .. }, Some(status)) => {
                    assert_eq!(
                        returned.exit,
                        Exit::Status(*status),
                        "seed {seed}: a result was invented"
                    );
                }
                (Fate::Ended { .. }, None) => panic!("seed {seed}: a result was invented"),
                (Fate::NotStarted { why }, Some(_)) => {
                    panic!("seed {seed}: host {host} of {job} is said not to have started: {why}")
                }
                (Fate::Claimed(claim), _) => {
                    panic!("seed {seed}: nobody says what became of host {host} of {job}: {claim:?}")
                }
                (Fate::NotStarted { .. }, None) | (Fate::Unknown { .. }, _) => {}
            }
        }
    }
    assert_eq!(world.frozen(), None, "seed {seed}");
    assert_eq!(
        world.jobs_in_memory(),
        0,
        "seed {seed}: jobs that are done stay in memory"
    );
}

/// Returns the usual seeds, or those in TRUNKLINE_FLEET_SEEDS=FROM-TO.
fn seeds(usual: u64) -> std::ops::Range<u64> {
    let asked = std::env::var("TRUNKLINE_FLEET_SEEDS").ok();
    let asked = asked.as_deref().and_then(|text| text.split_once('-'));
    match asked {
        Some((from, to)) => from.parse().unwrap()..to.parse().unwrap(),
        None => 0..usual,
    }
}

#[test]
fn nothing_runs_twice_and_each_fate_is_known_and_true() {
    let (mut ended, mut unknown, mut all) = (0, 0, 0);
    for seed in seeds(60) {
        let world = live_through(seed, Faults::all());
        judge(&world, seed);
        for (_, value) in world.store.values() {
            match value {
                Value::Fate(Fate::Ended { .. }) => ended += 1,
                Value::Fate(Fate::Unknown { .. }) => unknown += 1,
                _ => {}
            }
        }
        all += world.jobs.values().sum::<u32>();
    }
    println!("{all} hosts: {ended} ended, {unknown} may have started");
    assert!(
        ended * 2 > all,
        "{ended} of {all} hosts were executed and told of"
    );
}

#[test]
fn claims_hold_where_leases_do_not() {
    for seed in seeds(60) {
        let world = live_through(seed, Faults::wild_clocks());
        judge(&world, seed);
    }
}

#[test]
fn where_nothing_fails_every_host_is_executed_within_the_limits() {
    for seed in seeds(20) {
        let world = live_through(seed, Faults::none());
        judge(&world, seed);
        for (job, hosts) in &world.jobs {
            for host in 0..*hosts {
                match world.store.get(&Key::Fate(job.clone(), host)) {
                    Some((_, Value::Fate(Fate::Ended { .. }))) => {}
                    Some((_, Value::Fate(Fate::NotStarted { why }))) if why.contains("cancelled") => {}
                    other => panic!("seed {seed}: host {host} of {job}: {other:?}"),
                }
            }
        }
        let most = world.limits[&JobId("one".into())].at_once;
        let busiest = world.busiest[&JobId("one".into())];
        assert!(busiest <= most, "seed {seed}: {busiest} at once, for {most}");
    }
}

/// Runs streams through faults. One is cancelled meanwhile.
fn stream_through(seed: u64, faults: Faults) -> World {
    let mut world = World::new(seed, 3, faults);
    world.stream("one", 30);
    world.run_until(seconds(15));
    world.stream("two", 20);
    world.submit("job", 10, Limits::default());
    let at = seconds(20) + Duration::from_millis(u64::try_from(world.pick(40_000)).unwrap());
    world.run_until(at);
    if world.pick(2) == 0 {
        world.cancel_stream("two");
    }
    world.run_until(seconds(100));
    world.heal();
    world.run_until(seconds(400));
    world
}

#[test]
fn a_stream_is_run_by_one_owner_at_a_time_and_goes_on_until_it_has_ended() {
    let (mut begun, mut hosts) = (0, 0);
    for seed in seeds(60) {
        let world = stream_through(seed, Faults::all());
        // Commands that ended by themselves are not started again. All others run, or wait for their next attempt.
        for (stream, all) in [("one", 30), ("two", 20)] {
            let (runs, ended) = (world.streaming(stream), world.ended_hosts(stream));
            assert!(
                runs + ended <= all,
                "seed {seed}: {runs} run and {ended} have ended"
            );
            assert!(
                runs + ended + 3 >= all,
                "seed {seed}: {runs} run and {ended} have ended"
            );
        }
        judge(&world, seed);
        begun += world.streams.begun;
        hosts += 50;
    }
    println!("{hosts} hosts of streams, {begun} runs");
    assert!(
        begun > hosts,
        "{begun} runs for {hosts} hosts: nothing was moved or begun again"
    );
}

#[test]
fn streams_go_on_where_leases_do_not_hold() {
    for seed in seeds(20) {
        let world = stream_through(seed, Faults::wild_clocks());
        assert!(
            world.streaming("one") + world.ended_hosts("one") > 0,
            "seed {seed}"
        );
    }
}

#[test]
fn a_cancelled_stream_stops_everywhere_and_stays_so() {
    for seed in seeds(40) {
        let mut world = World::new(seed, 3, Faults::none());
        world.stream("one", 30);
        let at = Duration::from_millis(u64::try_from(world.pick(30_000)).unwrap());
        world.run_until(at);
        world.cancel_stream("one");
        world.run_until(at + seconds(30));
        assert_eq!(
            (world.streaming("one"), world.ended_hosts("one")),
            (0, 30),
            "seed {seed}"
        );
        let begun = world.streams.begun;
        world.kill(0);
        world.add("n3");
        world.run_until(at + seconds(90));
        assert_eq!(world.streams.begun, begun, "seed {seed}");
    }
}

#[test]
fn a_stream_moves_with_its_shard() {
    for seed in seeds(40) {
        let mut world = World::new(seed, 2, Faults::none());
        world.stream("one", 30);
        world.run_until(seconds(20));
        world.add("n2");
        let pause = Duration::from_millis(u64::try_from(world.pick(4_000)).unwrap());
        world.run_until(seconds(20) + pause);
        world.drain(0);
        world.run_until(seconds(60));
        assert_eq!(world.owned_by(0), 0, "seed {seed}: a drained node keeps shards");
        assert_eq!(world.owned_by_all(), world.units(), "seed {seed}");
        let known = world.streaming("one") + world.ended_hosts("one");
        assert!(
            (27..=30).contains(&known),
            "seed {seed}: {known} of 30 run or have ended"
        );
    }
}

#[test]
fn what_a_killed_node_had_is_others_within_twenty_seconds() {
    let mut longest = Duration::ZERO;
    for seed in seeds(40) {
        let mut world = World::new(seed, 3, Faults::none());
        let settled = seconds(20) + Duration::from_millis(u64::try_from(world.pick(5_000)).unwrap());
        world.run_until(settled);
        assert_eq!(world.owned_by_all(), world.units(), "seed {seed}: not settled");
        let killed = world.pick(3);
        world.kill(killed);
        let mut now = settled;
        while world.owned_by_all() < world.units() {
            now += Duration::from_millis(100);
            assert!(now < settled + seconds(20), "seed {seed}: not taken over");
            world.run_until(now);
        }
        longest = longest.max(now - settled);
    }
    println!("the longest takeover: {longest:?}");
}

#[test]
fn two_nodes_with_one_name_are_one_node() {
    let mut world = World::new(1, 2, Faults::none());
    world.run_until(seconds(10));
    let twin = world.add("n0");
    world.submit("one", 20, Limits::default());
    world.run_until(seconds(60));
    judge(&world, 1);
    assert_eq!(world.owned_by(twin), 0);
    assert!(
        world
            .trouble(twin)
            .unwrap()
            .contains("another process is the node n0")
    );
}

#[test]
fn a_node_that_leaves_is_replaced_at_once() {
    let mut world = World::new(1, 3, Faults::none());
    world.run_until(seconds(20));
    world.leave(0);
    world.run_until(seconds(23));
    assert_eq!(world.owned_by_all(), world.units());
}

#[test]
fn a_host_that_begins_while_its_shard_moves_is_executed() {
    for seed in seeds(40) {
        let mut world = World::new(seed, 2, Faults::none());
        world.run_until(seconds(20));
        world.submit("one", 40, Limits::default());
        // The shards move while hosts start, and again when their new node is drained.
        let new = world.add("n2");
        let pause = Duration::from_millis(u64::try_from(world.pick(400)).unwrap());
        world.run_until(seconds(20) + pause);
        world.drain(1);
        let pause = Duration::from_millis(u64::try_from(world.pick(2_000)).unwrap());
        world.run_until(seconds(21) + pause);
        world.drain(new);
        world.run_until(seconds(200));
        judge(&world, seed);
        for host in 0..40 {
            let fate = world.store.get(&Key::Fate(JobId("one".into()), host));
            assert!(
                matches!(fate, Some((_, Value::Fate(Fate::Ended { .. })))),
                "seed {seed}: host {host}: {fate:?}"
            );
        }
    }
}

#[test]
fn a_full_disk_starts_nothing_and_gives_the_hosts_away() {
    let mut world = World::new(1, 2, Faults::none());
    world.run_until(seconds(20));
    world.fill_disk(0);
    world.submit("one", 20, Limits::default());
    world.run_until(seconds(30));
    assert!(world.trouble(0).unwrap().contains("cannot be written"));
    world.run_until(seconds(200));
    judge(&world, 1);
    assert_eq!(world.executed_by(0), 0);
}

#[test]
fn a_bucket_that_forgets_freezes_the_fleet() {
    let mut world = World::new(1, 3, Faults::none());
    world.run_until(seconds(20));
    world.submit("one", 20, Limits::default());
    world.run_until(seconds(22));
    world.restore(30);
    world.run_until(seconds(27));
    world.look();
    world.run_until(seconds(40));
    let why = world.frozen().unwrap();
    assert!(why.contains("gone back") || why.contains("lost a claim"), "{why}");
    let before = world.ledger.len();
    world.submit("two", 20, Limits::default());
    world.run_until(seconds(80));
    assert_eq!(world.ledger.len(), before);
}

#[test]
fn what_the_bucket_does_not_keep_any_more_no_node_keeps() {
    let settings = NodeSettings {
        me: Holder {
            node: "a".into(),
            incarnation: 1,
        },
        site: None,
        zones: Zones::default(),
        at_once: 1,
        version: "1".into(),
        terms: Terms::default(),
        keep: seconds(80),
    };
    let mut node = Node::new(settings, Vec::new());
    let entry = Entry {
        key: Key::Gate(JobId("one".into())),
        revision: 7,
        value: Some(Value::Gate(Gate {
            released: 1,
            stop: None,
        })),
    };
    node.handle_entry(seconds(10), entry.clone());
    node.handle_tick(seconds(89));
    assert_eq!(jobs_of(&node, seconds(89)), 1);
    node.handle_tick(seconds(90));
    assert_eq!(jobs_of(&node, seconds(90)), 0);
    // An old message again changes nothing.
    node.handle_entry(seconds(91), entry);
    assert_eq!(jobs_of(&node, seconds(91)), 0);
    assert!(node.is_done(&JobId("one".into())));
    node.handle_tick(seconds(101));
    assert!(!node.is_done(&JobId("one".into())));
}

#[test]
fn a_server_that_is_behind_for_a_moment_freezes_nothing() {
    let mut node = Node::new(lone(), Vec::new());
    node.remember_highest(146);
    node.handle_last_sequence(seconds(1), 140, 146);
    node.handle_last_sequence(seconds(6), 150, 146);
    node.handle_last_sequence(seconds(11), 140, 150);
    assert_eq!(node.frozen(), None);
    node.handle_last_sequence(seconds(16), 149, 150);
    assert!(
        node.frozen()
            .unwrap()
            .contains("gone back to sequence number 149")
    );
}

#[test]
fn a_leader_that_is_cut_off_from_its_cluster_freezes_nothing_before_it_steps_down() {
    let told = |until: u64| {
        let mut node = Node::new(lone(), Vec::new());
        node.remember_highest(146);
        for second in (1..until).step_by(5) {
            node.handle_last_sequence(seconds(second), 140, 146);
        }
        node.frozen().is_some()
    };
    assert!(!told(25));
    assert!(told(30));
}

#[test]
fn a_bucket_that_twice_forgets_what_it_has_acknowledged_freezes_the_fleet() {
    // `renewals` says for each renewal of the node's name if the acknowledged value is still there. Also returns how
    // often the freeze was reported.
    let frozen_after = |renewals: &[bool]| {
        let mut node = Node::new(lone(), Vec::new());
        node.handle_synced();
        let (mut now, mut revision, mut told) = (seconds(1), 0, 0);
        let name = Key::Member("a".into());
        let mut write = |node: &mut Node, is_there: bool| {
            now += seconds(6);
            node.handle_tick(now);
            for (token, key, ..) in writes(node, now) {
                revision += 1;
                told += u32::from(key == Key::Frozen);
                let written = match key == name && !is_there {
                    true => Written::Refused(None),
                    false => Written::Done(revision),
                };
                node.handle_written(now, token, written);
            }
            // A missing value is written as new.
            for (token, key, ..) in writes(node, now) {
                revision += 1;
                told += u32::from(key == Key::Frozen);
                node.handle_written(now, token, Written::Done(revision));
            }
        };
        write(&mut node, true);
        for is_there in renewals {
            write(&mut node, *is_there);
        }
        (node.frozen().map(str::to_owned), told)
    };
    assert_eq!(frozen_after(&[true, false, true, false, true]), (None, 0));
    let (why, told) = frozen_after(&[true, false, false, true, true]);
    let why = why.unwrap();
    assert!(why.contains("forgets what it has acknowledged"), "{why}");
    assert_eq!(told, 1);
    // It may also have forgotten the reported freeze.
    assert_eq!(frozen_after(&[true, false, false, false, true]).1, 2);
}

#[test]
fn a_bucket_that_goes_back_at_one_key_freezes_the_fleet_though_others_write_on() {
    // `answers` has the revision at the node's name for each renewal; `None` if it is the one that the node wrote.
    let frozen_after = |answers: &[Option<u64>]| {
        let mut node = Node::new(lone(), Vec::new());
        node.handle_synced();
        let name = Key::Member("a".into());
        let mut revision = 100;
        for (second, stands) in (1..).zip(answers) {
            // Renewed every 5 s, and every second after a refusal.
            let now = seconds(second * 6);
            node.handle_tick(now);
            for (token, key, _, value) in writes(&mut node, now) {
                revision = (revision + 1).max(stands.unwrap_or_default());
                let written = match stands {
                    Some(stands) if key == name => Written::Refused(Some(Entry {
                        key,
                        revision: *stands,
                        value: Some(value),
                    })),
                    _ => Written::Done(revision),
                };
                node.handle_written(now, token, written);
            }
        }
        node.frozen().map(str::to_owned)
    };
    let stale = [None, Some(90), Some(90), Some(90), Some(90), None];
    assert_eq!(frozen_after(&[stale, stale].concat()), None);
    // A value that another process wrote is not older.
    assert_eq!(frozen_after(&[None, Some(50_000), Some(60_000)]), None);
    let why = frozen_after(&[None, Some(90), Some(90), Some(90), Some(90), Some(90), Some(90)]).unwrap();
    assert!(
        why.contains("gone back at member.a, to sequence number 90 from 10"),
        "{why}"
    );
}

#[test]
fn a_gate_that_nats_does_not_take_is_not_written_again_at_once() {
    let mut node = Node::new(lone(), Vec::new());
    node.handle_synced();
    let (mut revision, mut lost) = (0, 0);
    let job = JobId("one".into());
    for quarter in 0..20 {
        let now = Duration::from_millis(quarter * 250);
        node.handle_tick(now);
        if quarter == 4 {
            // The first does not start, so the second may.
            let host = |refused: Option<&str>| PlannedHost {
                unit: lone().zones.unit_of("h"),
                refused: refused.map(str::to_owned),
            };
            let plan = Plan {
                hosts: vec![host(Some("not allowed")), host(None)],
                limits: Limits {
                    at_once: 1,
                    ..Limits::default()
                },
            };
            node.handle_job(now, job.clone(), plan);
        }
        loop {
            let all = writes(&mut node, now);
            if all.is_empty() {
                break;
            }
            for (token, key, _, value) in all {
                if key == Key::Gate(job.clone()) {
                    lost += 1;
                    assert!(lost < 100, "it is written again and again");
                    node.handle_written(now, token, Written::Lost);
                    continue;
                }
                revision += 1;
                node.handle_written(now, token, Written::Done(revision));
                let value = Some(value);
                node.handle_entry(now, Entry { key, revision, value });
            }
        }
    }
    // Once a second.
    assert!((3..=4).contains(&lost), "{lost}");
}

#[test]
fn a_node_that_may_not_write_its_name_says_so() {
    let mut node = Node::new(lone(), Vec::new());
    node.handle_synced();
    for second in (0..12).step_by(4) {
        assert_eq!(node.trouble(seconds(second)), None);
        node.handle_tick(seconds(second));
        for (token, ..) in writes(&mut node, seconds(second)) {
            node.handle_written(seconds(second + 3), token, Written::Lost);
        }
    }
    let trouble = node.trouble(seconds(12)).unwrap();
    assert!(
        trouble.contains("does not let this machine's key write member.a"),
        "{trouble}"
    );
    node.handle_tick(seconds(16));
    for (token, ..) in writes(&mut node, seconds(16)) {
        node.handle_written(seconds(16), token, Written::Done(1));
    }
    assert_eq!(node.trouble(seconds(16)), None);
}

/// Returns the writes among a node's actions.
fn writes(node: &mut Node, now: Duration) -> Vec<(Token, Key, u64, Value)> {
    let actions = std::iter::from_fn(|| node.poll_action(now));
    let writes = actions.filter_map(|action| match action {
        Action::Write {
            token,
            key,
            expected,
            value,
        } => Some((token, key, expected, value)),
        Action::Execute(intent) => panic!("it is executed: {intent:?}"),
        _ => None,
    });
    writes.collect()
}

/// A claim is sent but not answered before the lease ends. Whether it was made or not, the command is reported as not
/// started, and does not start: this process has decided that before reporting it, and nobody else has the claim.
#[test]
fn what_was_claimed_without_an_answer_before_the_lease_ended_never_starts() {
    for was_made in [true, false] {
        let mut node = Node::new(lone(), Vec::new());
        let job = JobId("one".into());
        node.handle_synced();
        node.handle_tick(seconds(0));
        let mut revision = 0;
        for _ in 0..2 {
            for (token, ..) in writes(&mut node, seconds(0)) {
                revision += 1;
                node.handle_written(seconds(0), token, Written::Done(revision));
            }
        }
        assert_eq!(node.observe(seconds(1)).held.len(), 1);
        let host = PlannedHost {
            unit: Zones::default().units(None).remove(0),
            refused: None,
        };
        let plan = Plan {
            hosts: vec![host],
            limits: Limits::default(),
        };
        node.handle_job(seconds(1), job.clone(), plan);
        let intent = std::iter::from_fn(|| node.poll_action(seconds(1)))
            .find_map(|action| match action {
                Action::Intend(intent) => Some(intent),
                _ => None,
            })
            .unwrap();
        node.handle_intended(seconds(1), &intent, Intended::Noted);
        let key = Key::Fate(job.clone(), 0);
        let sent = writes(&mut node, seconds(1));
        let [(token, sent_key, 0, claim)] = sent.as_slice() else {
            panic!("{sent:?}")
        };
        assert_eq!(
            (sent_key, claim),
            (&key, &Value::Fate(Fate::Claimed(intent.claim.clone())))
        );
        // The answers to the claim and to the renewals of leases are lost.
        node.handle_written(seconds(14), *token, Written::Lost);
        node.handle_tick(seconds(20));
        let said = writes(&mut node, seconds(20));
        let not_started = |(_, at, _, value): &&(Token, Key, u64, Value)| {
            *at == key && matches!(value, Value::Fate(Fate::NotStarted { .. }))
        };
        let (token, _, expected, value) = said.iter().find(not_started).unwrap().clone();
        assert_eq!(expected, 0);
        if was_made {
            let standing = Entry {
                key: key.clone(),
                revision: revision + 1,
                value: Some(claim.clone()),
            };
            node.handle_written(seconds(20), token, Written::Refused(Some(standing)));
            let said = writes(&mut node, seconds(20));
            let (_, _, expected, again) = said.iter().find(not_started).unwrap();
            assert_eq!((*expected, again), (revision + 1, &value));
        } else {
            // The claim arrives late, and finds the host settled.
            node.handle_written(seconds(20), token, Written::Done(revision + 1));
        }
        node.handle_tick(seconds(40));
        writes(&mut node, seconds(40));
    }
}

/// Returns the settings of a single node with one shard.
fn lone() -> NodeSettings {
    NodeSettings {
        me: Holder {
            node: "a".into(),
            incarnation: 1,
        },
        site: None,
        zones: Zones {
            shards: 1,
            ..Zones::default()
        },
        at_once: 1,
        version: "1".into(),
        terms: Terms::default(),
        keep: seconds(80_000),
    }
}
