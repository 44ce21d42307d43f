use proptest::prelude::*;

use super::*;

fn policy() -> (Policy, Instant) {
    let now = Instant::now();
    let mut policy = Policy::new(Settings::default(), None, Some(Duration::from_secs(60)), now);
    policy.keep_spares(Spares::Kept);
    policy.set_reuse(Reuse::Several);
    (policy, now)
}

/// Places a load, and returns the new connection for it.
#[track_caller]
fn connects(policy: &mut Policy, load: Load, now: Instant) -> LaneId {
    match policy.place(load, now) {
        Placement::Connect(lane) => lane,
        other => panic!("{other:?}"),
    }
}

/// Places a load, and returns the open lane for it.
#[track_caller]
fn opens(policy: &mut Policy, load: Load, now: Instant) -> LaneId {
    match policy.place(load, now) {
        Placement::Open(lane) => lane,
        other => panic!("{other:?}"),
    }
}

fn connect(policy: &mut Policy, now: Instant) -> LaneId {
    let lane = connects(policy, Load::Session, now);
    policy.first_asked(lane);
    policy.lane_ready(lane, Answerer::Nobody, now);
    lane
}

/// Places a session beside others, and has the server open it.
fn open(policy: &mut Policy, now: Instant) -> LaneId {
    let lane = opens(policy, Load::Session, now);
    policy.session_opened(lane, policy.asks(lane));
    lane
}

/// Places a session beside others, and has the server refuse it.
fn refuse(policy: &mut Policy, now: Instant) -> Verdict {
    let lane = opens(policy, Load::Session, now);
    let asked = policy.asks(lane);
    let verdict = policy.session_refused(lane, false, asked, now);
    policy.session_ended(lane, now, End::NeverOpened, now);
    verdict
}

/// Makes the first lane busy, and has a further one connected because of that.
fn further(policy: &mut Policy, now: Instant) -> (LaneId, LaneId, Instant) {
    let first = connect(policy, now);
    let later = now + Duration::from_secs(1);
    policy.traffic(first, 10_000_000, later);
    let further = connects(policy, Load::Session, later);
    (first, further, later)
}

#[test]
fn nothing_comes_before_the_session_that_a_lane_is_made_for() {
    let (mut policy, now) = policy();
    let lane = connects(&mut policy, Load::Session, now);
    assert_eq!(policy.place(Load::Session, now), Placement::Wait(None));
    policy.keep_spares(Spares::Kept);
    assert_eq!(policy.open_spares(lane, now), 0);
    policy.first_asked(lane);
    assert_eq!(policy.place(Load::Session, now), Placement::Open(lane));
    assert!(policy.open_spares(lane, now) > 0);
}

#[test]
fn sessions_share_a_lane_up_to_the_limit_and_then_get_another() {
    let (mut policy, now) = policy();
    let first = connect(&mut policy, now);
    for _ in 1..10 {
        assert!(matches!(policy.place(Load::Session, now), Placement::Open(lane) if lane == first));
    }
    connects(&mut policy, Load::Session, now);
}

#[test]
fn a_lane_that_is_held_is_not_idle_and_a_retired_one_is_not_held() {
    let (mut policy, now) = policy();
    let first = policy.hold_first(now);
    let late = now + Duration::from_secs(3600);
    assert!(policy.expired_lanes(late).is_empty());
    assert_eq!(policy.hold_first(late), first);
    policy.retire(first);
    assert_ne!(policy.hold_first(late), first);
    policy.tunnel_ended(first, now, late);
    policy.tunnel_ended(first, late, late);
    assert_eq!(policy.expired_lanes(late), [first]);
}

#[test]
fn a_refusal_teaches_the_limit() {
    let (mut policy, now) = policy();
    connect(&mut policy, now);
    open(&mut policy, now);
    assert_eq!(refuse(&mut policy, now), Verdict::PlaceAnew);
    assert_eq!(policy.session_limit(), Some(2));
    connects(&mut policy, Load::Session, now);
}

#[test]
fn a_refusal_with_nothing_else_open_is_final_where_nothing_ever_was() {
    let (mut policy, now) = policy();
    let lane = policy.add_lane(now);
    policy.lane_ready(lane, Answerer::Nobody, now);
    assert_eq!(refuse(&mut policy, now), Verdict::Final);
    assert_eq!(policy.session_limit(), None);
}

#[test]
fn what_the_server_may_not_have_closed_yet_counts_as_open() {
    let (mut policy, now) = policy();
    let lane = connect(&mut policy, now);
    for _ in 0..3 {
        open(&mut policy, now);
    }
    policy.session_ended(lane, now, End::Closed, now);
    policy.session_ended(lane, now, End::Closed, now);
    // Two are requested at once. The answer to the first shows that the server has freed the places, but the second was
    // requested before that, however long ago.
    let late = now + Duration::from_secs(3600);
    let asked = policy.asks(lane);
    for _ in 0..2 {
        assert_eq!(policy.place(Load::Session, now), Placement::Open(lane));
    }
    assert_eq!(
        policy.session_refused(lane, false, asked, late),
        Verdict::PlaceAnew
    );
    assert_eq!(policy.session_limit(), Some(5));
    policy.session_ended(lane, now, End::NeverOpened, late);
    assert_eq!(
        policy.session_refused(lane, false, asked, late),
        Verdict::PlaceAnew
    );
    assert_eq!(policy.session_limit(), Some(4));
    policy.session_ended(lane, now, End::NeverOpened, late);
    // A session requested after that shows the limit when it is refused.
    assert_eq!(refuse(&mut policy, late), Verdict::PlaceAnew);
    assert_eq!(policy.session_limit(), Some(2));
    connects(&mut policy, Load::Session, late);
}

#[test]
fn a_place_that_a_closed_sessions_command_may_hold_is_waited_for_with_pauses_and_not_for_ever() {
    let (mut policy, now) = policy();
    let lane = connect(&mut policy, now);
    policy.session_ended(lane, now, End::Left, now);
    let (mut at, mut tries) = (now, 0);
    while refuse(&mut policy, at) == Verdict::PlaceAnew {
        tries += 1;
        let other = connects(&mut policy, Load::Session, at);
        policy.lane_closed(other);
        at = policy.look_again(at).unwrap();
    }
    assert!((5..20).contains(&tries), "{tries}");
    assert!(at < now + Full::PATIENCE * 2);
    assert_eq!(policy.session_limit(), Some(1), "the most that it can be");

    // The next attempt starts afresh, and a success ends the pauses.
    assert_eq!(refuse(&mut policy, at), Verdict::PlaceAnew);
    let at = policy.look_again(at).unwrap();
    assert_eq!(open(&mut policy, at), lane);
    assert_eq!(policy.look_again(at), None);
}

#[test]
fn a_session_that_ends_makes_room_at_once_on_a_lane_that_refused_one() {
    let now = Instant::now();
    let settings = Settings {
        max_lanes: 1,
        ..Settings::default()
    };
    let mut policy = Policy::new(settings, None, None, now);
    policy.set_reuse(Reuse::Several);
    let lane = connect(&mut policy, now);
    for _ in 0..3 {
        open(&mut policy, now);
    }
    policy.session_ended(lane, now, End::Left, now);
    assert_eq!(refuse(&mut policy, now), Verdict::PlaceAnew);
    assert!(matches!(
        policy.place(Load::Session, now),
        Placement::Wait(Some(_))
    ));
    policy.session_ended(lane, now, End::Closed, now);
    assert_eq!(policy.place(Load::Session, now), Placement::Open(lane));
    assert!(matches!(
        policy.place(Load::Session, now),
        Placement::Wait(Some(_))
    ));
    // A session that was left also counts once the server has closed it.
    policy.session_ended(lane, now, End::Returned, now);
    assert_eq!(policy.place(Load::Session, now), Placement::Open(lane));
    assert_eq!(policy.load(lane), (4, 0));
}

#[test]
fn a_further_log_in_that_is_refused_leaves_the_work_to_what_is_there_and_is_not_repeated_soon() {
    let (mut policy, now) = policy();
    let (first, other, now) = further(&mut policy, now);
    assert!(policy.is_further(other) && !policy.is_further(first));
    let refuse = |policy: &mut Policy, lane, now| match policy.lane_lost(lane, now) {
        Loss::FurtherRefused { again, news } => (again, news),
        loss => panic!("{loss:?}"),
    };
    assert_eq!(refuse(&mut policy, other, now), (PAUSES.pause_after(1), true));
    for load in [Load::Session, Load::SessionApart, Load::Tunnel] {
        assert_eq!(policy.place(load, now), Placement::Open(first), "{load:?}");
    }
    // Each pause is longer, up to a bound.
    let mut now = now;
    let mut last = PAUSES.pause_after(1);
    for _ in 0..10 {
        now += last;
        let other = connects(&mut policy, Load::SessionApart, now);
        let together = connects(&mut policy, Load::SessionApart, now);
        let (pause, news) = refuse(&mut policy, other, now);
        assert!(
            !news && pause > last || pause == PAUSES.pause_after(u32::MAX),
            "{pause:?} after {last:?}"
        );
        assert_eq!(
            refuse(&mut policy, together, now),
            (pause, false),
            "counts as one"
        );
        last = pause;
    }
    // A connection that is useful ends the pauses.
    now += last;
    let other = connects(&mut policy, Load::SessionApart, now);
    policy.lane_ready(other, Answerer::Nobody, now);
    policy.session_opened(other, Tally::default());
    assert_eq!(policy.lane_lost(other, now), Loss::Other);
    connects(&mut policy, Load::SessionApart, now);
}

#[test]
fn a_further_connection_that_ends_before_it_was_of_use_was_refused() {
    let (mut policy, now) = policy();
    let (_, other, now) = further(&mut policy, now);
    policy.lane_ready(other, Answerer::Nobody, now);
    policy.session_ended(other, now, End::NeverOpened, now);
    assert!(matches!(
        policy.lane_lost(other, now),
        Loss::FurtherRefused { .. }
    ));
}

#[test]
fn full_lanes_make_work_wait_while_further_log_ins_are_refused() {
    let (mut policy, now) = policy();
    let first = connect(&mut policy, now);
    for _ in 1..10 {
        open(&mut policy, now);
    }
    let other = connects(&mut policy, Load::Session, now);
    policy.lane_lost(other, now);
    let again = now + PAUSES.pause_after(1);
    assert_eq!(policy.place(Load::Session, now), Placement::Wait(Some(again)));
    policy.session_ended(first, now, End::Closed, now);
    assert_eq!(policy.place(Load::Session, now), Placement::Open(first));
    connects(&mut policy, Load::Session, again);
}

#[test]
fn a_further_log_in_that_takes_long_holds_up_nothing() {
    let (mut policy, now) = policy();
    let (first, other, now) = further(&mut policy, now);
    assert_eq!(policy.patience(first, Load::Session, now), Patience::Endless);
    let overdue = now + PATIENCE;
    let waits = Patience::UntilChanged(Some(overdue));
    assert_eq!(
        policy.patience(other, Load::Session, now),
        waits,
        "the first one is busy"
    );
    for load in [Load::Session, Load::SessionApart, Load::Tunnel] {
        assert_eq!(policy.patience(other, load, overdue), Patience::Over, "{load:?}");
        assert_eq!(policy.place(load, overdue), Placement::Open(first), "{load:?}");
    }
    // Once it is logged in, it is as good as any.
    policy.lane_ready(other, Answerer::Nobody, now);
    assert_eq!(policy.patience(other, Load::Session, overdue), Patience::Endless);
    assert_eq!(policy.place(Load::Session, overdue), Placement::Open(other));
}

#[test]
fn what_waits_for_a_further_log_in_takes_a_place_that_becomes_free() {
    let (mut policy, now) = policy();
    let first = connect(&mut policy, now);
    for _ in 1..10 {
        open(&mut policy, now);
    }
    let other = connects(&mut policy, Load::Session, now);
    let waits = Patience::UntilChanged(Some(now + PATIENCE));
    assert_eq!(policy.patience(other, Load::Session, now), waits);
    policy.session_ended(first, now, End::Closed, now);
    assert_eq!(policy.patience(other, Load::Session, now), Patience::Over);
    // A session apart does not.
    assert_eq!(policy.patience(other, Load::SessionApart, now), waits);
    // If all other lanes are full, it waits.
    open(&mut policy, now);
    let late = now + PATIENCE;
    assert_eq!(
        policy.patience(other, Load::Session, late),
        Patience::UntilChanged(None)
    );
}

#[test]
fn nothing_further_is_tried_before_the_first_connection_is_there() {
    let (mut policy, now) = policy();
    let first = connects(&mut policy, Load::Session, now);
    policy.first_asked(first);
    for _ in 1..10 {
        assert_eq!(policy.place(Load::Session, now), Placement::Open(first));
    }
    assert_eq!(policy.place(Load::Session, now), Placement::Wait(None));
    assert_eq!(policy.place(Load::SessionApart, now), Placement::Wait(None));
    policy.lane_ready(first, Answerer::Nobody, now);
    connects(&mut policy, Load::Session, now);
    policy.lane_lost(first, now);
}

/// Returns a request for a session, with an answerer for its connection.
fn asks(answerer: Answerer) -> Demand {
    Demand {
        load: Load::Session,
        answerer,
    }
}

/// Returns a lane whose log-in took a program's answer, and that is too busy for more.
fn busy_by_a_programs_answer(policy: &mut Policy, now: Instant) -> (LaneId, Instant) {
    let first = policy.hold_first(now);
    policy.lane_ready(first, Answerer::Program, now);
    let later = now + Duration::from_secs(1);
    policy.traffic(first, 10_000_000, later);
    (first, later)
}

#[test]
fn a_program_that_has_its_answers_at_hand_has_further_lanes_where_others_have_none() {
    let (mut policy, now) = policy();
    let (first, now) = busy_by_a_programs_answer(&mut policy, now);
    for answerer in [Answerer::Nobody, Answerer::Person] {
        assert_eq!(policy.place(asks(answerer), now), Placement::Open(first));
        assert!(policy.most_together(answerer, now).is_some());
    }
    assert_eq!(policy.most_together(Answerer::Program, now), None);
    let further = policy.place(asks(Answerer::Program), now);
    assert!(matches!(further, Placement::Connect(lane) if lane != first));
}

#[test]
fn where_log_ins_take_answers_they_are_made_one_after_the_other() {
    let (mut policy, now) = policy();
    let (_, now) = busy_by_a_programs_answer(&mut policy, now);
    let Placement::Connect(second) = policy.place(asks(Answerer::Program), now) else {
        panic!("the only lane is busy")
    };
    assert!(!policy.may_add(Answerer::Program, now));
    policy.lane_ready(second, Answerer::Program, now);
    assert!(policy.may_add(Answerer::Program, now));
    // The next answer may be wrong, once.
    let third = policy.add_lane(now);
    assert!(matches!(
        policy.lane_lost(third, now),
        Loss::FurtherRefused { .. }
    ));
    assert!(!policy.may_add(Answerer::Program, now));
}

#[test]
fn a_further_log_in_whose_program_has_left_is_no_refusal() {
    let (mut policy, now) = policy();
    let (_, now) = busy_by_a_programs_answer(&mut policy, now);
    let Placement::Connect(further) = policy.place(asks(Answerer::Program), now) else {
        panic!("the only lane is busy")
    };
    policy.lane_given_up(further);
    assert!(matches!(
        policy.place(asks(Answerer::Program), now),
        Placement::Connect(_)
    ));
}

#[test]
fn where_the_first_log_in_took_an_answer_there_is_no_further_lane() {
    let (mut policy, now) = policy();
    let first = policy.hold_first(now);
    policy.lane_ready(first, Answerer::Person, now);
    for load in [Load::Session, Load::SessionApart, Load::Tunnel] {
        assert_eq!(policy.place(load, now), Placement::Open(first), "{load:?}");
    }
    let later = now + Duration::from_secs(1);
    policy.traffic(first, 10_000_000, later);
    for load in [Load::Session, Load::SessionApart, Load::Tunnel] {
        assert_eq!(
            policy.place(load, later),
            Placement::Open(first),
            "busy: {load:?}"
        );
    }
    assert_eq!(policy.most_together(Answerer::Nobody, later), Some(5));
    while policy.load(first).0 < 10 {
        assert_eq!(policy.place(Load::Session, later), Placement::Open(first));
    }
    assert_eq!(policy.place(Load::Session, later), Placement::Wait(None));
    policy.session_ended(first, now, End::Closed, later);
    assert_eq!(policy.place(Load::Session, later), Placement::Open(first));
    // The user has asked for its end: the next one is a first lane again.
    policy.retire(first);
    connects(&mut policy, Load::Session, later);
}

#[test]
fn a_first_connection_is_made_whatever_became_of_further_ones() {
    let (mut policy, now) = policy();
    let (first, other, now) = further(&mut policy, now);
    policy.lane_lost(other, now);
    assert_eq!(policy.lane_lost(first, now), Loss::Other);
    let next = connects(&mut policy, Load::Session, now);
    assert!(!policy.is_further(next));
    assert_eq!(policy.lane_lost(next, now), Loss::NeverMade);
}

#[test]
fn a_single_connection_is_asked_for_whatever_is_wanted_and_its_refusals_are_final() {
    let now = Instant::now();
    let mut policy = Policy::new(Settings::default(), Some(2), None, now).single();
    policy.set_reuse(Reuse::Several);
    let lane = connect(&mut policy, now);
    for _ in 1..30 {
        open(&mut policy, now);
    }
    assert_eq!(refuse(&mut policy, now), Verdict::Final);
    policy.traffic(lane, 10_000_000_000, now + Duration::from_secs(1));
    assert_eq!(open(&mut policy, now), lane, "busy as it is");
    for load in [Load::Session, Load::SessionApart, Load::Tunnel] {
        assert_eq!(policy.place(load, now), Placement::Open(lane), "{load:?}");
    }
    // A session requested in the same breath as another ended does not find its place yet.
    policy.session_ended(lane, now, End::Closed, now);
    assert_eq!(refuse(&mut policy, now), Verdict::PlaceAnew);
    assert_eq!(refuse(&mut policy, now), Verdict::Final);
}

#[test]
fn a_limit_holds_whatever_a_lane_seemed_to_carry() {
    let (mut policy, now) = policy();
    let lane = connect(&mut policy, now);
    // Two more are requested at once: one is confirmed before the other is refused.
    let asked = policy.asks(lane);
    policy.place(Load::Session, now);
    policy.place(Load::Session, now);
    policy.session_opened(lane, asked);
    assert_eq!(
        policy.session_refused(lane, false, asked, now),
        Verdict::PlaceAnew
    );
    policy.session_ended(lane, now, End::NeverOpened, now);
    assert_eq!(policy.session_limit(), Some(2));
    connects(&mut policy, Load::Session, now);
}

#[test]
fn a_refused_spare_teaches_that_there_is_room_for_none() {
    let (mut policy, now) = policy();
    let lane = connect(&mut policy, now);
    assert_eq!(policy.open_spares(lane, now), 1);
    policy.session_refused(lane, true, policy.asks(lane), now);
    assert_eq!(policy.session_limit(), Some(1));
    assert_eq!(policy.open_spares(lane, now), 0);
}

#[test]
fn a_refusal_stands_where_the_only_connection_has_ended_meanwhile() {
    let ended = |mut policy: Policy, now| {
        let lane = connect(&mut policy, now);
        let asked = policy.asks(lane);
        policy.place(Load::Session, now);
        policy.lane_lost(lane, now);
        policy.session_refused(lane, false, asked, now)
    };
    let (several, now) = policy();
    assert_eq!(ended(several, now), Verdict::PlaceAnew);
    let (several, now) = policy();
    assert_eq!(ended(several.single(), now), Verdict::Final);
}

#[test]
fn spares_are_taken_first_and_follow_demand() {
    let (mut policy, now) = policy();
    let lane = connect(&mut policy, now);
    assert_eq!(policy.open_spares(lane, now), 1);
    policy.spare_opened(lane, policy.asks(lane));
    assert_eq!(policy.place(Load::Session, now), Placement::Spare(lane));
    policy.place(Load::Session, now);
    assert_eq!(policy.open_spares(lane, now), 3, "three at once were wanted");
}

#[test]
fn a_session_waits_for_a_spare_on_its_way_rather_than_for_a_connection() {
    let (mut policy, now) = policy();
    let lane = connect(&mut policy, now);
    for _ in 1..8 {
        policy.place(Load::Session, now);
    }
    assert_eq!(policy.open_spares(lane, now), 2, "up to the limit of ten");
    assert_eq!(policy.place(Load::Session, now), Placement::Wait(None));
    policy.spare_opened(lane, policy.asks(lane));
    assert_eq!(policy.place(Load::Session, now), Placement::Spare(lane));
}

#[test]
fn a_busy_lane_gets_nothing_new_until_it_is_quiet() {
    let (mut policy, now) = policy();
    let lane = connect(&mut policy, now);
    let later = now + Duration::from_secs(1);
    policy.traffic(lane, 10_000_000, later);
    assert!(matches!(policy.place(Load::Session, later), Placement::Connect(other) if other != lane));
    let between = later + Duration::from_secs(1);
    policy.traffic(lane, 10_000_000 + 125_000, between); // 1 Mbit/s: between the thresholds
    assert!(policy.is_busy(lane));
    policy.traffic(lane, 10_000_000 + 125_000, between + Duration::from_secs(1));
    assert!(!policy.is_busy(lane));
}

#[test]
fn a_lane_is_quiet_once_what_filled_it_has_ended_whenever_it_is_measured_next() {
    let (mut policy, now) = policy();
    let lane = connect(&mut policy, now);
    let later = now + Duration::from_secs(1);
    policy.traffic(lane, 10_000_000, later);
    assert!(policy.is_busy(lane));
    policy.session_ended(lane, now, End::Closed, later);
    assert_eq!(open(&mut policy, later + Duration::from_millis(1)), lane);
    policy.traffic(lane, 20_000_000, later + Duration::from_millis(300));
    assert!(
        !policy.is_busy(lane),
        "most of it was carried for the one that has ended"
    );
}

#[test]
fn after_streams_that_shared_a_connection_sessions_that_come_together_are_spread() {
    let (mut policy, now) = policy();
    let first = connect(&mut policy, now);
    assert_eq!(open(&mut policy, now), first, "nothing is known of them");
    let later = now + Duration::from_secs(1);
    policy.traffic(first, 100_000_000, later);
    policy.session_ended(first, now, End::Closed, later);
    policy.session_ended(first, now, End::Closed, later);
    let quiet = later + Duration::from_secs(1);
    policy.traffic(first, 100_000_000, quiet);

    assert_eq!(
        policy.place(Load::Session, quiet),
        Placement::Open(first),
        "it is empty"
    );
    let mut lanes = vec![first];
    for _ in 1..SIDE_BY_SIDE {
        let lane = connects(&mut policy, Load::Session, quiet);
        assert!(
            matches!(
                policy.patience(lane, Load::Session, quiet),
                Patience::UntilChanged(_)
            ),
            "the lane that would have it carries one already"
        );
        policy.lane_ready(lane, Answerer::Nobody, now);
        lanes.push(lane);
    }
    for lane in &lanes {
        assert_eq!(
            policy.place(Load::Session, quiet),
            Placement::Open(*lane),
            "the one with the least"
        );
    }
    policy.session_ended(lanes[2], quiet, End::Closed, quiet);
    assert_eq!(policy.place(Load::Session, quiet), Placement::Open(lanes[2]));

    let (forgotten, expected) = (later + SIDE_BY_SIDE_FOR, policy.lanes().count());
    assert_eq!(
        policy.place(Load::Session, forgotten),
        Placement::Open(first),
        "the oldest"
    );
    assert_eq!(policy.lanes().count(), expected);
}

#[test]
fn one_stream_alone_or_a_slow_path_spreads_nothing() {
    for (streams, held, bytes) in [
        (1, false, 100_000_000),
        (1, true, 100_000_000),
        (2, false, 10_000_000),
    ] {
        let (mut policy, now) = policy();
        let first = connect(&mut policy, now);
        if held {
            assert_eq!(policy.hold_first(now), first);
        }
        for _ in 1..streams {
            open(&mut policy, now);
        }
        let later = now + Duration::from_secs(1);
        policy.traffic(first, bytes, later);
        for _ in 0..streams {
            policy.session_ended(first, now, End::Closed, later);
        }
        let quiet = later + Duration::from_secs(1);
        policy.traffic(first, bytes, quiet);
        for _ in 0..4 {
            assert_eq!(policy.place(Load::Session, quiet), Placement::Open(first));
        }
    }
}

#[test]
fn short_commands_in_a_row_do_not_make_a_lane_busy() {
    let (mut policy, mut now) = policy();
    let lane = connect(&mut policy, now);
    policy.session_ended(lane, now, End::Closed, now);
    for n in 1..20u32 {
        now += Duration::from_millis(100);
        let placed = now;
        assert!(matches!(policy.place(Load::Session, now), Placement::Open(l) if l == lane));
        policy.traffic(lane, u64::from(n) * 1_000_000, now);
        policy.session_ended(lane, placed, End::Closed, now);
    }
    assert!(!policy.is_busy(lane));
}

#[test]
fn a_session_apart_gets_an_empty_lane_or_a_new_one() {
    let (mut policy, now) = policy();
    let lane = connect(&mut policy, now);
    let Placement::Connect(apart) = policy.place(Load::SessionApart, now) else {
        panic!("the first lane has a session");
    };
    assert_ne!(lane, apart);
    policy.session_ended(lane, now, End::Closed, now);
    assert_eq!(policy.place(Load::SessionApart, now), Placement::Open(lane));
}

#[test]
fn sftp_sessions_share_a_connection_of_sshd_only() {
    let (mut policy, now) = policy();
    policy.set_reuse(Reuse::Several);
    let lane = connects(&mut policy, Load::Sftp, now);
    policy.first_asked(lane);
    // Not even on the connection that is being made.
    assert!(matches!(policy.place(Load::Sftp, now), Placement::Wait(_)));
    policy.lane_ready(lane, Answerer::Nobody, now);
    policy.share_sftp(true);
    assert_eq!(opens(&mut policy, Load::Sftp, now), lane);
    policy.share_sftp(false);
    let other = connects(&mut policy, Load::Sftp, now);
    policy.lane_ready(other, Answerer::Nobody, now);
    // Commands do not mind.
    assert_eq!(opens(&mut policy, Load::Session, now), lane);
    policy.session_ended(other, now, End::Closed, now);
    assert_eq!(policy.place(Load::Sftp, now), Placement::Open(other));
}

#[test]
fn a_session_apart_does_not_join_the_connection_that_is_being_made() {
    let (mut policy, now) = policy();
    let first = connects(&mut policy, Load::Session, now);
    assert!(matches!(
        policy.place(Load::SessionApart, now),
        Placement::Wait(_)
    ));
    policy.lane_ready(first, Answerer::Nobody, now);
    connects(&mut policy, Load::SessionApart, now);
}

#[test]
fn idle_lanes_expire_and_used_ones_do_not() {
    let (mut policy, now) = policy();
    let lane = connect(&mut policy, now);
    assert!(policy.expired_lanes(now + Duration::from_secs(3600)).is_empty());
    policy.session_ended(lane, now, End::Closed, now);
    assert!(policy.expired_lanes(now + Duration::from_secs(59)).is_empty());
    assert_eq!(policy.expired_lanes(now + Duration::from_secs(60)), [lane]);
}

#[test]
fn a_retired_lane_goes_when_it_is_empty() {
    let (mut policy, now) = policy();
    let lane = connect(&mut policy, now);
    policy.retire(lane);
    assert!(policy.expired_lanes(now).is_empty());
    assert!(
        matches!(policy.place(Load::Session, now), Placement::Connect(_)),
        "make before break"
    );
    policy.session_ended(lane, now, End::Closed, now);
    assert_eq!(policy.expired_lanes(now), [lane]);
}

#[test]
fn at_the_most_lanes_a_full_host_makes_sessions_wait() {
    let now = Instant::now();
    let settings = Settings {
        max_lanes: 1,
        sessions_per_lane: 1,
        ..Settings::default()
    };
    let mut policy = Policy::new(settings, None, None, now);
    policy.set_reuse(Reuse::Several);
    let lane = connect(&mut policy, now);
    assert_eq!(policy.place(Load::Session, now), Placement::Wait(None));
    policy.session_ended(lane, now, End::Closed, now);
    assert!(matches!(policy.place(Load::Session, now), Placement::Open(_)));
}

// Servers whose number of sessions per connection is unknown.

fn unknown() -> (Policy, Instant) {
    let (mut policy, now) = policy();
    policy.keep_spares(Spares::Untried);
    policy.set_reuse(Reuse::Untried);
    (policy, now)
}

#[test]
fn no_second_session_is_tried_beside_what_runs_while_there_may_be_another_connection() {
    let (mut policy, now) = unknown();
    let lane = connect(&mut policy, now);
    policy.ran(lane);
    let later = now + PROOF;
    let other = connects(&mut policy, Load::Session, later);
    policy.lane_ready(other, Answerer::Nobody, later);
    policy.session_ended(other, later, End::Closed, later);
    // Its next session shows that a connection may have several.
    assert_eq!(policy.place(Load::Session, later), Placement::Open(other));
    policy.set_reuse(Reuse::Several);
    assert_eq!(policy.place(Load::Session, later), Placement::Open(lane));
}

#[test]
fn a_second_session_is_tried_alone_and_others_wait_for_what_it_shows() {
    let (mut policy, now) = unknown();
    policy.settings.max_lanes = 1;
    let lane = connect(&mut policy, now);
    assert!(policy.is_alone_on(lane));
    assert_eq!(
        policy.place(Load::Session, now),
        Placement::Wait(Some(now + PROOF))
    );
    assert!(!policy.ran(lane));
    assert_eq!(policy.place(Load::Session, now), Placement::Open(lane));
    assert!(!policy.is_alone_on(lane));
    assert_eq!(
        policy.place(Load::Session, now),
        Placement::Wait(Some(now + PROOF))
    );
    assert!(policy.ran(lane));
    policy.set_reuse(Reuse::Several);
    assert_eq!(policy.place(Load::Session, now), Placement::Open(lane));
    // A session whose start is not answered does not delay the others.
    policy.set_reuse(Reuse::Untried);
    let later = now + PROOF;
    assert!(matches!(policy.place(Load::Session, later), Placement::Wait(_)));
}

#[test]
fn where_a_second_session_found_no_place_each_gets_a_connection_of_its_own() {
    for reuse in [Reuse::Doubted, Reuse::One] {
        let (mut policy, now) = unknown();
        let first = connect(&mut policy, now);
        policy.ran(first);
        policy.session_ended(first, now, End::Closed, now);
        open(&mut policy, now);
        policy.doubt_reuse(first);
        policy.set_reuse(reuse);
        let second = connect(&mut policy, now);
        let third = connects(&mut policy, Load::Session, now);
        policy.lane_ready(third, Answerer::Nobody, now);
        // A connection that has had its session ends with it, whether or not the server has closed the session.
        policy.session_ended(second, now, End::Closed, now);
        policy.session_ended(third, now, End::Left, now);
        assert_eq!(policy.finished_lanes(), [second, third]);
        assert_eq!(policy.open_spares(second, now), 0);
    }
}

#[test]
fn a_server_that_refuses_a_session_behind_another_is_given_a_fresh_connection() {
    let (mut policy, now) = unknown();
    let lane = connect(&mut policy, now);
    policy.session_ended(lane, now, End::Left, now);
    assert_eq!(refuse(&mut policy, now), Verdict::PlaceAnew);
    assert_eq!(policy.reuse(), Reuse::Doubted);
    connects(&mut policy, Load::Session, now);
}

#[test]
fn a_session_is_tried_out_on_an_idle_lane_and_becomes_a_spare_once_it_has_outlived_another() {
    let (mut policy, now) = unknown();
    let lane = connect(&mut policy, now);
    assert!(!policy.begin_trial(lane), "a session runs");
    policy.session_ended(lane, now, End::Closed, now);
    assert!(policy.begin_trial(lane));
    assert!(!policy.begin_trial(lane), "one at a time");
    assert!(policy.open_trial(lane));
    assert!(!policy.has_outlived(lane));
    let other = open(&mut policy, now);
    assert_eq!(other, lane);
    policy.session_ended(lane, now, End::Closed, now);
    assert!(policy.has_outlived(lane));
    policy.keep_spares(Spares::Kept);
    policy.end_trial(lane, true);
    assert_eq!(policy.place(Load::Session, now), Placement::Spare(lane));
}

#[test]
fn a_session_that_comes_first_puts_a_trial_off() {
    let (mut policy, now) = unknown();
    let lane = connect(&mut policy, now);
    policy.session_ended(lane, now, End::Closed, now);
    assert!(policy.begin_trial(lane));
    open(&mut policy, now);
    assert!(!policy.open_trial(lane));
    policy.session_ended(lane, now, End::Closed, now);
    assert!(policy.begin_trial(lane));
}

#[test]
fn a_refusal_says_how_many_sessions_there_are_once_the_server_has_answered_behind_those_that_had_ended() {
    let (mut policy, now) = unknown();
    let lane = connect(&mut policy, now);
    policy.session_ended(lane, now, End::Closed, now);
    for (waits, refusal) in [(false, Refusal::TooSoon), (true, Refusal::OfASecond)] {
        assert!(policy.begin_trial(lane));
        assert_eq!(policy.trials_wait(), waits);
        assert!(policy.open_trial(lane));
        assert_eq!(policy.trial_refused(lane), refusal);
        policy.end_trial(lane, false);
    }
    assert!(policy.begin_trial(lane));
    assert!(policy.open_trial(lane));
    open(&mut policy, now);
    assert_eq!(policy.trial_refused(lane), Refusal::OfMore);
}

#[test]
fn nothing_is_tried_where_it_is_known_or_there_is_no_room() {
    for (spares, reuse) in [
        (Spares::None, Reuse::Several),
        (Spares::Kept, Reuse::Several),
        (Spares::Untried, Reuse::One),
    ] {
        let (mut policy, now) = unknown();
        let lane = connect(&mut policy, now);
        policy.session_ended(lane, now, End::Closed, now);
        policy.keep_spares(spares);
        policy.set_reuse(reuse);
        assert!(!policy.begin_trial(lane), "{spares:?}, {reuse:?}");
    }
}

/// An event in the life of connections and sessions.
#[derive(Debug, Clone)]
enum Step {
    Place(Load),
    /// The connection of this number, if it is being made, is logged in.
    LogIn(usize),
    End(usize),
    OpenSpares(usize),
    SpareOpened(usize),
    Traffic(usize, u64),
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let load = prop::sample::select(vec![Load::Session, Load::Sftp, Load::SessionApart, Load::Tunnel]);
    prop_oneof![
        4 => load.prop_map(Step::Place),
        2 => (0..8usize).prop_map(Step::LogIn),
        2 => (0..20usize).prop_map(Step::End),
        1 => (0..8usize).prop_map(Step::OpenSpares),
        1 => (0..8usize).prop_map(Step::SpareOpened),
        1 => (0..8usize, 0..20_000_000u64).prop_map(|(lane, bytes)| Step::Traffic(lane, bytes)),
        1 => (0..3000u64).prop_map(Step::Wait),
    ]
}

/// A policy, and the loads that were placed on each of its lanes.
struct Course {
    policy: Policy,
    now: Instant,
    placed: Vec<(LaneId, Load)>,
}

impl Course {
    fn place(&mut self, load: Load) -> Option<LaneId> {
        let lane = match self.policy.place(load, self.now) {
            Placement::Wait(_) => return None,
            Placement::Connect(lane) => {
                self.policy.first_asked(lane);
                lane
            }
            Placement::Open(lane) | Placement::Spare(lane) => lane,
        };
        self.placed.push((lane, load));
        Some(lane)
    }

    fn end(&mut self, nth: usize, end: End) -> (LaneId, Load) {
        let (lane, load) = self.placed.swap_remove(nth);
        match load {
            Load::Tunnel => self.policy.tunnel_ended(lane, self.now, self.now),
            _ => self.policy.session_ended(lane, self.now, end, self.now),
        }
        (lane, load)
    }

    fn lane(&self, nth: usize) -> Option<LaneId> {
        let lanes: Vec<_> = self.policy.lanes().collect();
        lanes.get(nth % lanes.len().max(1)).copied()
    }

    fn take(&mut self, step: &Step) {
        match *step {
            Step::Place(load) => drop(self.place(load)),
            Step::LogIn(nth) => {
                if let Some(lane) = self.lane(nth) {
                    self.policy.lane_ready(lane, Answerer::Nobody, self.now);
                }
            }
            Step::End(nth) => {
                if nth < self.placed.len() {
                    self.end(nth, End::Closed);
                }
            }
            Step::OpenSpares(nth) => {
                if let Some(lane) = self.lane(nth) {
                    self.policy.open_spares(lane, self.now);
                }
            }
            Step::SpareOpened(nth) => {
                let is_opening = |lane: &LaneId| {
                    let lane = &self.policy.lanes[lane];
                    lane.ready && lane.spares_opening > 0
                };
                if let Some(lane) = self.lane(nth).filter(is_opening) {
                    self.policy.spare_opened(lane, self.policy.asks(lane));
                }
            }
            Step::Traffic(nth, bytes) => {
                if let Some(lane) = self.lane(nth) {
                    self.policy.traffic(lane, bytes, self.now);
                }
            }
            Step::Wait(milliseconds) => self.now += Duration::from_millis(milliseconds),
        }
    }
}

proptest! {
    #[test]
    fn whoever_is_sent_elsewhere_gets_another_place(
        shares_sftp: bool,
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let (mut policy, now) = policy();
        policy.share_sftp(shares_sftp);
        let mut course = Course { policy, now, placed: Vec::new() };
        for step in steps {
            course.take(&step);
            let is_over = |&(lane, load): &(LaneId, Load)| course.policy.patience(lane, load, course.now) == Patience::Over;
            let over: Vec<_> = course.placed.iter().copied().filter(is_over).collect();
            for waits in over {
                // The ones before may have taken the better place.
                if course.policy.patience(waits.0, waits.1, course.now) == Patience::Over {
                    let nth = course.placed.iter().position(|placed| *placed == waits).unwrap();
                    let (lane, load) = course.end(nth, End::NeverOpened);
                    prop_assert_ne!(course.place(load), Some(lane), "{:?}", load);
                }
            }
        }
    }
}
