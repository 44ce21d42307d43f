//! Words of a server's never steer the terminal of whoever reads them, wherever the server has put them.

use std::fs;
use std::process::Output;

use trunkline_testkit::hostile::{RawServer, Steering};

use crate::home::{Home, assert_says, describe, finish, sshd, text};

/// Asserts that nothing in it moves a cursor, turns text around or is not text.
#[track_caller]
fn assert_plain(what: &str, bytes: &[u8]) {
    let Ok(said) = str::from_utf8(bytes) else {
        panic!("{what}: not UTF-8: {:?}", text(bytes));
    };
    let steers = |c: char| {
        let bidirectional =
            matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        bidirectional || (c.is_control() && c != '\n' && c != '\t')
    };
    assert!(!said.contains(steers), "{what}: {said:?}");
}

fn shows(output: &Output) -> bool {
    text(&output.stderr).contains(Steering::WORD) || text(&output.stdout).contains(Steering::WORD)
}

#[test]
fn nothing_that_a_server_says_steers_the_terminal() {
    // Some are asked again and again, with pauses.
    std::thread::scope(|scope| {
        for part in Steering::ALL.chunks(Steering::ALL.len() / 8) {
            scope.spawn(|| part.iter().for_each(|&steering| cannot_steer(steering)));
        }
    });
}

fn cannot_steer(steering: Steering) {
    let home = Home::new();
    let server = RawServer::steering(steering).unwrap();
    let mut entry = server.host_entry("raw");
    // Where it asks, somebody answers.
    entry.may_ask = steering == Steering::Questions;
    let config = home.config([entry]);
    let askpass = home.script(
        "askpass",
        &format!(
            "#!/bin/sh\nprintf %s \"$1\" >> {0}/asked\n",
            home.path("").display()
        ),
    );
    let mut shown = false;
    for apart in [true, false] {
        let trunkline = || {
            let mut command = home.trunkline();
            if apart {
                command.arg("--no-daemon");
            }
            command
                .env("TRUNKLINE_LOG", "debug")
                .env("SSH_ASKPASS", &askpass)
                .env("SSH_ASKPASS_REQUIRE", "force");
            command
        };
        let here = home.path("here");
        let mut commands = vec![trunkline(), trunkline()];
        commands[0]
            .args(["cp", "-v", "-F"])
            .arg(&config)
            .args(["raw:there", "--"])
            .arg(&here);
        commands[1].arg("explain").arg("-F").arg(&config).arg("raw");
        if !steering.is_about_files() {
            let mut ssh = trunkline();
            ssh.arg("ssh").arg("-F").arg(&config).args(["raw", "true"]);
            commands.push(ssh);
            let mut run = trunkline();
            run.args(["run", "-H", "raw", "-F"]).arg(&config);
            run.arg(if apart { "--collate" } else { "--json" });
            run.args(["--", "true"]);
            commands.push(run);
            let mut warm = trunkline();
            warm.args(["warm", "-F"]).arg(&config).arg("raw");
            commands.push(warm);
            let mut stream = trunkline();
            let target = format!("file:{}", home.path("streamed").display());
            stream.args(["stream", "--restart", "never", "--to", &target, "-F"]);
            stream.arg(&config);
            stream.arg(if apart { "--json" } else { "--mark-gaps" });
            stream.args(["raw", "--", "true"]);
            commands.push(stream);
        }
        if !apart {
            for words in [&["check", "raw"][..], &["ls"], &["ls", "--json"]] {
                let mut command = trunkline();
                command.arg(words[0]).arg("-F").arg(&config).args(&words[1..]);
                commands.push(command);
            }
        }
        for command in &mut commands {
            let output = finish(command);
            let what = format!("{steering:?}: {command:?}");
            assert_plain(&what, &output.stderr);
            assert_plain(&what, &output.stdout);
            shown |= shows(&output);
        }
    }
    for name in ["asked", "streamed", "d/state/daemon.log"] {
        let said = fs::read(home.path(name)).unwrap_or_default();
        assert_plain(&format!("{steering:?}: {name}"), &said);
        shown |= text(&said).contains(Steering::WORD);
    }
    assert!(shown, "{steering:?}: nobody reads it");
}

#[test]
fn names_of_files_do_not_steer_the_terminal() {
    let (server, home) = (sshd().start().unwrap(), Home::new());
    let there = home.path("there");
    fs::create_dir(&there).unwrap();
    for name in ["a\x1b[2J\x07steered", "b\u{9b}31m\u{202e}steered", "c\nsteered\r"] {
        fs::write(there.join(name), "x").unwrap();
    }
    let from = format!("{}:{}", server.alias(), there.display());
    let copy = |target: &str| {
        let mut command = home.trunkline();
        command.args(["cp", "-rv", "-F"]).arg(server.ssh_config());
        finish(command.arg(&from).arg(home.path(target)))
    };
    let output = copy("here");
    assert!(output.status.success(), "{}", describe(&output));
    // A line for each name: its own line feed is spelled out.
    assert_plain("cp -v", &output.stdout);
    assert_eq!(
        text(&output.stdout).matches("steered").count(),
        3,
        "{}",
        describe(&output)
    );
    assert_plain("cp -v", &output.stderr);
    // Failures name them, too: directories stand where the files should go.
    for name in fs::read_dir(&there).unwrap().flatten() {
        let blocked = home.path("blocked/there").join(name.file_name());
        fs::create_dir_all(blocked.join("x")).unwrap();
    }
    let output = copy("blocked");
    assert!(!output.status.success(), "{}", describe(&output));
    assert_plain("cp", &output.stderr);
    assert_says(&output, "steered");
}
