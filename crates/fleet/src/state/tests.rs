//! Whole fleets on simulated time: messages are lost, late and delivered twice, nodes are killed, stopped and cut off. Each seed
//! is one course of events. Servers keep a ledger of what they executed, by which fates are judged.

mod world;

use std::time::Duration;

use super::entry::{Entry, Exit, Fate, Gate, Holder, JobId, Key, Value};
use super::job::Limits;
use super::node::{Node, NodeSettings};
use super::{Terms, Zones};
use world::{Faults, World};

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Lets a fleet live through faults, and then in peace for long enough; returns it to be judged.
fn lived(seed: u64, faults: Faults) -> World {
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

/// What must hold, whatever happened.
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

/// How many seeds, beside those of every run: TRUNKLINE_FLEET_SEEDS=FROM-TO.
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
        let world = lived(seed, Faults::all());
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
        let world = lived(seed, Faults::wild_clocks());
        judge(&world, seed);
    }
}

#[test]
fn where_nothing_fails_every_host_is_executed_within_the_limits() {
    for seed in seeds(20) {
        let world = lived(seed, Faults::none());
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
        // The shards move while hosts begin, and once more when the node that they went to is drained.
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
    world.run_until(seconds(40));
    assert!(
        world.frozen().unwrap().contains("gone back"),
        "{:?}",
        world.frozen()
    );
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
    assert_eq!(node.jobs(), 1);
    node.handle_tick(seconds(90));
    assert_eq!(node.jobs(), 0);
    // A repetition of what was told before is none the wiser.
    node.handle_entry(seconds(91), entry);
    assert_eq!(node.jobs(), 0);
    assert!(node.is_done(&JobId("one".into())));
    node.handle_tick(seconds(101));
    assert!(!node.is_done(&JobId("one".into())));
}
