//! A developer's morning: `git fetch` in every working copy, with nothing new.

use std::process::Command;

use trunkline_testkit::{Relay, write_ssh_config};

use super::{OPENSSH, OPENSSH_MUX, Outcome, RTT, Row, STOCK_SSH, Table, Target, Verdict, ratio};
use crate::lab::{Lab, Master};
use crate::measure::{self, Contestant, in_turns};

pub(super) const ROW: Row = Row {
    name: "git-fetch",
    title: "eleven `git fetch` with nothing new, 100 ms RTT",
    measure,
};

const FETCHES: usize = 11;

fn measure(lab: &Lab) -> anyhow::Result<Outcome> {
    let server = lab.server().config("AcceptEnv GIT_PROTOCOL").start()?;
    let relay = Relay::start(server.addr())?;
    relay.set_rtt(RTT);
    server.trust_at(relay.addr())?;
    let config = lab.path("git-config");
    // git asks for it anyway; a ControlMaster passes on only what was in its own configuration when it started, and
    // without the variable the protocol is an older one, with a round trip less.
    let host = server
        .host_entry("far")
        .with_address(relay.addr())
        .with_line("SendEnv GIT_PROTOCOL");
    write_ssh_config(&config, [host])?;
    let daemon = lab.daemon()?;
    let socket = daemon.listen(&config, "far")?;
    let master = Master::start(lab, &config, "far")?;

    let (bare, work) = (lab.path("repository.git"), lab.path("working-copy"));
    let run = |arguments: &[&str]| measure::time(Command::new("git").args(arguments));
    let [bare, work] = [&bare, &work].map(|path| path.display().to_string());
    run(&["init", "-q", "--bare", &bare])?;
    run(&["clone", "-q", &bare, &work])?;
    let author = ["-c", "user.name=T", "-c", "user.email=t@example.org"];
    run(&[
        &author[..],
        &["-C", &work, "commit", "-q", "--allow-empty", "-m", "first"],
    ]
    .concat())?;
    run(&["-C", &work, "push", "-q", "origin", "HEAD:main"])?;
    run(&["-C", &work, "remote", "set-url", "origin", &format!("far:{bare}")])?;

    let contestant = |name: &str, path: Option<String>| {
        let option = path.map_or_else(
            || "-o ControlPath=none".into(),
            |path| format!("-o ControlPath={path}"),
        );
        let ssh = format!("ssh -F {} {option}", config.display());
        let work = work.clone();
        Contestant::new(name, move || {
            let mut seconds = 0.0;
            for _ in 0..FETCHES {
                let mut git = Command::new("git");
                git.args(["-C", &work, "fetch", "-q"])
                    .env("GIT_SSH_COMMAND", &ssh);
                seconds += measure::time(&mut git)?;
            }
            Ok(vec![seconds])
        })
    };
    let shown = |path: &std::path::Path| Some(path.display().to_string());
    let mut contestants = vec![
        contestant(STOCK_SSH, shown(&socket)),
        contestant(OPENSSH_MUX, shown(master.socket())),
        contestant(OPENSSH, None),
    ];
    let table = Table {
        title: "one fetch after the other".into(),
        unit: "s",
        samples: in_turns(lab.size(5, 2), &mut contestants),
    };
    let verdict = |what: &str, to, limit| Verdict {
        what: what.into(),
        measured: ratio(table.median(STOCK_SSH), table.median(to)),
        target: Target::AtMost(limit),
        unit: "of its time",
    };
    Ok(Outcome {
        verdicts: vec![
            verdict("trunkline's socket / OpenSSH's master", OPENSSH_MUX, 0.75),
            verdict("trunkline's socket / no sharing", OPENSSH, 0.25),
        ],
        tables: vec![table],
        notes: vec!["Stock git and ssh, protocol version 2; all connections but those of \"OpenSSH ssh\" exist before.".into()],
        ..Outcome::default()
    })
}
