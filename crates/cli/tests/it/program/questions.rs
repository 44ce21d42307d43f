//! Questions of several hosts, and of several programs, on one terminal.

use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Stdio};

use rustix::process::{Signal, kill_process};
use trunkline_testkit::{Sshd, write_ssh_config};

use crate::home::{
    Home, assert_says, assert_status, describe, fail, finish, program, sshd, succeed, text, wait_until,
    wait_until_or,
};
use crate::tty::Terminal;

/// Servers with a password each, and a home whose ssh_config knows them as host1 and so on.
fn servers(passwords: &[&str], lines: &[&str]) -> (Vec<Sshd>, Home, std::path::PathBuf) {
    let home = Home::new();
    let servers: Vec<Sshd> = passwords
        .iter()
        .map(|password| sshd().client_keys([]).password(password).start().unwrap())
        .collect();
    let entries = servers.iter().enumerate().map(|(n, server)| {
        let entry = server.host_entry(&format!("host{}", n + 1));
        lines.iter().fold(entry, |entry, line| entry.with_line(line))
    });
    let config = home.config(entries);
    (servers, home, config)
}

fn command(home: &Home, config: &std::path::Path, words: &[&str]) -> Command {
    let mut command = home.trunkline();
    let (first, rest) = words.split_first().unwrap();
    command.arg(first).arg("-F").arg(config).args(rest);
    command
}

/// Types what belongs to the host that the screen's next question names, of `user@hostN: ` and the like.
fn answer_next(terminal: &mut Terminal, asked: &mut usize, marker: &str, answer: impl Fn(&str) -> String) {
    let nth = *asked;
    wait_until("the next question", || {
        terminal.text().matches(marker).count() > nth
    });
    *asked += 1;
    let shown = terminal.text();
    let at = shown.match_indices(marker).nth(nth).unwrap().0;
    let host = &shown[shown[..at].rfind("host").unwrap()..];
    let host = &host[..host.find(|c: char| !c.is_ascii_alphanumeric()).unwrap()];
    let answer = answer(host);
    terminal.send(&format!("{answer}\n"));
}

#[test]
fn each_password_reaches_the_host_that_was_on_the_screen() {
    for no_daemon in [false, true] {
        let passwords = ["one", "two", "three", "four", "five"];
        let (servers, home, config) = servers(&passwords, &[]);
        let mut warm = home.trunkline();
        if no_daemon {
            warm.arg("--no-daemon");
        }
        warm.arg("warm").arg("-F").arg(&config);
        warm.args(["host1", "host2", "host3", "host4", "host5"]);
        let mut terminal = Terminal::start(&warm);
        let (mut asked, mut offered) = (0, 0);
        loop {
            let count = |text: &str| terminal.text().matches(text).count();
            wait_until_or("the next question or the end", || {
                let there = count("assword: ") > asked
                    || count("(yes/no) ") > offered
                    || count(": connected") == passwords.len();
                let log = || servers.iter().map(|server| server.log().text());
                there
                    .then_some(())
                    .ok_or_else(|| format!("{}\n{}", terminal.text(), log().collect::<String>()))
            });
            if count("(yes/no) ") > offered {
                // They differ. Made when somebody else waits for a turn with a password already.
                terminal.send("no\n");
                offered += 1;
            } else if count("assword: ") > asked {
                answer_next(&mut terminal, &mut asked, "assword: ", |host| {
                    let n: usize = host.strip_prefix("host").unwrap().parse().unwrap();
                    passwords[n - 1].to_owned()
                });
            } else {
                break;
            }
        }
        assert_eq!(asked, passwords.len());
        assert_eq!(terminal.end().code(), Some(0), "{}", terminal.text());
        for server in &servers {
            // sshd's monitor logs it when the client may know already.
            wait_until("the log-in is logged", || server.authentications() == 1);
            assert_eq!(
                server.log().count("Failed keyboard-interactive"),
                0,
                "another host's password came"
            );
        }
        for password in passwords {
            assert!(
                !terminal.text().contains(&format!("{password}\r")),
                "{}",
                terminal.text()
            );
        }
    }
}

#[test]
fn a_host_that_connects_while_another_ones_question_is_shown_holds_up_nothing() {
    let home = Home::new();
    let (config, question) = (home.path("config"), home.path("question"));
    let asking = sshd().client_keys([]).password("one").start().unwrap();
    let ready = sshd().start().unwrap();
    // It is reached once the other one's question is on the screen.
    let late = format!(
        "ProxyCommand bash -c 'until [ -e {} ]; do sleep 0.1; done; exec 3<>/dev/tcp/%h/%p; cat <&3 & exec cat >&3'",
        question.display()
    );
    let entries = [
        asking.host_entry("host1"),
        ready.host_entry("host2").with_line(&late),
    ];
    write_ssh_config(&config, entries).unwrap();
    let mut terminal = Terminal::start(&command(&home, &config, &["warm", "host1", "host2"]));
    terminal.expect("@host1) Password: ");
    std::fs::write(&question, "").unwrap();
    wait_until("the other one is connected", || {
        let hosts = text(&finish(home.trunkline().args(["ls", "--json"])).stdout);
        hosts.contains("\"host2\"") && ready.authentications() == 1
    });
    // By then whoever warms it has been told, too.
    succeed(home.trunkline().args(["check", "-F"]).arg(&config).arg("host2"));
    terminal.send("one\n");
    assert_eq!(terminal.end().code(), Some(0), "{}", terminal.text());
    for host in ["host1: connected", "host2: connected"] {
        assert!(terminal.text().contains(host), "{}", terminal.text());
    }
}

#[test]
fn questions_come_in_the_order_of_the_list() {
    let (_servers, home, config) = servers(&["one", "two", "three"], &[]);
    let (file, copy) = (home.path("file"), home.path("copy-{host}"));
    std::fs::write(&file, "content").unwrap();
    let (file, copy) = (file.to_str().unwrap(), format!(":{}", copy.display()));
    for words in [
        vec!["warm", "host3", "host1", "host2"],
        vec!["run", "-H", "host3,host1,host2", "--", "true"],
        vec!["cp", "-H", "host3,host1,host2", file, &copy],
    ] {
        let mut terminal = Terminal::start(&command(&home, &config, &words));
        terminal.answer("@host3) Password: ", "three\n");
        terminal.expect("for the other hosts that ask");
        terminal.answer("(yes/no) ", "no\n");
        terminal.answer("@host1) Password: ", "one\n");
        terminal.answer("@host2) Password: ", "two\n");
        assert_eq!(terminal.end().code(), Some(0), "{}", terminal.text());
        succeed(home.trunkline().args(["close", "--all"]));
    }
}

#[test]
fn who_waits_for_what_another_command_is_asked_is_told_so_on_a_terminal() {
    let (_servers, home, config) = servers(&["pw"], &[]);
    let ssh = |line| command(&home, &config, &["ssh", "host1", line]);
    let mut asked = Terminal::start(&ssh("echo one"));
    asked.expect("@host1) Password: ");
    let mut waiting = Terminal::start(&ssh("echo two"));
    let piped = ssh("echo three")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut silent = Terminal::start(&command(&home, &config, &["ssh", "-q", "host1", "echo four"]));
    let (file, copy) = (home.path("file"), home.path("copy"));
    std::fs::write(&file, "content").unwrap();
    let copy = format!("host1:{}", copy.display());
    let mut copying = Terminal::start(&command(&home, &config, &["cp", file.to_str().unwrap(), &copy]));
    copying.expect("Waiting for ");
    waiting.expect("Waiting for ");
    waiting.expect("@host1: another command is being asked a question");
    // ssh's would fail in front of the question, too.
    let batch = fail(
        255,
        &mut command(&home, &config, &["ssh", "-o", "BatchMode=yes", "host1", "true"]),
    );
    assert_says(&batch, "is being asked a question, and nobody can be asked here");
    asked.send("pw\n");
    asked.expect("one");
    // Erased before anything else is shown.
    assert_eq!(waiting.expect("two"), "\r\x1b[K");
    assert_eq!(asked.end().code(), Some(0));
    assert_eq!(waiting.end().code(), Some(0));
    assert_eq!(copying.end().code(), Some(0));
    assert_eq!(silent.end().code(), Some(0));
    silent.expect("four");
    assert_eq!(silent.text().trim_end(), "four");
    let piped = piped.wait_with_output().unwrap();
    assert_eq!(
        (text(&piped.stdout), text(&piped.stderr)),
        ("three\n".into(), String::new())
    );
}

#[test]
fn a_password_is_used_for_other_hosts_where_the_user_agrees_and_a_wrong_one_asked_again_there_only() {
    let (servers, home, config) = servers(&["same", "same", "different"], &[]);
    let mut terminal = Terminal::start(&command(
        &home,
        &config,
        &["run", "-j", "1", "-H", "host[1-3]", "--", "echo in"],
    ));
    terminal.answer("@host1) Password: ", "same\n");
    terminal.expect("for the other hosts that ask");
    terminal.answer("(host[2-3])? (yes/no) ", "yes\n");
    terminal.expect("host2: in");
    terminal.answer("@host3) Password: ", "different\n");
    terminal.expect("host3: in");
    assert_eq!(terminal.end().code(), Some(0));
    assert_eq!(
        terminal.text().matches("Password: ").count(),
        2,
        "{}",
        terminal.text()
    );
    assert_eq!(servers[2].log().count("Failed keyboard-interactive"), 1);
}

#[test]
fn a_no_for_one_host_key_refuses_that_host_only() {
    let known = tempfile::tempdir().unwrap();
    let lines = [
        "StrictHostKeyChecking ask".to_owned(),
        format!("UserKnownHostsFile {}/known", known.path().display()),
    ];
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let (servers, home, config) = servers(&["pw", "pw"], &lines);
    let mut terminal = Terminal::start(&command(&home, &config, &["warm", "host1", "host2"]));
    let (mut keys, mut passwords) = (0, 0);
    // Whichever host comes first, with its key or already with its password.
    while keys < 2 || passwords < 1 {
        let count = |terminal: &Terminal, text: &str| terminal.text().matches(text).count();
        wait_until("the next question", || {
            count(&terminal, ") The authenticity of host ") > keys
                || count(&terminal, "@host2) Password: ") > passwords
        });
        if count(&terminal, "@host2) Password: ") > passwords {
            terminal.send("pw\n");
            passwords += 1;
        } else {
            answer_next(&mut terminal, &mut keys, ") The authenticity of host ", |host| {
                if host == "host1" { "no" } else { "yes" }.to_owned()
            });
        }
    }
    terminal.end();
    assert_eq!(servers[0].authentications(), 0);
    wait_until("the log-in is logged", || servers[1].authentications() == 1);
}

#[test]
fn two_programs_on_one_terminal_ask_one_after_the_other() {
    let (servers, home, config) = servers(&["one", "two"], &[]);
    let script =
        "\"$T\" ssh -F \"$F\" host1 'echo in 1' & \"$T\" ssh -n -F \"$F\" host2 'echo in 2'; wait; echo both";
    let mut shell = home.command("sh");
    shell.args(["-c", script]).env("T", program()).env("F", &config);
    let mut terminal = Terminal::start(&shell);
    let mut asked = 0;
    answer_next(&mut terminal, &mut asked, "assword: ", |host| {
        if host == "host1" { "one" } else { "two" }.to_owned()
    });
    answer_next(&mut terminal, &mut asked, "assword: ", |host| {
        if host == "host1" { "one" } else { "two" }.to_owned()
    });
    terminal.expect("both");
    let shown = terminal.text();
    assert!(shown.contains("in 1") && shown.contains("in 2"), "{shown}");
    // The second question came after the first was answered: their lines are whole.
    for server in &servers {
        assert_eq!(server.log().count("Failed keyboard-interactive"), 0, "{shown}");
    }
}

#[test]
fn the_terminal_is_restored_however_a_question_ends() {
    type End<'a> = &'a dyn Fn(&Home, &Terminal);
    let ends: [(&str, End<'_>); 4] = [
        ("SIGTERM", &|_, terminal| {
            kill_process(terminal.pid(), Signal::TERM).unwrap();
        }),
        ("SIGHUP", &|_, terminal| {
            kill_process(terminal.pid(), Signal::HUP).unwrap();
        }),
        ("SIGINT", &|_, terminal| {
            kill_process(terminal.pid(), Signal::INT).unwrap();
        }),
        ("the daemon's end", &|home, _| {
            kill_process(home.daemon().unwrap(), Signal::KILL).unwrap();
        }),
    ];
    for words in [
        &["warm", "host1"][..],
        &["run", "-H", "host1", "--", "true"],
        &["cp", "/dev/null", "host1:"],
        &["ssh", "host1", "true"],
    ] {
        for (what, end) in ends {
            let (_servers, home, config) = servers(&["pw"], &[]);
            let before = Terminal::start(&home.command("true")).modes();
            let mut terminal = Terminal::start(&command(&home, &config, words));
            terminal.expect("@host1) Password: ");
            assert_ne!(terminal.modes(), before);
            end(&home, &terminal);
            assert!(!terminal.end().success());
            assert_eq!(terminal.modes(), before, "{words:?}: {what}");
        }
    }
}

#[test]
fn an_interrupted_question_is_the_last_one_and_nothing_has_started() {
    // By its key, and by somebody else: that is told at once, and not when the server has waited for its password.
    let ends: [fn(&mut Terminal); 2] = [
        |terminal| terminal.send("\x03"),
        |terminal| kill_process(terminal.pid(), Signal::INT).unwrap(),
    ];
    for end in ends {
        let (_servers, home, config) = servers(&["pw", "pw", "pw"], &[]);
        let words = ["run", "-H", "host[1-3]", "--", "true"];
        let mut terminal = Terminal::start(&command(&home, &config, &words));
        terminal.expect(") Password: ");
        end(&mut terminal);
        terminal.expect("not started: host[1-3]");
        terminal.expect("did not start");
        assert_eq!(terminal.end().signal(), Some(2));
        let shown = terminal.text();
        assert_eq!(shown.to_lowercase().matches("password: ").count(), 1, "{shown}");
        assert!(!shown.contains("may have started"), "{shown}");
    }
}

#[test]
fn a_question_that_was_interrupted_at_one_line_is_asked_again_at_the_next() {
    let (_servers, home, config) = servers(&["pw", "pw"], &[]);
    let mut terminal = Terminal::start(&command(&home, &config, &["run", "-H", "host[1-2]"]));
    terminal.answer("host[1-2]> ", "echo first\r");
    terminal.answer(") Password: ", "\x03");
    terminal.expect("2 not started");
    terminal.answer("host[1-2]> ", "echo second\r");
    terminal.answer(") Password: ", "pw\r");
    terminal.answer("(yes/no) ", "yes\r");
    terminal.expect("2 succeeded");
    terminal.answer("host[1-2]> ", ":quit\r");
    assert_eq!(terminal.end().code(), Some(0));
}

#[test]
fn who_waits_for_anothers_answer_is_asked_when_that_one_gives_none() {
    let ends: [fn(&mut Terminal); 3] = [
        |terminal| terminal.send("\x03"),
        |terminal| {
            terminal.send("\x04");
            // The server's other way to ask.
            terminal.answer("@host1's password: ", "\x04");
        },
        |terminal| kill_process(terminal.pid(), Signal::KILL).unwrap(),
    ];
    let waiting: [&[&str]; 4] = [
        &["ssh", "host1", "true"],
        &["warm", "host1"],
        &["cp", "/dev/null", "host1:/dev/null"],
        &["run", "-H", "host1", "true"],
    ];
    for (end, waiting) in ends.iter().cycle().zip(waiting) {
        let (_servers, home, config) = servers(&["pw"], &[]);
        let mut first = Terminal::start(&command(&home, &config, &["ssh", "host1", "true"]));
        first.expect("@host1) Password: ");
        let mut second = Terminal::start(&command(&home, &config, waiting));
        second.expect("Waiting for ");
        end(&mut first);
        second.expect("@host1) Password: ");
        second.send("pw\r");
        assert!(second.end().success(), "{waiting:?}: {}", second.text());
        first.end();
    }
}

#[test]
fn who_waits_for_an_answer_for_which_the_server_did_not_is_asked() {
    let server = sshd()
        .client_keys([])
        .password("pw")
        .config("LoginGraceTime 10")
        .start()
        .unwrap();
    let home = Home::new();
    let config = home.config([server.host_entry("host1")]);
    let ssh = || command(&home, &config, &["ssh", "host1", "true"]);
    let mut first = Terminal::start(&ssh());
    first.expect("@host1) Password: ");
    let mut second = Terminal::start(&ssh());
    second.expect("Waiting for ");
    // It says nothing of that.
    wait_until("the server has given up", || server.connection_pids().is_empty());
    first.send("pw\r");
    assert_eq!(first.end().code(), Some(255), "{}", first.text());
    second.expect("@host1) Password: ");
    second.send("pw\r");
    assert!(second.end().success(), "{}", second.text());
}

#[test]
fn who_waits_for_a_log_in_for_which_others_had_no_right_answer_is_asked() {
    let (_servers, home, config) = servers(&["pw"], &["NumberOfPasswordPrompts 1"]);
    let ssh = |options: &[&str]| {
        let mut command = command(&home, &config, &["ssh"]);
        command.args(options).args(["host1", "true"]);
        command
    };
    let answer = |terminal: &mut Terminal| {
        terminal.answer("@host1) Password: ", "pw\r");
        assert!(terminal.end().success(), "{}", terminal.text());
        succeed(home.trunkline().args(["close", "--all"]));
    };
    // Another person's.
    let mut first = Terminal::start(&ssh(&[]));
    first.expect("@host1) Password: ");
    let mut second = Terminal::start(&ssh(&[]));
    second.expect("Waiting for ");
    first.send("wrong\r");
    first.expect("@host1's password: ");
    first.send("wrong\r");
    assert_eq!(first.end().code(), Some(255));
    answer(&mut second);
    // A program's that nobody can be asked for.
    let begun = home.path("begun");
    let slow = format!(
        "ProxyCommand=bash -c 'touch {}; sleep 1; exec 3<>/dev/tcp/%h/%p; cat <&3 & exec cat >&3'",
        begun.display()
    );
    let mut alone = ssh(&["-o", &slow, "-o", "BatchMode=yes"]);
    let alone = alone.stderr(Stdio::piped()).spawn().unwrap();
    wait_until("it connects", || begun.exists());
    answer(&mut Terminal::start(&ssh(&["-o", &slow])));
    let alone = alone.wait_with_output().unwrap();
    assert_status(&alone, 255);
    assert!(text(&alone.stderr).contains("Permission denied"), "{alone:?}");
}

#[test]
fn run_says_what_would_help_where_nobody_can_be_asked() {
    let (_servers, home, config) = servers(&["pw"], &[]);
    let run = command(&home, &config, &["run", "-H", "host1", "--", "true"]);
    // Without a controlling terminal there is no /dev/tty.
    let mut alone = home.command("setsid");
    alone.arg("--wait").arg(run.get_program()).args(run.get_args());
    let output = fail(1, &mut alone);
    assert!(
        text(&output.stderr)
            .replace('\n', " ")
            .contains("trunkline warm host1"),
        "{}",
        describe(&output)
    );
}

#[test]
fn askpass_dialogs_of_several_programs_come_one_after_the_other_and_name_their_host() {
    let (servers, home, config) = servers(&["one", "two"], &[]);
    // A dialog that stays until it is let go; `log` shows what was on the screen when.
    let script = "#!/bin/sh\n\
                  echo \"begin $1\" >> log\n\
                  while ! [ -e go ]; do sleep 0.01; done\n\
                  case $1 in *host1*) echo one;; *host2*) echo two;; esac\n\
                  echo end >> log\n";
    let askpass = home.script("askpass", script);
    let log = || std::fs::read_to_string(home.path("log")).unwrap_or_default();
    let mut programs = [
        ["--no-daemon", "ssh", "host1"].as_slice(),
        &["--no-daemon", "run", "-H", "host2", "--"],
    ]
    .map(|words| {
        let mut command = home.trunkline();
        command.args(&words[..2]).arg("-F").arg(&config).args(&words[2..]);
        command
            .arg("true")
            .current_dir(home.path(""))
            .env("SSH_ASKPASS", &askpass)
            .env("SSH_ASKPASS_REQUIRE", "force")
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    });
    for server in &servers {
        wait_until("the server has asked", || {
            server.log().count("Postponed keyboard-interactive") > 0
        });
    }
    wait_until("a dialog is shown", || log().contains("begin"));
    std::fs::write(home.path("go"), "").unwrap();
    for program in &mut programs {
        assert!(crate::home::end_of(program, "asking").success(), "{}", log());
    }
    let log = log();
    let lines: Vec<&str> = log.lines().collect();
    let begun = |line: &str, host| line.starts_with("begin ") && line.contains(host);
    let (first, second) = if begun(lines[0], "host1") {
        ("host1", "host2")
    } else {
        ("host2", "host1")
    };
    assert!(
        begun(lines[0], first) && lines[1] == "end" && begun(lines[2], second) && lines[3] == "end",
        "{log}"
    );
}

#[test]
fn what_a_server_says_while_its_question_is_on_the_screen_holds_up_nothing() {
    use trunkline_testkit::hostile::{Fields, Payload, RawServer, Wire, number};
    // It asks, and has a notice to show before the answer has come.
    let server = RawServer::script(|mut wire: Wire| async move {
        let service = wire.expect(number::SERVICE_REQUEST).await?;
        let name = Fields::parse(&service).text()?;
        wire.send(Payload::message(number::SERVICE_ACCEPT).string(name))
            .await?;
        loop {
            let request = wire.expect(number::USERAUTH_REQUEST).await?;
            let mut fields = Fields::parse(&request);
            let (_user, _service, method) = (fields.text()?, fields.text()?, fields.text()?);
            if method == "keyboard-interactive" {
                break;
            }
            let methods = Payload::message(number::USERAUTH_FAILURE).string("keyboard-interactive");
            wire.send(methods.boolean(false)).await?;
        }
        let question = Payload::message(number::USERAUTH_INFO_REQUEST)
            .string("")
            .string("");
        let question = question.string("").uint32(1).string("Code: ").boolean(false);
        let notice = |text: &str| Payload::message(number::USERAUTH_BANNER).string(text).string("");
        wire.send_together(&[question, notice("look at your telephone\n")])
            .await?;
        wire.expect(number::USERAUTH_INFO_RESPONSE).await?;
        wire.send(
            Payload::message(number::USERAUTH_FAILURE)
                .string("publickey")
                .boolean(false),
        )
        .await?;
        wire.until_closed().await;
        Ok(())
    })
    .unwrap();
    let home = Home::new();
    let mut entry = server.host_entry("raw");
    entry.may_ask = true;
    let config = home.config([entry]);
    let askpass = home.script("askpass", "#!/bin/sh\necho 123456\n");
    let target = format!("file:{}", home.path("streamed").display());
    for words in [
        &["run", "-H", "raw", "--", "true"][..],
        &["warm", "raw"],
        &["cp", "raw:there", "here"],
        &[
            "stream",
            "--restart",
            "never",
            "--to",
            &target,
            "raw",
            "--",
            "true",
        ],
    ] {
        for daemon in [true, false] {
            let mut command = home.trunkline();
            command.args((!daemon).then_some("--no-daemon"));
            command.arg(words[0]).arg("-F").arg(&config).args(&words[1..]);
            command
                .env("SSH_ASKPASS", &askpass)
                .env("SSH_ASKPASS_REQUIRE", "force");
            let output = finish(command.current_dir(home.path("")));
            assert!(!output.status.success(), "{}", describe(&output));
        }
    }
}
