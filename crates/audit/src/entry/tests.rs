use std::fs;
use std::path::{Path, PathBuf};

use futures_util::FutureExt as _;
use proptest::prelude::*;
use trunkline::{AuditMode, Invalid, Settings};
use trunkline_control::place::{Place, make_private};

use super::*;

/// Events of the work, and of the disk.
#[derive(Debug, Clone, Copy)]
enum Step {
    Begin,
    /// Two callers at once, such as a retry beside the first attempt.
    BeginTwice,
    /// The caller leaves before the result is known.
    BeginGivenUp,
    Break,
    Heal,
    End,
}

struct Trail {
    directory: tempfile::TempDir,
    audit: Arc<Audit>,
}

impl Trail {
    fn strict() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let place = Place {
            runtime: directory.path().join("r"),
            state: directory.path().join("s"),
            config: directory.path().join("c"),
        };
        let settings = Settings {
            audit: AuditMode::Strict,
            ..Settings::default()
        };
        make_private(&place.audit()).unwrap();
        fs::write(place.state.join("away"), "in the way").unwrap();
        let audit = Audit::open(&place, &settings).unwrap();
        Self { directory, audit }
    }

    fn place(&self) -> PathBuf {
        self.directory.path().join("s/audit")
    }

    fn away(&self) -> PathBuf {
        self.directory.path().join("s/away")
    }

    /// Exchanges the trail with the other file atomically, since a writer may be active.
    fn exchange(&self) {
        use rustix::fs::{CWD, RenameFlags, renameat_with};
        renameat_with(CWD, self.place(), CWD, self.away(), RenameFlags::EXCHANGE).unwrap();
    }

    fn break_disk(&self) {
        if !self.place().is_file() {
            self.exchange();
        }
    }

    fn heal(&self) {
        if self.place().is_file() {
            self.exchange();
        }
    }

    fn has(&self, event: &str) -> bool {
        let read = |directory: &Path| fs::read_to_string(directory.join("audit.jsonl")).unwrap_or_default();
        let text = read(&self.place()) + &read(&self.away());
        text.contains(&format!("\"event\":\"{event}\""))
    }
}

async fn begin(entry: &Entry) -> Result<(), Error> {
    entry.begin(|subject| subject).await
}

async fn walk(steps: &[Step]) {
    let trail = Trail::strict();
    let recorder = Recorder::of_program(&trail.audit);
    let entry = recorder.entry(Subject::new("session", "web1"));
    let (mut refused, mut ended) = (false, false);
    for step in steps {
        let outcomes = match step {
            Step::Begin => vec![begin(&entry).await],
            Step::BeginTwice => {
                let (first, second) = tokio::join!(begin(&entry), begin(&entry));
                assert_eq!(first.is_ok(), second.is_ok(), "two callers are told the same");
                vec![first, second]
            }
            Step::BeginGivenUp => begin(&entry).now_or_never().into_iter().collect(),
            Step::Break => {
                trail.break_disk();
                continue;
            }
            Step::Heal => {
                trail.heal();
                continue;
            }
            Step::End => {
                entry.fail(&Error::Invalid(Invalid::NoHost));
                ended = true;
                continue;
            }
        };
        for outcome in outcomes {
            match outcome {
                Ok(()) => {
                    assert!(trail.has("begin"), "what may happen is on the disk");
                    assert!(!refused, "what was refused stays refused");
                    assert!(!ended, "what has ended is not begun again");
                }
                Err(error) => {
                    assert_eq!(error.execution(), Execution::DidNotStart);
                    refused = true;
                }
            }
        }
    }
    drop(entry);
    trail.heal();
    recorder.close().await;
    if refused && !ended {
        assert!(!trail.has("end"), "what did not happen has no end");
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => Just(Step::Begin),
        1 => Just(Step::BeginTwice),
        1 => Just(Step::BeginGivenUp),
        2 => Just(Step::Break),
        2 => Just(Step::Heal),
        1 => Just(Step::End),
    ];
    prop::collection::vec(step, 1..12)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_may_happen_whose_beginning_is_not_on_the_disk(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(walk(&steps));
    }
}

#[tokio::test]
async fn a_second_try_after_a_refusal_is_refused_also_when_the_disk_is_back() {
    walk(&[Step::Break, Step::Begin, Step::Begin, Step::Heal, Step::Begin]).await;
}

#[tokio::test]
async fn what_its_caller_gave_up_before_it_was_recorded_did_not_start() {
    let trail = Trail::strict();
    let recorder = Recorder::of_program(&trail.audit);
    let entry = recorder.entry(Subject::new("session", "web1"));
    assert!(begin(&entry).now_or_never().is_none());
    drop(entry);
    recorder.close().await;
    let text = fs::read_to_string(trail.place().join("audit.jsonl")).unwrap();
    assert!(text.contains("\"execution\":\"did not start\""), "{text}");
}
