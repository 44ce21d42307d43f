//! Failures: one clear sentence, status 255, whether the command may have run, and never a hang.

use std::fs;
use std::process::{Command, Output};

use trunkline_testkit::{KeyPair, KeyType, Sshd, free_port};

use crate::home::{
    Home, assert_says, assert_status, describe, fail, finish, program, server, succeed, text, with_status,
};

/// Asserts that a command failed as one of ours should: 255, nothing on standard output, and one line that says this.
#[track_caller]
fn assert_said(output: &Output, words: &[&str]) {
    assert_status(output, 255);
    assert_eq!(text(&output.stdout), "");
    let said = text(&output.stderr);
    for word in words {
        assert!(said.contains(word), "{word:?} is not in {}", describe(output));
    }
    assert_eq!(said.trim_end().lines().count(), 1, "{}", describe(output));
    assert!(!said.contains("os error") && !said.contains("Error {"), "{said}");
}

/// `trunkline ssh` to a server under a changed entry.
fn command_for(home: &Home, server: &Sshd, lines: &[&str]) -> Command {
    let mut command = home.ssh_with(&home.config_of_box(server, lines));
    command.args(["box", "echo ran"]);
    command
}

#[test]
fn a_host_that_does_not_exist_is_named() {
    let (server, home) = (server(), Home::new());
    let mut command = home.ssh(&server);
    assert_said(
        &finish(command.args(["nowhere.invalid", "true"])),
        &["nowhere.invalid"],
    );
}

#[test]
fn a_refused_port_is_named() {
    let (server, home) = (server(), Home::new());
    let port = free_port();
    let output = finish(&mut command_for(&home, &server, &[&format!("Port {port}")]));
    assert_said(&output, &["127.0.0.1", &port.to_string(), "Connection refused"]);
}

#[test]
fn a_changed_host_key_is_refused_before_anything_is_signed() {
    let (server, home) = (server(), Home::new());
    let other = KeyPair::generate(server.dir(), "other", KeyType::Ed25519).unwrap();
    let line = format!("[127.0.0.1]:{} {}\n", server.port(), other.public_key());
    fs::write(server.known_hosts(), line).unwrap();
    let output = fail(255, home.ssh(&server).args([server.alias(), "echo ran"]));
    assert_eq!(text(&output.stdout), "");
    let said = text(&output.stderr);
    assert!(
        said.to_lowercase().contains("changed") && said.contains("known_hosts"),
        "{said}"
    );
    assert_eq!(server.authentications(), 0);
}

#[test]
fn a_key_that_the_server_does_not_know_is_denied() {
    let (server, home) = (server(), Home::new());
    fs::write(server.dir().join("authorized_keys"), "").unwrap();
    let output = finish(home.ssh(&server).args([server.alias(), "echo ran"]));
    assert_said(&output, &["Permission denied", "publickey"]);
}

#[test]
fn a_missing_key_file_is_named() {
    let (server, home) = (server(), Home::new());
    let mut entry = server.host_entry("box");
    entry.identities = vec![home.path("no-such-key")];
    let config = home.config([entry]);
    let output = fail(255, home.ssh_with(&config).args(["box", "echo ran"]));
    assert_says(&output, "no-such-key");
    assert_says(&output, "Permission denied");
}

#[test]
fn bad_options_are_told_in_the_words_of_ssh() {
    let (server, home) = (server(), Home::new());
    let output = fail(255, home.trunkline().args(["ssh", "-Z", "box"]));
    assert_says(&output, "unknown option -- Z");
    let output = fail(255, home.trunkline().arg("ssh"));
    assert!(
        text(&output.stderr).starts_with("usage: "),
        "{}",
        describe(&output)
    );
    let output = fail(
        255,
        home.ssh(&server)
            .args(["-o", "NoSuchOption=1", server.alias(), "true"]),
    );
    assert!(
        text(&output.stderr).to_lowercase().contains("nosuchoption"),
        "{}",
        describe(&output)
    );
}

#[test]
fn a_configuration_that_cannot_be_read_is_named_with_its_line() {
    let home = Home::new();
    let missing = home.path("missing");
    let output = finish(home.ssh_with(&missing).args(["box", "true"]));
    assert_said(&output, &[missing.to_str().unwrap()]);
    let bad = home.path("bad");
    fs::write(
        &bad,
        "Host box\n    HostName 127.0.0.1\n    NoSuchDirective yes\n",
    )
    .unwrap();
    let output = fail(255, home.ssh_with(&bad).args(["box", "true"]));
    let said = text(&output.stderr);
    assert!(
        said.contains("line 3") && said.to_lowercase().contains("nosuchdirective"),
        "{said}"
    );
}

#[test]
fn host_memory_that_cannot_be_kept_costs_nothing_but_speed() {
    let server = server();
    let spoil: [fn(&Home); 3] = [
        // No directory, but a file.
        |home| fs::write(home.trunkline_dir().join("state"), "in the way").unwrap(),
        // A directory where nothing can be made, by anybody.
        |home| std::os::unix::fs::symlink("/proc/sys", home.trunkline_dir().join("state")).unwrap(),
        // A log on a full disk.
        |home| {
            let state = home.trunkline_dir().join("state");
            fs::create_dir(&state).unwrap();
            std::os::unix::fs::symlink("/dev/full", state.join("daemon.log")).unwrap();
        },
    ];
    for spoil in spoil {
        let home = Home::new();
        fs::create_dir(home.trunkline_dir()).unwrap();
        spoil(&home);
        for _ in 0..2 {
            let output = with_status(0, home.run_on(&server, "echo ran"));
            assert_eq!(text(&output.stdout), "ran\n");
        }
        assert!(home.daemon().is_some());
    }
}

#[test]
fn a_damaged_host_memory_is_put_aside() {
    let (server, home) = (server(), Home::new());
    assert_status(&home.run_on(&server, "true"), 0);
    succeed(home.trunkline().arg("stop"));
    crate::home::wait_until("the daemon has ended", || home.daemon().is_none());
    let state = home.trunkline_dir().join("state");
    for entry in fs::read_dir(&state).unwrap().flatten() {
        if entry.file_name() != "daemon.log" {
            fs::write(entry.path(), "no database ".repeat(1000)).unwrap();
        }
    }
    assert_status(&home.run_on(&server, "true"), 0);
}

#[test]
fn a_command_connects_by_itself_where_the_usual_place_has_no_room_for_sockets() {
    let (server, home) = (server(), Home::new());
    let long = home.path(&"x".repeat(100));
    fs::create_dir(&long).unwrap();
    let ssh = || {
        let mut ssh = home.ssh(&server);
        ssh.env_remove("TRUNKLINE_DIR").env("XDG_RUNTIME_DIR", &long);
        ssh
    };
    let output = succeed(ssh().args([server.alias(), "echo ran"]));
    assert_eq!(text(&output.stdout), "ran\n");
    assert_eq!(text(&output.stderr), "");
    let output = succeed(ssh().args(["-v", server.alias(), "true"]));
    assert_says(&output, "too long for a socket's path");
    let output = fail(
        255,
        ssh().args([server.alias(), "true"]).env("TRUNKLINE_STRICT", "1"),
    );
    assert_says(&output, "too long for a socket's path");
}

#[test]
fn a_place_for_the_sockets_that_cannot_serve_is_named() {
    let (server, home) = (server(), Home::new());
    let at = |dir: &std::path::Path| {
        finish(
            home.ssh(&server)
                .args([server.alias(), "echo ran"])
                .env("TRUNKLINE_DIR", dir),
        )
    };
    let long = home.path(&"x".repeat(100));
    assert_said(&at(&long), &["too long", "TRUNKLINE_DIR"]);
    let file = home.path("file");
    fs::write(&file, "").unwrap();
    assert_said(&at(&file.join("d")), &[file.to_str().unwrap()]);
    // Others may write here: neither used nor changed.
    let shared = home.path("shared");
    fs::create_dir(&shared).unwrap();
    let mode = |mode| std::os::unix::fs::PermissionsExt::from_mode(mode);
    fs::set_permissions(&shared, mode(0o1777)).unwrap();
    assert_said(&at(&shared), &[shared.to_str().unwrap(), "0700"]);
    assert_eq!(
        std::os::unix::fs::MetadataExt::mode(&fs::metadata(&shared).unwrap()) & 0o7777,
        0o1777
    );
    // Somebody else's. Nobody but root can give a directory away.
    if rustix::process::geteuid().is_root() {
        let theirs = home.path("theirs");
        fs::create_dir(&theirs).unwrap();
        fs::set_permissions(&theirs, mode(0o700)).unwrap();
        std::os::unix::fs::chown(&theirs, Some(65534), None).unwrap();
        assert_said(&at(&theirs), &[theirs.to_str().unwrap(), "belongs to uid 65534"]);
    }
}

#[test]
fn a_misspelt_setting_is_told_to_whoever_starts_the_daemon() {
    let (server, home) = (server(), Home::new());
    home.settings("idle_timeot = 5\n");
    let output = with_status(255, home.run_on(&server, "echo ran"));
    assert_says(&output, "config.toml");
    assert_says(&output, "idle_timeot");
    home.settings("idle_timeout = 5\n");
    assert_status(&home.run_on(&server, "true"), 0);
}

#[test]
fn what_is_no_socket_is_not_deleted_to_make_room_for_one() {
    let (server, home) = (server(), Home::new());
    fs::create_dir(home.trunkline_dir()).unwrap();
    fs::write(home.socket(), "somebody's notes").unwrap();
    assert_said(
        &home.run_on(&server, "true"),
        &[home.socket().to_str().unwrap(), "not a socket"],
    );
    assert_eq!(fs::read_to_string(home.socket()).unwrap(), "somebody's notes");
    fs::remove_file(home.socket()).unwrap();
    assert_status(&home.run_on(&server, "true"), 0);
}

#[test]
fn output_that_cannot_be_written_is_a_failure_that_says_so() {
    let (server, home) = (server(), Home::new());
    let mut command = home.ssh(&server);
    command
        .args([server.alias(), "echo lost; exit 0"])
        .stderr(std::process::Stdio::piped());
    command.stdout(fs::File::options().write(true).open("/dev/full").unwrap());
    let output = command.spawn().unwrap().wait_with_output().unwrap();
    assert_said(&output, &["No space left on device", "the command finished"]);
}

/// Whatever somebody else puts into an option's value stays in it: `ssh -G` prints a line for each directive, and what
/// follows a line feed would be read as another one.
#[test]
fn a_line_feed_in_an_option_never_becomes_a_directive() {
    let (server, home) = (server(), Home::new());
    let config = server.ssh_config().display().to_string();
    let alias = server.alias().to_owned();
    let mark = home.path("ran");
    let evil = format!("\nproxycommand touch {}\nlocalcommand touch {0}", mark.display());
    let inventory = home.path("inventory.yml");
    let host = serde_json::json!({ "ansible_ssh_common_args": format!("-F {config} -o 'SetEnv=A=b{evil}'") });
    let all = serde_json::json!({ "all": { "hosts": { alias.as_str(): host } } });
    fs::write(&inventory, all.to_string()).unwrap();
    let options: Vec<String> = [
        "SetEnv=A=b",
        "RemoteCommand=true",
        "LocalCommand=true",
        "Tag=a",
        "HostName=127.0.0.1",
    ]
    .iter()
    .map(|option| format!("{option}{evil}"))
    .collect();
    let mut tries: Vec<Vec<String>> = Vec::new();
    let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
    for option in &options {
        tries.push(words(&["ssh", "-F", &config, "-o", option, &alias]));
        tries.push(words(&["ssh", "-F", &config, "-o", option, &alias, "true"]));
    }
    let [set_env, ..] = &options[..] else {
        unreachable!()
    };
    let attached = format!("-o{set_env}");
    let user = format!("me{evil}");
    let at = format!("{user}@{alias}");
    let place = format!("{alias}:/dev/null");
    let here = home.path("here").display().to_string();
    tries.extend([
        words(&["ssh", "-F", &config, &attached, &alias, "true"]),
        words(&["ssh", "-F", &config, "-l", &user, &alias, "true"]),
        words(&["ssh", "-F", &config, "-i", &format!("/key{evil}"), &alias, "true"]),
        words(&[
            "ssh",
            "-F",
            &config,
            "-L",
            &format!("/sock{evil}:127.0.0.1:1"),
            &alias,
            "true",
        ]),
        words(&["ssh", "-F", &format!("{config}{evil}"), &alias, "true"]),
        words(&["ssh", "-F", &config, &at, "true"]),
        words(&["ssh", "-F", &config, "-J", &at, &alias, "true"]),
        words(&["cp", "-F", &config, "-o", set_env, &place, &here]),
        words(&["explain", "-F", &config, "-o", set_env, &alias]),
        words(&["warm", "-F", &config, "-o", set_env, &alias]),
        words(&["run", "-F", &config, "-o", set_env, &alias, "--", "true"]),
        words(&["run", "-i", &inventory.display().to_string(), "all", "--", "true"]),
    ]);
    for words in &tries {
        for apart in [true, false] {
            let mut command = home.command_with_ansible(program());
            if apart {
                command.arg("--no-daemon");
            }
            let output = finish(command.args(words));
            assert!(
                !mark.exists(),
                "{words:?} ran a command here: {}",
                describe(&output)
            );
            assert!(!output.status.success(), "{words:?} {}", describe(&output));
        }
    }
    // In words that say what is wrong, without the line feed.
    let output = finish(home.trunkline().args(&tries[1]));
    assert_said(&output, &["control character", "SetEnv=A=b\\012proxycommand"]);
}

#[test]
fn a_variable_with_a_line_feed_never_becomes_a_directive() {
    let (server, home) = (server(), Home::new());
    let mark = home.path("ran");
    let evil = format!("/sock\nproxycommand touch {}\n", mark.display());
    // ssh prints the sockets of forwardings expanded.
    let mut command = command_for(&home, &server, &["LocalForward ${PLACE} 127.0.0.1:1"]);
    let output = finish(command.env("PLACE", &evil));
    assert!(!mark.exists(), "{}", describe(&output));
    assert_said(&output, &["PLACE", "control character"]);
    // A variable that only a shell reads may hold anything.
    let lines = ["PermitLocalCommand yes", "LocalCommand test -n \"${PLACE}\""];
    let mut command = command_for(&home, &server, &lines);
    let output = succeed(command.env("PLACE", &evil));
    assert_eq!(text(&output.stdout), "ran\n");
}

#[test]
fn a_command_may_have_as_many_lines_as_it_likes() {
    let (server, home) = (server(), Home::new());
    let output = with_status(0, home.run_on(&server, "echo one\necho two"));
    assert_eq!(text(&output.stdout), "one\ntwo\n");
    // The one control character that an option may be.
    let output = succeed(
        home.ssh(&server)
            .args(["-e", "\x1d", server.alias(), "echo three"]),
    );
    assert_eq!(text(&output.stdout), "three\n");
}

#[test]
fn root_in_another_users_home_writes_nothing_there_and_says_so() {
    // Nobody else can give a directory away.
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let (server, home) = (server(), Home::new());
    let (jo, own) = (home.path("jo"), home.path("own"));
    for directory in [&jo, &own] {
        fs::create_dir(directory).unwrap();
    }
    // Where a link of theirs leads, and where nothing is yet.
    std::os::unix::fs::symlink(&own, jo.join(".cache")).unwrap();
    std::os::unix::fs::lchown(jo.join(".cache"), Some(54321), None).unwrap();
    std::os::unix::fs::chown(&jo, Some(54321), None).unwrap();
    let theirs = |name: &str, value: &std::path::Path| {
        let mut command = home.ssh(&server);
        command.env_remove("TRUNKLINE_DIR").env("HOME", &own);
        command.env("XDG_RUNTIME_DIR", &own).env(name, value);
        finish(command.args([server.alias(), "true"]))
    };
    for (name, value) in [
        ("XDG_RUNTIME_DIR", jo.join(".cache")),
        ("XDG_RUNTIME_DIR", jo.clone()),
        ("TRUNKLINE_DIR", jo.join("dir")),
    ] {
        assert_said(&theirs(name, &value), &["belongs to uid 54321", "TRUNKLINE_DIR"]);
    }
    let config = jo.join(".config/trunkline");
    fs::create_dir_all(&config).unwrap();
    fs::write(config.join("config.toml"), "metrics_port = 9\n").unwrap();
    assert_said(
        &theirs("XDG_CONFIG_HOME", &jo.join(".config")),
        &["config.toml", "belongs to uid 54321"],
    );
    // Host memory is a cache: without it, it runs.
    assert_status(&theirs("XDG_STATE_HOME", &jo.join("state")), 0);
    let found: Vec<_> = fs::read_dir(&jo)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(found.len(), 2, "{found:?}");
    let mode = fs::metadata(&jo).unwrap();
    assert_eq!(std::os::unix::fs::MetadataExt::mode(&mode) & 0o777, 0o755);
    let mut stop = home.trunkline();
    stop.env_remove("TRUNKLINE_DIR").env("HOME", &own);
    succeed(stop.env("XDG_RUNTIME_DIR", &own).arg("stop"));
}

#[test]
fn a_part_that_is_not_installed_is_named_with_its_places_and_path_is_not_searched() {
    let home = Home::new();
    let bin = home.path("alone/bin");
    fs::create_dir_all(&bin).unwrap();
    fs::copy(program(), bin.join("trunkline")).unwrap();
    // A program of this name that is somebody else's.
    for part in ["fleet", "watch", "mcp"] {
        home.script(&format!("path/trunkline-{part}"), "#!/bin/sh\necho found\n");
    }
    for (words, part) in [
        (&["fleet", "status"][..], "fleet"),
        (&["run", "--fleet", "-H", "a", "true"], "fleet"),
        (&["stream", "--fleet", "--detach", "a", "--", "true"], "fleet"),
        (&["top", "--fleet"], "fleet"),
        (&["serve-ui", "--fleet"], "fleet"),
        (&["metrics", "--fleet"], "fleet"),
        (&["top"], "watch"),
        (&["mcp"], "mcp"),
    ] {
        let mut command = home.command(bin.join("trunkline"));
        let said = finish(command.args(words).env("PATH", home.path("path")));
        let beside = bin.join(format!("trunkline-{part}")).display().to_string();
        let name = format!("trunkline-{part} is not installed");
        assert_said(&said, &[&name, &beside, "alone/libexec/trunkline"]);
        let options = [&["--no-daemon"], words].concat();
        let mut command = home.command(bin.join("trunkline"));
        let said = finish(command.args(options));
        assert_said(&said, &["leave out --no-daemon"]);
    }
}
