//! Servers that are not what they call themselves, or have fewer sessions than sshd: each command runs once, and what was
//! found out is remembered.

use std::time::Duration;

use trunkline::memory::{HostFacts, Lesson};
use trunkline::{Command, Engine, Error, Execution, Host};
use trunkline_testkit::hostile::{Oddity, RawServer};

use crate::site::{engine, host_with};

const OPENSSH: &str = "SSH-2.0-OpenSSH_9.9";
const OTHER: &str = "SSH-2.0-other_1.0";

/// A server with this oddity that identifies itself by this banner, and its host in a new engine.
async fn odd(oddity: Oddity, banner: &'static str) -> (RawServer, Engine, Host) {
    let (server, engine) = (RawServer::odd(oddity, banner).unwrap(), engine());
    let host = host_with(&engine, &server.ssh_config(), "raw", &[]).await;
    (server, engine, host)
}

fn facts(engine: &Engine) -> HostFacts {
    let known = engine.memory().list();
    known
        .into_iter()
        .next()
        .map(|(_, facts)| facts)
        .unwrap_or_default()
}

fn knows(engine: &Engine, lesson: Lesson) -> bool {
    facts(engine).lessons.has(lesson)
}

async fn runs(host: &Host, word: &str) {
    let output = host.run(&Command::exec(word)).await;
    let output = output.unwrap_or_else(|error| panic!("{word}: {error}"));
    assert_eq!(output.stdout, word.as_bytes());
}

/// Runs commands one after the other until a lesson is learnt: what is found out beside them may take longer than they do.
async fn until_learnt(engine: &Engine, host: &Host, lesson: Lesson) {
    let learning = async {
        for n in 0.. {
            if knows(engine, lesson) {
                return;
            }
            runs(host, &format!("wait-{n}")).await;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let learnt = tokio::time::timeout(Duration::from_secs(60), learning).await;
    assert!(learnt.is_ok(), "{lesson:?} was not learnt: {:?}", facts(engine));
}

#[tokio::test]
async fn a_server_that_passes_by_an_early_command_is_asked_in_steps_from_then_on() {
    let (server, engine, host) = odd(Oddity::PassesByEarly, OPENSSH).await;
    let error: Error = host.run(&Command::exec("first")).await.unwrap_err();
    assert_eq!(error.execution(), Execution::MayHaveStarted, "{error}");
    runs(&host, "second").await;
    assert!(knows(&engine, Lesson::NoPipelining) && !knows(&engine, Lesson::Sshd));
    assert_eq!(server.executed_commands(), ["second"]);
}

#[tokio::test]
async fn each_command_runs_once_however_few_sessions_a_connection_has() {
    for &oddity in Oddity::OF_SESSIONS {
        let (server, _engine, host) = odd(oddity, OTHER).await;
        let words: Vec<String> = (0..6).map(|n| format!("word-{n}")).collect();
        for word in &words {
            runs(&host, word).await;
        }
        assert_eq!(server.executed_commands(), words, "{oddity:?}");
        let together = (0..12).map(|n| {
            let host = host.clone();
            tokio::spawn(async move { runs(&host, &format!("together-{n}")).await })
        });
        for task in together.collect::<Vec<_>>() {
            task.await.unwrap();
        }
        let mut executed = server.executed_commands();
        assert_eq!(executed.len(), 18, "{oddity:?}: {executed:?}");
        executed.sort();
        executed.dedup();
        assert_eq!(executed.len(), 18, "{oddity:?}");
    }
}

#[tokio::test]
async fn many_commands_at_once_on_a_server_that_nobody_knows_all_run() {
    for &oddity in Oddity::OF_SESSIONS {
        let (server, _engine, host) = odd(oddity, OTHER).await;
        let together = (0..12).map(|n| {
            let host = host.clone();
            tokio::spawn(async move { runs(&host, &format!("together-{n}")).await })
        });
        for task in together.collect::<Vec<_>>() {
            task.await.unwrap();
        }
        assert_eq!(server.executed_commands().len(), 12, "{oddity:?}");
    }
}

#[tokio::test]
async fn one_session_for_each_connection_is_learnt_and_no_second_one_asked_for() {
    for oddity in [Oddity::RefusesSecond, Oddity::RunsOnlyFirst] {
        let (server, engine, host) = odd(oddity, OTHER).await;
        until_learnt(&engine, &host, Lesson::OneSession).await;
        let before = server.connections();
        runs(&host, "one").await;
        runs(&host, "two").await;
        assert_eq!(server.connections(), before + 2, "{oddity:?}");
    }
}

#[tokio::test]
async fn a_session_opened_ahead_is_used_where_it_lasts_and_never_where_one_died() {
    for (oddity, lesson) in [
        (Oddity::None, Lesson::Spares),
        (Oddity::ClosesSpares, Lesson::NoSpares),
    ] {
        let (server, engine, host) = odd(oddity, OTHER).await;
        until_learnt(&engine, &host, lesson).await;
        for n in 0..3 {
            runs(&host, &format!("after-{n}")).await;
        }
        assert!(knows(&engine, lesson), "{oddity:?}");
        assert_eq!(server.connections(), 1, "{oddity:?}");
    }
}

#[tokio::test]
async fn what_was_forgotten_is_found_out_anew() {
    let (_server, engine, host) = odd(Oddity::RefusesSecond, OTHER).await;
    until_learnt(&engine, &host, Lesson::OneSession).await;
    for (id, _) in engine.memory().list() {
        engine.memory().forget(&id);
    }
    until_learnt(&engine, &host, Lesson::OneSession).await;
}
