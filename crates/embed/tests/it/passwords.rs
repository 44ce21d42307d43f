//! Passwords that the program has at hand: it gives them to further connections while its request lives.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;
use tokio::task::JoinSet;
use trunkline::prompt::{Answer, Answerer, Prompt, PromptKind, Prompter};
use trunkline::{ExitStatus, Interaction};
use trunkline_embed::{ErrorKind, Input, Preference, Route, Session, Way};
use trunkline_testkit::Sshd;

use crate::thread::Daemon;
use crate::{destination, engine, exec};

/// A program with a password, which counts how often it was asked for it.
struct Supplies {
    password: &'static str,
    asked: AtomicUsize,
    /// Woken by each question.
    wanted: Notify,
    /// Answers nothing, for ever.
    silent: bool,
}

impl Supplies {
    fn new(password: &'static str, silent: bool) -> Arc<Self> {
        Arc::new(Self {
            password,
            asked: AtomicUsize::new(0),
            wanted: Notify::new(),
            silent,
        })
    }

    fn count(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }
}

impl Prompter for Supplies {
    fn ask<'a>(&'a self, prompt: &'a Prompt) -> Answer<'a> {
        assert_eq!(prompt.kind, PromptKind::Password);
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.wanted.notify_one();
        let answer = (!self.silent).then(|| self.password.to_owned().into());
        Box::pin(async move {
            match answer {
                Some(answer) => Some(answer),
                None => std::future::pending().await,
            }
        })
    }

    fn answerer(&self) -> Answerer {
        Answerer::Program
    }
}

fn server(sessions: u32) -> Sshd {
    Sshd::builder()
        .password("secret")
        .authentication_methods("password")
        .config(&format!("MaxSessions {sessions}"))
        .start()
        .unwrap()
}

async fn way(sshd: &Sshd, directory: &Path, preference: Preference, program: &Arc<Supplies>) -> Way {
    let mut destination = destination(sshd, directory, preference, &["-o", "NumberOfPasswordPrompts=1"]);
    destination.interaction = Interaction::new(program.clone(), |_| {});
    destination.answers = true;
    Way::find(&destination, async || Ok(engine())).await.unwrap()
}

/// Attempts with a wrong password that the server has seen.
fn failures(sshd: &Sshd) -> usize {
    sshd.log().count("Failed password")
}

async fn let_go(daemon: Daemon) {
    tokio::task::spawn_blocking(|| drop(daemon)).await.unwrap();
}

/// A session that holds its place until its input ends.
async fn hold(way: &Way) -> Session {
    let mut session = way
        .session(&exec("cat"), [Route::Pipe, Route::Pipe, Route::Ignore])
        .await
        .unwrap();
    session.end.wait_for_start().await.unwrap();
    session
}

async fn finish(mut session: Session) {
    let Input::Program(mut stdin) = session.stdin else {
        panic!("it is the program's");
    };
    stdin.finish().await;
    assert_eq!(session.end.wait().await, Ok(ExitStatus::Exited(0)));
}

#[tokio::test]
async fn thirty_sessions_at_once_have_as_many_connections_as_they_need() {
    for preference in [Preference::Engine, Preference::RunningDaemon] {
        let sshd = server(5);
        let daemon = Daemon::start();
        let program = Supplies::new("secret", false);
        let way = Arc::new(way(&sshd, &daemon.dir(), preference, &program).await);
        way.connect().await.unwrap();
        let together = tempfile::tempdir().unwrap();
        let directory = together.path().display();
        // Each ends when all thirty run.
        let line =
            format!("touch {directory}/$$; while [ $(ls {directory} | wc -l) -lt 30 ]; do sleep 0.05; done");
        let mut sessions = JoinSet::new();
        for _ in 0..30 {
            let (way, line) = (way.clone(), line.clone());
            sessions.spawn(async move { way.run(&exec(&line), None, None).await.outcome });
        }
        for outcome in sessions.join_all().await {
            assert_eq!(outcome, Ok(ExitStatus::Exited(0)));
        }
        assert!(sshd.authentications() >= 6, "{}", sshd.authentications());
        assert_eq!((program.count(), failures(&sshd)), (sshd.authentications(), 0));
        drop(way);
        let_go(daemon).await;
    }
}

#[tokio::test]
async fn a_program_that_has_left_holds_up_nobody_and_costs_no_attempt() {
    let sshd = server(1);
    let daemon = Daemon::start();
    let first = way(
        &sshd,
        &daemon.dir(),
        Preference::RunningDaemon,
        &Supplies::new("secret", false),
    )
    .await;
    let held = hold(&first).await;
    let silent = Supplies::new("secret", true);
    let leaving = way(&sshd, &daemon.dir(), Preference::RunningDaemon, &silent).await;
    let left = tokio::spawn(async move { leaving.run(&exec("true"), None, None).await });
    silent.wanted.notified().await;
    left.abort();
    let _ = left.await;
    let third = Supplies::new("secret", false);
    let way = way(&sshd, &daemon.dir(), Preference::RunningDaemon, &third).await;
    assert_eq!(
        way.run(&exec("true"), None, None).await.outcome,
        Ok(ExitStatus::Exited(0))
    );
    assert_eq!((silent.count(), third.count()), (1, 1));
    assert_eq!((sshd.authentications(), failures(&sshd)), (2, 0));
    finish(held).await;
    drop((first, way));
    let_go(daemon).await;
}

#[tokio::test]
async fn a_wrong_password_is_one_attempt() {
    for preference in [Preference::Engine, Preference::RunningDaemon] {
        let sshd = server(1);
        let daemon = Daemon::start();
        let wrong = Supplies::new("wrong", false);
        let way = way(&sshd, &daemon.dir(), preference, &wrong).await;
        let failure = way.run(&exec("true"), None, None).await.outcome.unwrap_err();
        assert_eq!(failure.kind, ErrorKind::Authentication);
        assert_eq!((wrong.count(), failures(&sshd)), (1, 1));
        drop(way);
        let_go(daemon).await;
    }
}

#[tokio::test]
async fn work_whose_wrong_password_is_refused_waits_for_the_connection_that_is_there() {
    let sshd = server(1);
    let daemon = Daemon::start();
    let right = Supplies::new("secret", false);
    let first = way(&sshd, &daemon.dir(), Preference::RunningDaemon, &right).await;
    let held = hold(&first).await;
    let wrong = Supplies::new("wrong", false);
    let second = Arc::new(way(&sshd, &daemon.dir(), Preference::RunningDaemon, &wrong).await);
    let mut sessions = JoinSet::new();
    for _ in 0..3 {
        let way = second.clone();
        sessions.spawn(async move { way.run(&exec("true"), None, None).await.outcome });
    }
    sshd.wait_for_log("Failed password").await.unwrap();
    finish(held).await;
    for outcome in sessions.join_all().await {
        assert_eq!(outcome, Ok(ExitStatus::Exited(0)));
    }
    // How often a refused log-in is tried again is for the policy to say.
    assert_eq!((right.count(), wrong.count()), (1, failures(&sshd)));
    assert_eq!(sshd.authentications(), 1);
    drop((first, second));
    let_go(daemon).await;
}
