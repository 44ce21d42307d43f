//! The daemon inherits nothing from the program that happened to start it.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::process::Stdio;

use rustix::fs::{FlockOperation, flock};
use trunkline_testkit::Sshd;

use crate::home::{Home, assert_status, describe, fail, program, server, succeed, text, wait_until};

/// A line of /proc/PID/status.
fn status_line(pid: &str, name: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(&format!("{name}:")));
    line.unwrap().trim().to_owned()
}

/// A set of signals, without those of the C library's own, which nobody can reset.
fn signals(set: &str) -> u64 {
    u64::from_str_radix(set, 16).unwrap() & 0x7fff_ffff
}

fn daemon(home: &Home) -> String {
    home.daemon().unwrap().as_raw_nonzero().to_string()
}

/// A caller's world that must not become the daemon's: an open lock, a mask, ignored signals, a directory, a preference when
/// memory runs out.
const FIRST: &str = r#"
    exec 7>"$LOCK"; flock 7
    exec 300<"$LOCK"
    umask 0
    trap '' INT QUIT HUP USR1
    cd "$DIRECTORY"
    echo 300 > /proc/self/oom_score_adj
    exec "$T" ssh -F "$F" "$@"
"#;

fn first(home: &Home, server: &Sshd, arguments: &[&str]) {
    let directory = home.path("directory");
    fs::create_dir_all(&directory).unwrap();
    let mut shell = home.shell(server, FIRST);
    shell
        .env("LOCK", home.path("lock"))
        .env("DIRECTORY", directory)
        .arg("sh")
        .args(arguments);
    succeed(&mut shell);
}

#[test]
fn the_first_caller_leaves_nothing_to_the_daemon() {
    let (server, home) = (server(), Home::new());
    first(&home, &server, &[server.alias(), "true"]);
    let pid = daemon(&home);

    let lock = fs::File::open(home.path("lock")).unwrap();
    flock(&lock, FlockOperation::NonBlockingLockExclusive).expect("the caller's lock went with the caller");
    let open = home.descriptors();
    assert!(!open.iter().any(|what| what.contains("/lock")), "{open:#?}");

    assert_eq!(status_line(&pid, "Umask"), "0077");
    // SIGPIPE alone, by Rust's runtime.
    assert_eq!(signals(&status_line(&pid, "SigIgn")), 1 << 12);
    assert_eq!(status_line(&pid, "SigBlk"), format!("{:016x}", 0));
    assert_eq!(
        fs::read_link(format!("/proc/{pid}/cwd")).unwrap().as_os_str(),
        "/"
    );
    let adjusted = fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap();
    assert_eq!(adjusted.trim(), "0");
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    assert_eq!(fields[3], pid, "it leads a session of its own");
    assert_eq!(fields[4], "0", "it has no terminal");
}

/// A script that prints a program's own world.
const TELL: &str = r#"#!/bin/sh
{
    ls -l /proc/self/fd | sed 's/.* \([0-9]* ->\)/\1/'
    umask
    pwd
    ulimit -S -n
    ulimit -S -c
    ulimit -S -t
    grep -E '^Sig(Ign|Blk)' /proc/self/status
} > "$1"
"#;

#[test]
fn what_the_daemon_runs_has_its_own_callers_world_and_three_descriptors() {
    let (server, home) = (server(), Home::new());
    first(&home, &server, &[server.alias(), "true"]);
    let tell = home.script("tell", TELL);
    let (told, matched) = (home.path("told"), home.path("matched"));
    let config = home.path("proxied");
    let port = server.port();
    let block = fs::read_to_string(server.ssh_config()).unwrap();
    // `exec` is put before a ProxyCommand: one that is more than a program is a shell's.
    let proxy = home.script(
        "proxy",
        &format!(
            "#!/bin/bash\n{} {}\nexec 3<>/dev/tcp/127.0.0.1/{port}; cat <&3 & exec cat >&3\n",
            tell.display(),
            told.display()
        ),
    );
    let text_of_config = format!(
        "Match exec \"{} {}\"\n  ProxyCommand {}\n{block}",
        tell.display(),
        matched.display(),
        proxy.display(),
    );
    fs::write(&config, text_of_config).unwrap();

    let elsewhere = home.path("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    let mut second = home.shell(
        &server,
        "umask 0027; cd \"$DIRECTORY\"; ulimit -S -n 99; ulimit -S -c 0; ulimit -S -t 99999; exec \"$T\" ssh -F \"$CONFIG\" \"$@\"",
    );
    second
        .env("DIRECTORY", &elsewhere)
        .env("CONFIG", &config)
        .args(["sh", server.alias(), "true"]);
    let output = succeed(&mut second);

    for file in [&told, &matched] {
        let said = fs::read_to_string(file).unwrap_or_else(|_| panic!("{}", describe(&output)));
        let descriptors: Vec<&str> = said
            .lines()
            .filter(|line| line.contains("->") && !line.contains("/proc/"))
            .filter_map(|line| line.split_whitespace().next())
            .collect();
        assert_eq!(descriptors, ["0", "1", "2"], "{said}");
        for expected in [
            "\n0027\n".to_owned(),
            format!("\n{}\n", elsewhere.display()),
            "\n99\n0\n99999\n".to_owned(),
        ] {
            assert!(
                said.contains(&expected),
                "{expected:?} in {}: {said}",
                file.display()
            );
        }
        for set in ["SigIgn:", "SigBlk:"] {
            let line = said.lines().find_map(|line| line.strip_prefix(set));
            // ssh itself, which runs a Match exec, ignores SIGPIPE.
            let others = signals(line.unwrap().trim()) & !(1 << 12);
            assert_eq!(others, 0, "{set} {said}");
        }
        assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o640);
    }
}

#[test]
fn the_daemons_memory_is_nobodys_to_read_and_leaves_no_core() {
    let (server, home) = (server(), Home::new());
    let mut shell = home.shell(
        &server,
        "ulimit -S -c unlimited; exec \"$T\" ssh -F \"$F\" \"$@\"",
    );
    succeed(shell.args(["sh", server.alias(), "true"]));
    let pid = daemon(&home);
    // What is not dumpable belongs to root in /proc (proc(5)); where the tests are root's too, only the limit tells.
    let owner = fs::metadata(format!("/proc/{pid}/mem")).unwrap().uid();
    assert_eq!(owner, 0);
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let core = limits
        .lines()
        .find(|line| line.starts_with("Max core file size"))
        .unwrap();
    assert_eq!(core.split_whitespace().nth(4), Some("0"), "{core}");
    // As the kernel tells a process that asks about itself: the auxiliary vector is kept from others in the same way.
    if !rustix::process::getuid().is_root() {
        assert!(fs::read(format!("/proc/{pid}/auxv")).is_err());
    }
}

#[test]
fn the_log_can_be_read_by_its_user_only() {
    let (server, home) = (server(), Home::new());
    assert_status(&home.run_on(&server, "true"), 0);
    let log = home.trunkline_dir().join("state/daemon.log");
    assert_eq!(fs::metadata(log).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn the_log_is_put_aside_when_it_is_full() {
    let (server, home) = (server(), Home::new());
    let log = home.trunkline_dir().join("state/daemon.log");
    let old = log.with_extension("log.old");
    fs::create_dir_all(log.parent().unwrap()).unwrap();
    for directory in [home.trunkline_dir(), home.trunkline_dir().join("state")] {
        fs::set_permissions(directory, fs::Permissions::from_mode(0o700)).unwrap();
    }
    let full = "x".repeat(4 * 1024 * 1024);
    fs::write(&log, &full).unwrap();
    assert_status(&home.run_on(&server, "true"), 0);
    assert_eq!(
        fs::metadata(&old).unwrap().len(),
        full.len() as u64,
        "at the start"
    );
    assert!(home.log().contains("listening") && home.log().len() < 100_000);
    // What programs of the user's wrote to it counts too.
    fs::OpenOptions::new()
        .append(true)
        .open(&log)
        .and_then(|mut log| std::io::Write::write_all(&mut log, full.as_bytes()))
        .unwrap();
    succeed(home.trunkline().arg("stop"));
    wait_until("it has said its last word in a new file", || {
        let log = home.log();
        log.contains("ended") && log.len() < 100_000
    });
    assert!(fs::read_to_string(&old).unwrap().contains("listening"));
}

/// ssh closes what it inherits as the first of all; so does this where it takes its place.
#[test]
fn ssh_keeps_nothing_of_its_callers_open() {
    let (server, home) = (server(), Home::new());
    let (told, tell) = (home.path("told"), home.script("tell", TELL));
    let shell = |ssh: &str| {
        let _ = fs::remove_file(&told);
        let script = format!("exec 7>\"$LOCK\"; exec {ssh} -F \"$F\" -o ProxyCommand=\"$TELL $TOLD\" \"$@\"");
        let mut shell = home.shell(&server, &script);
        shell
            .env("LOCK", home.path("lock"))
            .env("TELL", &tell)
            .env("TOLD", &told)
            .args(["sh", server.alias(), "true"])
            .stdin(Stdio::null());
        let output = fail(255, &mut shell);
        let said = fs::read_to_string(&told).unwrap_or_else(|_| panic!("{}", text(&output.stderr)));
        assert!(!said.contains("/lock"), "{ssh}: {said}");
    };
    shell("ssh");
    shell("\"$T\" ssh");
    shell("\"$T\" --no-daemon ssh");
    let mut named_ssh = home.shell(&server, "exec 7>\"$LOCK\"; exec -a ssh \"$T\" -V");
    assert!(
        named_ssh
            .env("LOCK", home.path("lock"))
            .status()
            .unwrap()
            .success()
    );
}

#[test]
fn what_a_command_runs_without_a_daemon_has_none_of_its_callers_descriptors() {
    let (server, home) = (server(), Home::new());
    let tell = home.script(
        "tell",
        "#!/bin/sh\nls -l /proc/self/fd | sed -n 's/.* \\([0-9]* ->\\)/\\1/p' >> \"$1\"\n",
    );
    let block = fs::read_to_string(server.ssh_config()).unwrap();
    let told = |what: &str| home.path(&format!("told-{what}"));
    let port = server.port();
    let proxy = format!(
        "#!/bin/bash\n{} {}\nexec 3<>/dev/tcp/127.0.0.1/{port}; cat <&3 2>/dev/null & exec cat >&3\n",
        tell.display(),
        told("proxy").display()
    );
    let proxy = home.script("proxy", &proxy);
    let inventory = format!(
        "#!/bin/sh\n{} {}\necho '{{\"all\":{{\"hosts\":[\"{}\"]}}}}'\n",
        tell.display(),
        told("inventory").display(),
        server.alias()
    );
    let inventory = home.script("inventory", &inventory);
    let config = home.path("config");
    let directives = format!(
        "Match exec \"{} {}\"\n  ProxyCommand {}\n",
        tell.display(),
        told("match").display(),
        proxy.display()
    );
    fs::write(&config, directives + &block).unwrap();
    fs::write(home.path("secret"), "secret").unwrap();
    let source = home.path("source");
    fs::write(&source, "x").unwrap();
    let copy = format!(
        "cp -F \"$CONFIG\" {} {}:{}",
        source.display(),
        server.alias(),
        home.path("target").display()
    );
    for command in [
        format!("run -F \"$CONFIG\" -i {} -- true", inventory.display()),
        format!("warm -F \"$CONFIG\" {}", server.alias()),
        copy,
        format!("explain -F \"$CONFIG\" {}", server.alias()),
        // What the arguments name is there for this command, and for nobody else.
        format!(
            "run -F \"$CONFIG\" -H @/dev/fd/5 -- true 5< <(echo {})",
            server.alias()
        ),
    ] {
        let script = format!("exec 7<\"$SECRET\" 300<\"$SECRET\"; \"$T\" --no-daemon {command}");
        let mut shell = home.command_with_ansible("bash");
        shell
            .args(["-c", &script])
            .env("T", program())
            .env("F", server.ssh_config());
        shell.env("CONFIG", &config).env("SECRET", home.path("secret"));
        succeed(&mut shell);
    }
    for what in ["proxy", "match", "inventory"] {
        let said = fs::read_to_string(told(what)).unwrap_or_else(|_| panic!("{what} did not run"));
        let other = said.lines().find(|line| {
            let number: u32 = line.split_whitespace().next().unwrap().parse().unwrap();
            number > 2 && !line.contains("/proc/")
        });
        assert_eq!(other, None, "{what}: {said}");
    }
}

#[test]
fn a_working_directory_that_is_gone_or_closed_keeps_nobody_from_connecting() {
    let (server, home) = (server(), Home::new());
    for daemon in ["", "--no-daemon"] {
        let gone = home.path("gone");
        fs::create_dir(&gone).unwrap();
        let script = format!(
            "cd {0} && rmdir {0} && exec \"$T\" {daemon} ssh -F \"$F\" {1} true",
            gone.display(),
            server.alias()
        );
        succeed(&mut home.shell(&server, &script));
    }
}
